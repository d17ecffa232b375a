package containment

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pinfold.dev/api"
)

func begunBy(t *testing.T, m *Manager, c Caller, req api.BeginRequest) string {
	t.Helper()
	v, err := m.Begin(t.Context(), c, req)
	if err != nil {
		t.Fatal(err)
	}
	return v.ID
}

func boundTo(after time.Duration) api.BeginRequest {
	return api.BeginRequest{Client: api.Client{Bind: api.BindProcess, AfterMS: after.Milliseconds()}}
}

func TestDeadClientsTurnIsAbandoned(t *testing.T) {
	for _, after := range []time.Duration{0, 5 * time.Second} {
		timed(t, func(t *testing.T, m *Manager, h *memHost, _ *memRecords) {
			id := begunBy(t, m, h.caller(7), boundTo(after))
			launched(t, m, id)
			time.Sleep(time.Hour)
			open(t, m, id, "while the client lives")
			h.watch.exit(7)
			r, took := over(t, m, id)
			if took != after || r.Reason != api.ReasonClientGone || r.Actor.Name != "pinfold" || !r.Complete {
				t.Errorf("after %v: %+v", took, r)
			}
		})
	}
}

func TestDetachedTurnGoesOn(t *testing.T) {
	timed(t, func(t *testing.T, m *Manager, h *memHost, _ *memRecords) {
		req := boundTo(0)
		req.Client.OnGone = api.OnGoneDetach
		id := begunBy(t, m, h.caller(7), req)
		h.watch.exit(7)
		time.Sleep(time.Hour)
		open(t, m, id, "without its client")
	})
}

func TestClientThatIsGoneBeforeItsTurnIsHeld(t *testing.T) {
	timed(t, func(t *testing.T, m *Manager, h *memHost, _ *memRecords) {
		h.setUp = func(*memHold) { go h.watch.exit(7); time.Sleep(time.Second) }
		id := begunBy(t, m, h.caller(7), boundTo(0))
		if r, _ := over(t, m, id); r.Reason != api.ReasonClientGone {
			t.Errorf("%+v", r)
		}
	})
}

// Who takes the turn in time is its client; what its former one does late counts
// for nothing.
func TestTakeInTime(t *testing.T) {
	timed(t, func(t *testing.T, m *Manager, h *memHost, rec *memRecords) {
		id := begunBy(t, m, h.caller(7), boundTo(10*time.Second))
		h.watch.exit(7)
		time.Sleep(9 * time.Second)
		v, err := m.Take(t.Context(), id, h.caller(8), api.TakeRequest{Epoch: 1})
		if err != nil || v.Epoch != 2 || rec.live[id].Turn.Epoch != 2 || rec.live[id].Client.PID != 8 {
			t.Fatalf("%+v, recorded %+v (%v)", v, rec.live[id], err)
		}
		time.Sleep(time.Hour)
		open(t, m, id, "taken")
		v, err = m.Take(t.Context(), id, h.caller(9), api.TakeRequest{})
		if err != nil || v.Epoch != 3 {
			t.Fatalf("%+v (%v)", v, err)
		}
		synctest.Wait()
		if n := h.watch.watchers(8); n != 0 {
			t.Errorf("the former client is watched by %d", n)
		}
		h.watch.exit(8)
		time.Sleep(time.Hour)
		open(t, m, id, "its former client has died")
		h.watch.exit(9)
		if r, took := over(t, m, id); took != 10*time.Second || r.Reason != api.ReasonClientGone || r.Epoch != 3 {
			t.Errorf("after %v: %+v", took, r)
		}
		if n := h.watch.watchers(9); n != 0 {
			t.Errorf("watched by %d after the end", n)
		}
	})
}

func TestOfTwoWhoTakeOneIsRefused(t *testing.T) {
	timed(t, func(t *testing.T, m *Manager, h *memHost, _ *memRecords) {
		id := begun(t, m, api.BeginRequest{})
		var wg sync.WaitGroup
		errs := make([]error, 8)
		for i := range errs {
			wg.Go(func() { _, errs[i] = m.Take(t.Context(), id, root, api.TakeRequest{Epoch: 1}) })
		}
		wg.Wait()
		won := 0
		for _, err := range errs {
			if err == nil {
				won++
			} else if !errors.Is(err, api.ErrStaleEpoch) {
				t.Error(err)
			}
		}
		if won != 1 {
			t.Errorf("%d have taken it", won)
		}
	})
}

func TestTakeThatCannotBeRecordedChangesNothing(t *testing.T) {
	timed(t, func(t *testing.T, m *Manager, h *memHost, rec *memRecords) {
		id := begunBy(t, m, h.caller(7), boundTo(0))
		rec.mu.Lock()
		rec.full = true
		rec.mu.Unlock()
		if _, err := m.Take(t.Context(), id, h.caller(8), api.TakeRequest{}); !errors.Is(err, api.ErrUnavailable) {
			t.Errorf("%v", err)
		}
		rec.mu.Lock()
		rec.full = false
		rec.mu.Unlock()
		if _, err := m.Touch(t.Context(), id, api.TouchRequest{Epoch: 1}); err != nil {
			t.Errorf("the epoch: %v", err)
		}
		h.watch.exit(8)
		open(t, m, id, "who could not take it has died")
		h.watch.exit(7)
		if r, _ := over(t, m, id); r.Reason != api.ReasonClientGone {
			t.Errorf("%+v", r)
		}
	})
}

// holding holds a turn until release is called.
func holding(t *testing.T, m *Manager, id string) (release func(), result <-chan error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	held, done := make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := m.Hold(ctx, id, 0, func(api.Turn) { close(held) })
		done <- err
	}()
	select {
	case <-held:
	case err := <-done:
		t.Fatalf("hold: %v", err)
	}
	return func() { cancel(); synctest.Wait() }, done
}

var byConnection = api.BeginRequest{Client: api.Client{Bind: api.BindConnection, AfterMS: 5_000}}

func TestHeldTurnGoesOn(t *testing.T) {
	timed(t, func(t *testing.T, m *Manager, h *memHost, _ *memRecords) {
		id := begun(t, m, byConnection)
		time.Sleep(4 * time.Second)
		one, _ := holding(t, m, id)
		two, _ := holding(t, m, id)
		time.Sleep(time.Hour)
		one()
		time.Sleep(time.Hour)
		open(t, m, id, "held once")
		two()
		time.Sleep(4 * time.Second)
		again, _ := holding(t, m, id)
		time.Sleep(time.Hour)
		open(t, m, id, "held again")
		again()
		if r, took := over(t, m, id); took != 5*time.Second || r.Reason != api.ReasonClientGone {
			t.Errorf("after %v: %+v", took, r)
		}
	})
}

func TestWhoHoldsIsToldOfTheEnd(t *testing.T) {
	timed(t, func(t *testing.T, m *Manager, h *memHost, _ *memRecords) {
		id := begun(t, m, byConnection)
		_, done := holding(t, m, id)
		if _, err := m.Abandon(t.Context(), id, root, api.AbandonRequest{}); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Errorf("%v", err)
		}
	})
}

// Who takes the turn gets its time to hold it; its former holder is told, and
// counts for nothing any more.
func TestTakenFromAConnection(t *testing.T) {
	timed(t, func(t *testing.T, m *Manager, h *memHost, _ *memRecords) {
		id := begun(t, m, byConnection)
		_, old := holding(t, m, id)
		if _, err := m.Take(t.Context(), id, root, api.TakeRequest{}); err != nil {
			t.Fatal(err)
		}
		if err := <-old; !errors.Is(err, api.ErrStaleEpoch) {
			t.Errorf("the former holder: %v", err)
		}
		if _, err := m.Hold(t.Context(), id, 1, func(api.Turn) {}); !errors.Is(err, api.ErrStaleEpoch) {
			t.Errorf("the former holder again: %v", err)
		}
		if r, took := over(t, m, id); took != 5*time.Second || r.Reason != api.ReasonClientGone {
			t.Errorf("after %v: %+v", took, r)
		}
	})
}

// A service that stops lets go of all connections; that is not the clients' doing.
func TestStoppingServiceIsNoGoneClient(t *testing.T) {
	timed(t, func(t *testing.T, m *Manager, h *memHost, rec *memRecords) {
		id := begun(t, m, byConnection)
		ctx, cancel := context.WithCancelCause(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _, _ = m.Hold(ctx, id, 0, func(api.Turn) {}) }()
		synctest.Wait()
		cancel(errors.New("stopping"))
		<-done
		if v, _ := m.Turn(t.Context(), id); v.Clocks[0].Running {
			t.Errorf("%+v", v.Clocks)
		}
	})
}

func TestCallsWithAStaleEpochTouchNothing(t *testing.T) {
	timed(t, func(t *testing.T, m *Manager, h *memHost, _ *memRecords) {
		id := begun(t, m, api.BeginRequest{LeaseMS: 10_000})
		p := launched(t, m, id)
		if _, err := m.Take(t.Context(), id, root, api.TakeRequest{Epoch: 1}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		ctx := t.Context()
		for name, call := range map[string]func() error{
			"touch":   func() error { _, err := m.Touch(ctx, id, api.TouchRequest{Epoch: 1}); return err },
			"take":    func() error { _, err := m.Take(ctx, id, root, api.TakeRequest{Epoch: 1}); return err },
			"freeze":  func() error { _, err := m.Freeze(ctx, id, root, api.FreezeRequest{Epoch: 1}); return err },
			"thaw":    func() error { _, err := m.Thaw(ctx, id, root, api.FreezeRequest{Epoch: 1}); return err },
			"hold":    func() error { _, err := m.Hold(ctx, id, 1, func(api.Turn) {}); return err },
			"finish":  func() error { _, err := m.Finish(ctx, id, root, api.FinishRequest{Epoch: 1}); return err },
			"abandon": func() error { _, err := m.Abandon(ctx, id, root, api.AbandonRequest{Epoch: 1}); return err },
			"signal":  func() error { _, err := m.Signal(ctx, id, p, api.SignalRequest{Signal: "KILL", Epoch: 1}); return err },
			"launch": func() error {
				_, err := m.Launch(ctx, id, root, api.LaunchRequest{Argv: []string{"x"}, Epoch: 1}, nil)
				return err
			},
		} {
			if err := call(); !errors.Is(err, api.ErrStaleEpoch) {
				t.Errorf("%s: %v", name, err)
			}
		}
		x := h.holds[0]
		if n, _ := x.Alive(); n != 1 || x.isFrozen() || x.asked != 1 || x.life.freezes != 0 {
			t.Errorf("%d alive, frozen %v, %d launches", n, x.isFrozen(), x.asked)
		}
		if r, took := over(t, m, id); took != 5*time.Second || r.Reason != api.ReasonLeaseExpired {
			t.Errorf("a stale touch renewed the lease: %v, %s", took, r.Reason)
		}
	})
}

func TestClientsThatCannotBe(t *testing.T) {
	m, h, _ := manager(0)
	for _, c := range []api.Client{{Bind: "leash"}, {OnGone: api.OnGoneDetach}, {AfterMS: 1}, {Bind: api.BindProcess, OnGone: "weep"}, {Bind: api.BindConnection, AfterMS: -1}} {
		if _, err := m.Begin(t.Context(), h.caller(7), api.BeginRequest{Client: c}); !errors.Is(err, api.ErrBadRequest) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if _, err := m.Begin(t.Context(), root, boundTo(0)); !errors.Is(err, api.ErrUnsupported) {
		t.Errorf("nobody to watch: %v", err)
	}
	h.watch.doubt = true
	if _, err := m.Begin(t.Context(), h.caller(7), boundTo(0)); !errors.Is(err, api.ErrPeerUnverifiable) {
		t.Errorf("not to be verified: %v", err)
	}
	if len(h.holds) != 0 {
		t.Error("a turn was begun")
	}
}
