package containment

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pinfold.dev/api"
)

var root = Caller{Admin: true}

func manager(grace time.Duration) (*Manager, *memHost, *memRecords) {
	h, r := &memHost{}, newMemRecords()
	return New(Config{Host: h, Records: r, Users: memUsers{}, Boot: "b", Grace: grace, Bound: time.Second}), h, r
}

func begun(t *testing.T, m *Manager, req api.BeginRequest) string {
	t.Helper()
	v, err := m.Begin(t.Context(), root, req)
	if err != nil {
		t.Fatal(err)
	}
	return v.ID
}

func launched(t *testing.T, m *Manager, id string) string {
	t.Helper()
	p, err := m.Launch(t.Context(), id, root, api.LaunchRequest{Argv: []string{"/bin/true"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p.ID
}

func TestAbandonTwiceGivesOneReceipt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, h, _ := manager(0)
		id := begun(t, m, api.BeginRequest{})
		launched(t, m, id)
		var wg sync.WaitGroup
		got := make([]api.Receipt, 10)
		for i := range got {
			wg.Go(func() {
				r, err := m.Abandon(t.Context(), id, Caller{UID: uint32(i)}, api.AbandonRequest{})
				if err != nil {
					t.Error(err)
				}
				got[i] = r
			})
		}
		wg.Wait()
		for _, r := range got[1:] {
			if r.Actor.UID != got[0].Actor.UID || !r.AskedAt.Equal(got[0].AskedAt) || !r.Complete {
				t.Errorf("another receipt: %+v and %+v", r, got[0])
			}
		}
		if h.holds[0].kills != 1 {
			t.Errorf("killed %d times", h.holds[0].kills)
		}
		synctest.Wait()
		r, err := m.Abandon(t.Context(), id, root, api.AbandonRequest{}) // from the history
		if err != nil || r.Actor.UID != got[0].Actor.UID {
			t.Errorf("later: %+v (%v)", r, err)
		}
	})
}

// Who asks too early for a receipt is told what there is to do: to wait, once the
// turn is ending.
func TestReceiptThatIsToCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, h, _ := manager(0)
		id := begun(t, m, api.BeginRequest{})
		launched(t, m, id)
		remedy := func(want string) {
			t.Helper()
			_, err := m.Receipt(t.Context(), id)
			var e *api.Error
			if !errors.As(err, &e) || e.Code != api.CodeNotFound || !strings.Contains(e.Remedy, want) {
				t.Errorf("%+v", err)
			}
		}
		remedy("pinfold finish " + id)
		h.holds[0].slow.fence = time.Second
		go m.Abandon(t.Context(), id, root, api.AbandonRequest{})
		time.Sleep(time.Second / 2)
		remedy("pinfold wait " + id)
		time.Sleep(time.Second)
		if r, err := m.Receipt(t.Context(), id); err != nil || !r.Complete {
			t.Errorf("%+v (%v)", r, err)
		}
	})
}

func TestFinishFirstStands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, h, _ := manager(0)
		id := begun(t, m, api.BeginRequest{})
		p := launched(t, m, id)
		if _, err := m.Finish(t.Context(), id, root, api.FinishRequest{}); err != nil {
			t.Fatal(err)
		}
		r, err := m.Abandon(t.Context(), id, root, api.AbandonRequest{})
		if err != nil || r.Reason != api.ReasonFinished || len(r.Leftovers) != 1 || r.Leftovers[0].Process != p {
			t.Errorf("abandon after finish: %+v (%v)", r, err)
		}
		if n, _ := h.holds[0].Alive(); n != 1 {
			t.Error("the leftover was ended")
		}
		r, err = m.Abandon(t.Context(), id, root, api.AbandonRequest{Leftovers: true})
		if err != nil || r.LeftoversEndedAt == nil || !r.Complete || r.State != api.StateFinished {
			t.Errorf("ending leftovers: %+v (%v)", r, err)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if _, held := m.live(id); held || !h.holds[0].released {
			t.Error("the turn is still held")
		}
	})
}

func TestLaunchRacesAbandon(t *testing.T) {
	for range 200 {
		m, h, _ := manager(0)
		id := begun(t, m, api.BeginRequest{})
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 500 { // on a busy machine, the abandon may be long in coming
					_, err := m.Launch(t.Context(), id, root, api.LaunchRequest{Argv: []string{"x"}}, nil)
					if errors.Is(err, api.ErrTurnOver) || errors.Is(err, api.ErrNotFound) {
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		time.Sleep(50 * time.Microsecond)
		r, err := m.Abandon(t.Context(), id, root, api.AbandonRequest{})
		wg.Wait()
		if err != nil || !r.Complete {
			t.Fatalf("%+v (%v)", r, err)
		}
		told := map[string]bool{}
		for _, p := range r.Processes {
			told[p.ID] = true
		}
		for _, id := range h.holds[0].launched {
			if !told[id] {
				t.Fatalf("%s ran and is not on the receipt", id)
			}
		}
	}
}

func TestKeeperThatDoesNotAcknowledge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, h, _ := manager(0)
		h.setUp = func(x *memHold) { x.fenceStuck = true }
		id := begun(t, m, api.BeginRequest{})
		launched(t, m, id)
		r, err := m.Abandon(t.Context(), id, root, api.AbandonRequest{})
		if err != nil || !r.Complete || !strings.Contains(strings.Join(r.Notes, " "), "did not acknowledge the fence") {
			t.Errorf("%+v (%v)", r, err)
		}
		if x := h.holds[0]; !x.keeperDead || x.kills < 2 {
			t.Errorf("keeper dead %v, %d kills: the last look must come after the fence", x.keeperDead, x.kills)
		}
	})
}

func TestUnkillableThenGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, h, rec := manager(0)
		gone := make(chan struct{})
		h.setUp = func(x *memHold) { x.stuck, x.gone = true, gone }
		id := begun(t, m, api.BeginRequest{})
		launched(t, m, id)
		r, err := m.Abandon(t.Context(), id, root, api.AbandonRequest{})
		if err != nil || r.Complete || r.State != api.StateUnkillable || r.Counts.Survivors != 1 || r.Survivors[0].State != "D" {
			t.Fatalf("%+v (%v)", r, err)
		}
		v, err := m.Turn(t.Context(), id)
		if err != nil || v.State != api.StateUnkillable || len(v.Survivors) != 1 {
			t.Errorf("%+v (%v)", v, err)
		}
		if rec.live[id].Turn.State != api.StateUnkillable {
			t.Error("the record is not open")
		}
		close(gone)
		v, err = m.WaitTurn(t.Context(), id)
		if err != nil || v.State != api.StateAbandoned {
			t.Fatalf("%+v (%v)", v, err)
		}
		synctest.Wait()
		if r, err = m.Receipt(t.Context(), id); err != nil || !r.Complete || r.State != api.StateAbandoned {
			t.Errorf("%+v (%v)", r, err)
		}
	})
}

func TestFullDiskDoesNotStopAnEnding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _, rec := manager(0)
		id := begun(t, m, api.BeginRequest{})
		launched(t, m, id)
		rec.mu.Lock()
		rec.full = true
		rec.mu.Unlock()
		r, err := m.Abandon(t.Context(), id, root, api.AbandonRequest{})
		if err != nil || !r.Complete || !strings.Contains(strings.Join(r.Notes, " "), "could not be stored") {
			t.Errorf("%+v (%v)", r, err)
		}
		if _, err := m.Receipt(t.Context(), id); err != nil {
			t.Errorf("the receipt is lost: %v", err)
		}
		rec.mu.Lock()
		rec.full = false
		rec.mu.Unlock()
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if _, held := m.live(id); held || rec.ended[id].Receipt == nil {
			t.Error("there is room again, and the receipt is not in the history")
		}
	})
}

// Where only the history has room the receipt is there before it is told; but a disk
// that hangs keeps no ending.
func TestFullDiskButTheHistorys(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		t.Run(fmt.Sprintf("it hangs: %v", hangs), func(t *testing.T) {
			t.Parallel()
			m, _, rec := manager(0)
			id := begun(t, m, api.BeginRequest{})
			launched(t, m, id)
			release := func() {}
			rec.mu.Lock()
			if rec.full, rec.room = true, true; hangs {
				rec.hang = make(chan struct{})
				release = sync.OnceFunc(func() { close(rec.hang) })
				defer release()
			}
			rec.mu.Unlock()
			r, err := m.Abandon(t.Context(), id, root, api.AbandonRequest{})
			stored := !strings.Contains(strings.Join(r.Notes, " "), "could not be stored")
			if err != nil || !r.Complete || stored == hangs {
				t.Errorf("%+v (%v)", r, err)
			}
			if e, ok, _ := rec.Ended(id); ok == hangs || ok && e.Receipt.Reason != r.Reason {
				t.Errorf("in the history: %v, %+v", ok, e.Receipt)
			}
			release()
			for end := time.Now().Add(time.Minute); m.Knows(id) && time.Now().Before(end); time.Sleep(time.Millisecond) {
			}
			if e, _, _ := rec.Ended(id); m.Knows(id) || e.Receipt == nil || e.Turn.State != api.StateAbandoned {
				t.Errorf("in memory: %v, in the history %+v", m.Knows(id), e.Receipt)
			}
		})
	}
}

func TestStaleEpochTouchesNothing(t *testing.T) {
	m, h, _ := manager(0)
	id := begun(t, m, api.BeginRequest{})
	p := launched(t, m, id)
	_, err1 := m.Abandon(t.Context(), id, root, api.AbandonRequest{Epoch: 7})
	_, err2 := m.Finish(t.Context(), id, root, api.FinishRequest{Epoch: 7})
	_, err3 := m.Launch(t.Context(), id, root, api.LaunchRequest{Argv: []string{"x"}, Epoch: 7}, nil)
	_, err4 := m.Signal(t.Context(), id, p, api.SignalRequest{Signal: "KILL", Epoch: 7})
	for _, err := range []error{err1, err2, err3, err4} {
		if !errors.Is(err, api.ErrStaleEpoch) {
			t.Errorf("%v", err)
		}
	}
	if n, _ := h.holds[0].Alive(); n != 1 {
		t.Error("something was touched")
	}
}

func TestEarlyExitIsNotLost(t *testing.T) {
	m, h, _ := manager(0)
	id := begun(t, m, api.BeginRequest{})
	x := h.holds[0]
	x.late = func() { // the end is told before the launch is answered
		x.hooks.Exit(Exit{Process: "p1", At: time.Now(), Status: api.Status{State: api.ProcessExited, Code: 3}})
	}
	launched(t, m, id)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p, err := m.WaitProcess(ctx, id, "p1")
	if err != nil || p.Status.Code != 3 {
		t.Errorf("%+v (%v)", p, err)
	}
}

func TestKeeperLostIsToldAndTheTurnCanBeEnded(t *testing.T) {
	m, h, _ := manager(0)
	id := begun(t, m, api.BeginRequest{})
	launched(t, m, id)
	h.holds[0].hooks.KeeperLost("it has died")
	v, _ := m.Turn(t.Context(), id)
	if len(v.Degraded) != 1 || !strings.Contains(v.Degraded[0], "it has died") {
		t.Errorf("degraded: %v", v.Degraded)
	}
	if _, err := m.Launch(t.Context(), id, root, api.LaunchRequest{Argv: []string{"x"}}, nil); !errors.Is(err, api.ErrKeeperLost) {
		t.Errorf("launch: %v", err)
	}
	h.holds[0].hooks.Exit(Exit{Process: "p1", At: time.Now(), Status: api.Status{State: api.ProcessExited}}) // by its handle
	r, err := m.Abandon(t.Context(), id, root, api.AbandonRequest{})
	if err != nil || !r.Complete {
		t.Errorf("%+v (%v)", r, err)
	}
	if on := strings.Join(r.Processes[0].Evidence, "; "); strings.Contains(on, "reaped") || !strings.Contains(on, "has died") {
		t.Errorf("seen by %q", on)
	}
}

func TestTurnOfCgroup(t *testing.T) {
	m, _, _ := manager(0)
	id := begun(t, m, api.BeginRequest{})
	for path, want := range map[string]bool{"/t/" + id: true, "/t/" + id + "/work/p1/x": true, "/t/" + id + "x": false,
		"/t": false, "/": false, "": false} {
		if got, ok := m.TurnOfCgroup(path); ok != want || (ok && got != id) {
			t.Errorf("%q: %q, %v", path, got, ok)
		}
	}
}

func TestUnverifiableAfterRestartIsShownAndLeftAlone(t *testing.T) {
	m, _, rec := manager(0)
	id := begun(t, m, api.BeginRequest{})
	h2 := &memHost{}
	again := New(Config{Host: h2, Records: rec, Users: memUsers{}, Boot: "b"})
	if err := again.Recover(t.Context()); err == nil {
		t.Error("nothing was said")
	}
	v, err := again.Turn(t.Context(), id)
	if err != nil || v.State != api.StateOpen || v.Alive != -1 || len(v.Degraded) == 0 {
		t.Errorf("%+v (%v)", v, err)
	}
	if _, err := again.Abandon(t.Context(), id, root, api.AbandonRequest{}); !errors.Is(err, api.ErrUnavailable) {
		t.Errorf("abandon: %v", err)
	}
}

func TestAnotherBootIsLost(t *testing.T) {
	m, _, rec := manager(0)
	id := begun(t, m, api.BeginRequest{})
	launched(t, m, id)
	again := New(Config{Host: &memHost{}, Records: rec, Users: memUsers{}, Boot: "c"})
	if err := again.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	r, err := again.Receipt(t.Context(), id)
	if err != nil || r.State != api.StateLost || r.Complete || r.Mechanism != "none" {
		t.Errorf("%+v (%v)", r, err)
	}
}
