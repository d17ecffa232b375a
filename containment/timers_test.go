package containment

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pinfold.dev/api"
)

// timed runs a test in fake time with a manager that lets go of everything at
// the end.
func timed(t *testing.T, test func(t *testing.T, m *Manager, h *memHost, rec *memRecords)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m, h, rec := manager(0)
		defer func() {
			if err := m.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}()
		test(t, m, h, rec)
	})
}

// over waits for the turn's receipt, and tells how long that took.
func over(t *testing.T, m *Manager, id string) (api.Receipt, time.Duration) {
	t.Helper()
	start := time.Now()
	if _, err := m.WaitTurn(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	took := time.Since(start)
	synctest.Wait()
	r, err := m.Receipt(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return r, took
}

// open fails the test when the turn is not open.
func open(t *testing.T, m *Manager, id, what string) {
	t.Helper()
	synctest.Wait()
	if v, err := m.Turn(t.Context(), id); err != nil || v.State != api.StateOpen {
		t.Fatalf("%s: the turn is %s (%s) (%v)", what, v.State, v.Reason, err)
	}
}

var byTouch = []api.Activity{api.ActivityTouch}

func TestClockEndsTheTurn(t *testing.T) {
	for _, c := range []struct {
		req  api.BeginRequest
		want api.Reason
	}{
		{api.BeginRequest{WallMS: 10_000}, api.ReasonWall},
		{api.BeginRequest{LeaseMS: 10_000}, api.ReasonLeaseExpired},
		{api.BeginRequest{IdleMS: 10_000}, api.ReasonIdle},
		{api.BeginRequest{IdleMS: 10_000, IdleBy: byTouch}, api.ReasonIdle},
		{api.BeginRequest{Client: api.Client{Bind: api.BindConnection}}, api.ReasonClientGone},
	} {
		timed(t, func(t *testing.T, m *Manager, h *memHost, _ *memRecords) {
			id := begun(t, m, c.req)
			p := launched(t, m, id)
			r, took := over(t, m, id)
			if took != 10*time.Second || r.Reason != c.want || r.State != api.StateAbandoned || !r.Complete || r.Actor.Name != "pinfold" {
				t.Errorf("%+v: after %v: %+v", c.req, took, r)
			}
			if len(r.Processes) != 1 || r.Processes[0].ID != p || r.Processes[0].EndedBy != "kill" {
				t.Errorf("%s: %+v", c.want, r.Processes)
			}
		})
	}
}

func TestTouchRenews(t *testing.T) {
	timed(t, func(t *testing.T, m *Manager, _ *memHost, _ *memRecords) {
		id := begun(t, m, api.BeginRequest{LeaseMS: 10_000, IdleMS: 10_000, IdleBy: byTouch})
		for range 10 {
			time.Sleep(9 * time.Second)
			a, err := m.Touch(t.Context(), id, api.TouchRequest{Epoch: 1})
			if err != nil || a.Epoch != 1 || len(a.Clocks) != 2 || a.Clocks[0].LeftMS != 10_000 {
				t.Fatalf("%+v (%v)", a, err)
			}
		}
		if r, took := over(t, m, id); took != 10*time.Second || r.Reason != api.ReasonLeaseExpired {
			t.Errorf("after %v: %s", took, r.Reason)
		}
		if _, err := m.Touch(t.Context(), id, api.TouchRequest{}); !errors.Is(err, api.ErrTurnOver) {
			t.Errorf("a touch too late: %v", err)
		}
	})
}

// What the gateway does counts; so does what the turn does, by choice.
func TestActivityIsSeen(t *testing.T) {
	for name, act := range map[string]func(*testing.T, *Manager, *memHold, *memOutput, string){
		"launch": func(t *testing.T, m *Manager, _ *memHold, _ *memOutput, id string) { launched(t, m, id) },
		"output": func(_ *testing.T, _ *Manager, _ *memHold, o *memOutput, _ string) { o.write("x", false) },
		"cpu":    func(_ *testing.T, _ *Manager, x *memHold, _ *memOutput, _ string) { x.burn(time.Second) },
		"io":     func(_ *testing.T, _ *Manager, x *memHold, _ *memOutput, _ string) { x.read(1) },
	} {
		synctest.Test(t, func(t *testing.T) {
			h, out := &memHost{}, &memOutputs{}
			m := New(Config{Host: h, Records: newMemRecords(), Users: memUsers{}, Boot: "b", Bound: time.Second, Outputs: out})
			defer m.Close(t.Context())
			id := begun(t, m, api.BeginRequest{IdleMS: 40_000})
			p, err := m.Launch(t.Context(), id, root, api.LaunchRequest{Argv: []string{"x"}, Stdio: api.Stdio{Stdout: api.Stream{Mode: api.StdioSpool}}}, nil)
			if err != nil {
				t.Fatal(err)
			}
			o := out.add(id, p.ID, api.StreamStdout, "")
			h.holds[0].burn(0)
			h.holds[0].read(0)
			for range 6 {
				time.Sleep(35 * time.Second)
				act(t, m, h.holds[0], o, id)
			}
			open(t, m, id, name)
			if r, took := over(t, m, id); took < 40*time.Second || took > 50*time.Second || r.Reason != api.ReasonIdle {
				t.Errorf("%s: %s after %v", name, r.Reason, took)
			}
		})
	}
}

// A disk that hangs while output is looked at holds up no other clock.
func TestALookThatHangsHoldsNothingUp(t *testing.T) {
	timed(t, func(t *testing.T, m *Manager, h *memHost, _ *memRecords) {
		id := begun(t, m, api.BeginRequest{IdleMS: 8_000, WallMS: 60_000})
		x := h.holds[0]
		x.mu.Lock()
		stuck := make(chan struct{})
		x.life.stuck = stuck
		x.mu.Unlock()
		time.Sleep(30 * time.Second)
		open(t, m, id, "while the look hangs")
		time.AfterFunc(60*time.Second, func() { close(stuck) })
		x.mu.Lock()
		x.life.stuckOnce = true
		x.mu.Unlock()
		if r, took := over(t, m, id); took != 30*time.Second || r.Reason != api.ReasonWall {
			t.Errorf("%s after %v", r.Reason, took)
		}
		time.Sleep(time.Minute)
	})
}

func TestFrozenTurnDoesNotTimeOut(t *testing.T) {
	timed(t, func(t *testing.T, m *Manager, h *memHost, rec *memRecords) {
		id := begun(t, m, api.BeginRequest{WallMS: 100_000, LeaseMS: 90_000, IdleMS: 80_000})
		p, err := m.Launch(t.Context(), id, root, api.LaunchRequest{Argv: []string{"x"}, DeadlineMS: 20_000}, nil)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		v, err := m.Freeze(t.Context(), id, root, api.FreezeRequest{Epoch: 1})
		if err != nil || !v.Frozen || !h.holds[0].isFrozen() || !rec.live[id].Turn.Frozen || v.Clocks[0].Running {
			t.Fatalf("%+v (%v)", v, err)
		}
		if _, err := m.Launch(t.Context(), id, root, api.LaunchRequest{Argv: []string{"x"}}, nil); !errors.Is(err, api.ErrUnavailable) {
			t.Errorf("a launch meanwhile: %v", err)
		}
		time.Sleep(time.Hour)
		open(t, m, id, "after an hour")
		if v, err = m.Thaw(t.Context(), id, root, api.FreezeRequest{}); err != nil || v.Frozen || h.holds[0].isFrozen() {
			t.Fatalf("%+v (%v)", v, err)
		}
		if left := v.Clocks[0].LeftMS; left != 90_000 {
			t.Errorf("%d ms of wall are left", left)
		}
		if want := p.Deadline.Add(time.Hour); !v.Processes[0].Deadline.Equal(want) {
			t.Errorf("deadline %v, want %v", v.Processes[0].Deadline, want)
		}
		time.Sleep(10*time.Second - 1)
		if h.holds[0].endings() != 0 {
			t.Error("the deadline did not stand still")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if h.holds[0].endings() != 1 {
			t.Error("the deadline is still standing")
		}
		if r, took := over(t, m, id); took != 60*time.Second || r.Reason != api.ReasonIdle {
			t.Errorf("%s after %v", r.Reason, took)
		}
	})
}

func TestFreezeThatFailsChangesNothing(t *testing.T) {
	timed(t, func(t *testing.T, m *Manager, h *memHost, rec *memRecords) {
		id := begun(t, m, api.BeginRequest{WallMS: 10_000})
		h.holds[0].life.err = errors.New("not to be stopped")
		if _, err := m.Freeze(t.Context(), id, root, api.FreezeRequest{}); err == nil || !strings.Contains(err.Error(), "not to be stopped") {
			t.Errorf("%v", err)
		}
		if rec.live[id].Turn.Frozen || h.holds[0].isFrozen() {
			t.Error("it is frozen all the same")
		}
		launched(t, m, id)
		if r, took := over(t, m, id); took != 10*time.Second || r.Reason != api.ReasonWall {
			t.Errorf("%s after %v", r.Reason, took)
		}
	})
}

// Frozen processes cannot stop when they are asked to, nor run on as leftovers.
func TestEndingOfAFrozenTurn(t *testing.T) {
	grace := int64(5000)
	for _, c := range []struct {
		name   string
		end    func(*testing.T, *Manager, string) (api.Receipt, error)
		thawed bool
		left   int
	}{
		{"asked", func(t *testing.T, m *Manager, id string) (api.Receipt, error) {
			return m.Abandon(t.Context(), id, root, api.AbandonRequest{GraceMS: &grace})
		}, true, 0},
		{"killed", func(t *testing.T, m *Manager, id string) (api.Receipt, error) {
			return m.Abandon(t.Context(), id, root, api.AbandonRequest{})
		}, false, 0},
		{"kept", func(t *testing.T, m *Manager, id string) (api.Receipt, error) {
			return m.Finish(t.Context(), id, root, api.FinishRequest{})
		}, true, 1},
	} {
		timed(t, func(t *testing.T, m *Manager, h *memHost, _ *memRecords) {
			h.setUp = func(x *memHold) { x.termEnds = true }
			id := begun(t, m, api.BeginRequest{})
			launched(t, m, id)
			if _, err := m.Freeze(t.Context(), id, root, api.FreezeRequest{}); err != nil {
				t.Fatal(err)
			}
			r, err := c.end(t, m, id)
			if err != nil || !r.Complete || len(r.Leftovers) != c.left || h.holds[0].isFrozen() == c.thawed {
				t.Errorf("%s: frozen %v, %+v (%v)", c.name, h.holds[0].isFrozen(), r, err)
			}
			if v, _ := m.Turn(t.Context(), id); v.Frozen {
				t.Errorf("%s: shown frozen", c.name)
			}
			if c.left > 0 {
				_, _ = m.Abandon(t.Context(), id, root, api.AbandonRequest{Leftovers: true})
			}
		})
	}
}

func TestKeeperLostTurnHasClocks(t *testing.T) {
	timed(t, func(t *testing.T, m *Manager, h *memHost, _ *memRecords) {
		id := begun(t, m, api.BeginRequest{WallMS: 10_000})
		launched(t, m, id)
		h.holds[0].hooks.KeeperLost("it has died")
		if r, took := over(t, m, id); took != 10*time.Second || r.Reason != api.ReasonWall || !r.Complete {
			t.Errorf("after %v: %+v", took, r)
		}
	})
}

func TestLeftoversHaveAMaximumLifetime(t *testing.T) {
	timed(t, func(t *testing.T, m *Manager, h *memHost, _ *memRecords) {
		id := begun(t, m, api.BeginRequest{LeftoversMaxMS: 60_000, WallMS: 30_000, Client: api.Client{Bind: api.BindConnection}})
		launched(t, m, id)
		r, err := m.Finish(t.Context(), id, root, api.FinishRequest{})
		if err != nil || len(r.Leftovers) != 1 || r.LeftoversEndedAt != nil {
			t.Fatalf("%+v (%v)", r, err)
		}
		v, _ := m.Turn(t.Context(), id)
		if len(v.Clocks) != 1 || v.Clocks[0].Name != api.ClockLeftovers || v.Clocks[0].LeftMS != 60_000 || !v.Clocks[0].Running {
			t.Errorf("clocks %+v", v.Clocks)
		}
		time.Sleep(59 * time.Second)
		if n, _ := h.holds[0].Alive(); n != 1 {
			t.Error("ended too early")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		r, err = m.Receipt(t.Context(), id)
		if err != nil || r.LeftoversEndedAt == nil || !r.Complete || r.State != api.StateFinished || !strings.Contains(strings.Join(r.Notes, " "), "their time, 1m0s, was over") {
			t.Errorf("%+v (%v)", r, err)
		}
	})
}
