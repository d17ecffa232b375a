package containment

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pinfold.dev/api"
)

func TestSupersede(t *testing.T) {
	timed(t, func(t *testing.T, m *Manager, h *memHost, _ *memRecords) {
		h.setUp = func(x *memHold) { x.termEnds = true }
		grace := int64(60_000)
		old := begun(t, m, api.BeginRequest{Session: "s", GraceMS: &grace})
		launched(t, m, old)
		h.holds[0].termEnds = false // it takes its whole grace
		beside := begun(t, m, api.BeginRequest{Session: "s2"})
		none := begun(t, m, api.BeginRequest{})
		others, err := m.Begin(t.Context(), Caller{UID: 9}, api.BeginRequest{Session: "s"})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		young := begunBy(t, m, Caller{UID: 0, PID: 5}, api.BeginRequest{Session: "s", Supersede: true})
		if waited := time.Since(start); waited != 0 {
			t.Errorf("the new turn waited %v for the old one", waited)
		}
		p := launched(t, m, young)
		r, took := over(t, m, old)
		if took != time.Minute || r.Reason != api.ReasonSuperseded || r.Actor.PID != 5 || !r.Complete {
			t.Errorf("after %v: %+v", took, r)
		}
		for _, id := range []string{beside, none, others.ID, young} {
			open(t, m, id, "beside")
		}
		// Whatever comes late of the old turn, the new one is untouched.
		h.holds[0].hooks.Exit(Exit{Process: p, At: time.Now(), Status: api.Status{State: api.ProcessExited, Code: 1}})
		h.holds[0].hooks.KeeperLost("late")
		if _, err := m.Abandon(t.Context(), old, root, api.AbandonRequest{Leftovers: true}); err != nil {
			t.Error(err)
		}
		v, err := m.Turn(t.Context(), young)
		if err != nil || v.State != api.StateOpen || len(v.Degraded) != 0 || v.Processes[0].Status.State != api.ProcessRunning || v.Alive != 1 {
			t.Errorf("%+v (%v)", v, err)
		}
	})
}

// Of turns that supersede each other, exactly the last one stays.
func TestSupersedingEachOther(t *testing.T) {
	for range 50 {
		m, _, _ := manager(0)
		var wg sync.WaitGroup
		ids := make([]string, 8)
		for i := range ids {
			wg.Go(func() { ids[i] = begunBy(t, m, root, api.BeginRequest{Session: "s", Supersede: true}) })
		}
		wg.Wait()
		m.wg.Wait()
		list, err := m.Turns(t.Context(), TurnFilter{State: api.StateOpen})
		if err != nil || len(list) != 1 {
			t.Fatalf("%d are open (%v)", len(list), err)
		}
	}
}

func TestSupersedeNeedsASession(t *testing.T) {
	m, h, _ := manager(0)
	begun(t, m, api.BeginRequest{})
	if _, err := m.Begin(t.Context(), root, api.BeginRequest{Supersede: true}); !errors.Is(err, api.ErrBadRequest) {
		t.Errorf("%v", err)
	}
	if len(h.holds) != 1 {
		t.Error("a turn was begun")
	}
}

func TestBeginWithAKey(t *testing.T) {
	timed(t, func(t *testing.T, m *Manager, h *memHost, rec *memRecords) {
		req := api.BeginRequest{Label: "a", IdempotencyKey: "k", Policy: api.EndPolicy{api.ReasonStop: {Jobs: api.FateEnd}, api.ReasonWall: {Jobs: api.FateEnd}}}
		first := begun(t, m, req)
		again, err := m.Begin(t.Context(), root, req)
		if err != nil || again.ID != first || !again.Repeated || len(h.holds) != 1 {
			t.Errorf("%+v (%v)", again, err)
		}
		other := req
		other.Label = "b"
		if _, err := m.Begin(t.Context(), root, other); !errors.Is(err, api.ErrConflict) {
			t.Errorf("another request: %v", err)
		}
		if v, err := m.Begin(t.Context(), Caller{UID: 9}, other); err != nil || v.Repeated || v.ID == first {
			t.Errorf("another uid: %+v (%v)", v, err)
		}
		later := New(Config{Host: &memHost{holds: h.holds, recover: true}, Records: rec, Users: memUsers{}, Boot: "b"})
		defer later.Close(t.Context())
		if err := later.Recover(t.Context()); err != nil {
			t.Fatal(err)
		}
		if v, err := later.Begin(t.Context(), root, req); err != nil || v.ID != first || !v.Repeated {
			t.Errorf("after a restart: %+v (%v)", v, err)
		}
		if _, err := later.Abandon(t.Context(), first, root, api.AbandonRequest{}); err != nil {
			t.Fatal(err)
		}
		if v, err := later.Begin(t.Context(), root, req); err != nil || v.ID == first || v.Repeated {
			t.Errorf("when the first is over: %+v (%v)", v, err)
		}
	})
}

func TestOneKeyOneTurn(t *testing.T) {
	timed(t, func(t *testing.T, m *Manager, h *memHost, _ *memRecords) {
		h.setUp = func(*memHold) { time.Sleep(time.Second) }
		var wg sync.WaitGroup
		ids := make([]string, 16)
		for i := range ids {
			wg.Go(func() { ids[i] = begunBy(t, m, root, api.BeginRequest{IdempotencyKey: "k"}) })
		}
		wg.Wait()
		for _, id := range ids {
			if id != ids[0] {
				t.Fatalf("%v", ids)
			}
		}
		if len(h.holds) != 1 {
			t.Errorf("%d turns", len(h.holds))
		}
	})
}

// A begin that fails uses no key up.
func TestKeyOfABeginThatFails(t *testing.T) {
	timed(t, func(t *testing.T, m *Manager, h *memHost, _ *memRecords) {
		h.err = errors.New("no room")
		if _, err := m.Begin(t.Context(), root, api.BeginRequest{IdempotencyKey: "k"}); err == nil {
			t.Fatal("it began")
		}
		h.err = nil
		if v, err := m.Begin(t.Context(), root, api.BeginRequest{IdempotencyKey: "k", Label: "another"}); err != nil || v.Repeated {
			t.Errorf("%+v (%v)", v, err)
		}
		synctest.Wait()
		if len(m.beginning) != 0 {
			t.Errorf("%d begins are under way", len(m.beginning))
		}
	})
}
