package containment

import (
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pinfold.dev/api"
)

// rounds is how often a race is run: PINFOLD_SOAK, or few.
func rounds(t *testing.T, few int) int {
	t.Helper()
	s := os.Getenv("PINFOLD_SOAK")
	if s == "" {
		return few
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("PINFOLD_SOAK: %v", err)
	}
	return n
}

// At the very instant of its deadline a turn's work is finished: one of the two
// stands, and both are told which.
func TestFinishAtTheDeadline(t *testing.T) {
	won := map[api.Reason]int{}
	for i := range 200 {
		timed(t, func(t *testing.T, m *Manager, h *memHost, _ *memRecords) {
			id := begun(t, m, api.BeginRequest{WallMS: 1000, Leftovers: api.LeftoversReap})
			launched(t, m, id)
			time.Sleep(time.Second + time.Duration(i%3-1)) // just before, at, just after
			r, err := m.Finish(t.Context(), id, root, api.FinishRequest{})
			if err != nil || (i%3 == 0 && r.Reason != api.ReasonFinished) || (i%3 == 2 && r.Reason != api.ReasonWall) {
				t.Fatalf("%+v (%v)", r, err)
			}
			won[r.Reason]++
			stands(t, m, id, r)
			if h.holds[0].killed() > 2 {
				t.Errorf("ended twice: %d kills", h.holds[0].killed())
			}
		})
	}
	if won[api.ReasonFinished] == 0 || won[api.ReasonWall] == 0 {
		t.Errorf("%v", won)
	}
}

// stands checks that later requests get the receipt that there is.
func stands(t *testing.T, m *Manager, id string, r api.Receipt) {
	t.Helper()
	synctest.Wait()
	later, err1 := m.Abandon(t.Context(), id, root, api.AbandonRequest{Reason: api.ReasonOperator})
	last, err2 := m.Finish(t.Context(), id, root, api.FinishRequest{})
	for _, x := range []api.Receipt{later, last} {
		if err1 != nil || err2 != nil || x.Reason != r.Reason || !x.AskedAt.Equal(r.AskedAt) || x.State != r.State {
			t.Fatalf("first %+v, then %+v (%v, %v)", r, x, err1, err2)
		}
	}
}

// The worker's exit was there before the deadline: the turn is finished, even
// where the clock is looked at before that exit is dealt with.
func TestFinishedWorkerBeatsTheDeadline(t *testing.T) {
	timed(t, func(t *testing.T, m *Manager, h *memHost, _ *memRecords) {
		id := begun(t, m, api.BeginRequest{WallMS: 1000})
		if _, err := m.Join(t.Context(), id, root, api.JoinRequest{FinishTurn: true}, nil); err != nil {
			t.Fatal(err)
		}
		tt, _ := m.live(id)
		tt.mu.Lock()
		finish := tt.finish
		late := make(chan uint32, 1)
		tt.finish = func(uid uint32) { late <- uid } // the exit is known, not yet dealt with
		tt.mu.Unlock()
		time.Sleep(time.Second - 1)
		h.holds[0].exit("p1", 0)
		time.Sleep(time.Minute)
		synctest.Wait()
		if s := tt.state(); s != api.StateOpen {
			t.Fatalf("%s", s)
		}
		finish(<-late)
		if r, _ := over(t, m, id); r.Reason != api.ReasonFinished || r.State != api.StateFinished || r.Processes[0].EndedBy != "itself" {
			t.Errorf("%+v", r)
		}
	})
}

// A touch that is answered has renewed the lease; one that came too late is told.
func TestTouchAtTheLeasesEnd(t *testing.T) {
	for range 200 {
		timed(t, func(t *testing.T, m *Manager, _ *memHost, _ *memRecords) {
			id := begun(t, m, api.BeginRequest{LeaseMS: 1000})
			time.Sleep(time.Second)
			_, err := m.Touch(t.Context(), id, api.TouchRequest{})
			synctest.Wait()
			v, _ := m.Turn(t.Context(), id)
			if renewed := err == nil; renewed != (v.State == api.StateOpen) || (err != nil && !errors.Is(err, api.ErrTurnOver)) {
				t.Fatalf("touch: %v; the turn is %s", err, v.State)
			}
		})
	}
}

// A freeze that meets an ending leaves nothing frozen behind, and stops it not.
func TestFreezeMeetsAnEnding(t *testing.T) {
	for range 200 {
		timed(t, func(t *testing.T, m *Manager, h *memHost, _ *memRecords) {
			id := begun(t, m, api.BeginRequest{})
			launched(t, m, id)
			var wg sync.WaitGroup
			wg.Go(func() {
				_, err := m.Freeze(t.Context(), id, root, api.FreezeRequest{})
				if err != nil && !errors.Is(err, api.ErrTurnOver) && !errors.Is(err, api.ErrNotFound) {
					t.Error(err)
				}
			})
			wg.Go(func() {
				if r, err := m.Finish(t.Context(), id, root, api.FinishRequest{}); err != nil || !r.Complete {
					t.Errorf("%+v (%v)", r, err)
				}
			})
			wg.Wait()
			if h.holds[0].isFrozen() {
				t.Fatal("the leftovers are frozen")
			}
			_, _ = m.Abandon(t.Context(), id, root, api.AbandonRequest{Leftovers: true})
		})
	}
}

// Everybody at once, in real time: finish, abandon, the deadline, a superseding
// turn, launches, touches, takes and freezes. There is one ending; all are told
// the same; what ran is accounted for; the new turn is untouched.
func TestEverybodyAtOnce(t *testing.T) {
	won := map[api.Reason]int{}
	for range rounds(t, 300) {
		m, h, _ := manager(0)
		// A slow machine needs more than the least for what comes before.
		old := begun(t, m, api.BeginRequest{Session: "s", WallMS: int64(1 + 20*rand.IntN(3)), Leftovers: api.LeftoversReap})
		_, _ = m.Launch(t.Context(), old, root, api.LaunchRequest{Argv: []string{"x"}}, nil) // it may be over already
		var wg sync.WaitGroup
		var mu sync.Mutex
		var receipts []api.Receipt
		young := ""
		at := func(f func()) {
			wg.Go(func() {
				time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
				f()
			})
		}
		told := func(r api.Receipt, err error) {
			mu.Lock()
			defer mu.Unlock()
			if receipts = append(receipts, r); err != nil {
				t.Errorf("no receipt: %v", err)
			}
		}
		at(func() { told(m.Finish(t.Context(), old, root, api.FinishRequest{})) })
		at(func() { told(m.Abandon(t.Context(), old, root, api.AbandonRequest{})) })
		at(func() { young = begunBy(t, m, root, api.BeginRequest{Session: "s", Supersede: true}) })
		for range 3 {
			at(func() { _, _ = m.Launch(t.Context(), old, root, api.LaunchRequest{Argv: []string{"x"}}, nil) })
		}
		at(func() { _, _ = m.Touch(t.Context(), old, api.TouchRequest{}) })
		at(func() { _, _ = m.Take(t.Context(), old, root, api.TakeRequest{}) })
		at(func() { _, _ = m.Freeze(t.Context(), old, root, api.FreezeRequest{}) })
		at(func() { _, _ = m.Thaw(t.Context(), old, root, api.FreezeRequest{}) })
		wg.Wait()
		m.wg.Wait()
		told(m.Receipt(t.Context(), old))
		for _, r := range receipts {
			if f := receipts[0]; r.Reason != f.Reason || !r.AskedAt.Equal(f.AskedAt) || !r.Complete || len(r.Processes) != len(h.holds[0].launched) {
				t.Fatalf("%d launched; %+v and %+v", len(h.holds[0].launched), f, r)
			}
		}
		won[receipts[0].Reason]++
		if n, _ := h.holds[0].Alive(); n != 0 {
			t.Fatalf("%d run on", n)
		}
		if v, err := m.Turn(t.Context(), young); err != nil || v.State != api.StateOpen || h.holds[1].killed() != 0 {
			t.Fatalf("the new turn: %+v (%v)", v, err)
		}
	}
	t.Logf("endings by reason: %v", won)
	if len(won) < 3 {
		t.Errorf("only %v ever won", won)
	}
}
