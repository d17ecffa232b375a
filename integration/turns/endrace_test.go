package turns

import (
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"pinfold.dev/api"
)

// soak is how often a race is run: PINFOLD_SOAK, or few.
func soak(t *testing.T, few int) int {
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

// Finish, abandon, the deadline, a superseding turn, launches and a freeze meet
// in one turn, with real processes. One ending stands and all are told it;
// nothing that ran in the turn is left; the newer turn is untouched.
func TestEndingsAtOnce(t *testing.T) {
	s := serve(t, grades(t)[0], options{})
	beside := newCanary(t, s)
	won := map[api.Reason]int{}
	for round := range soak(t, 25) {
		won[endAtOnce(t, s, strconv.Itoa(round))]++
		if t.Failed() {
			break
		}
	}
	t.Logf("endings by reason: %v", won)
	beside.lives()
}

func endAtOnce(t *testing.T, s *service, session string) api.Reason {
	wall := int64(30)
	old := s.begin(t, api.BeginRequest{Session: session, WallMS: wall, Leftovers: api.LeftoversReap})
	sleeper := api.LaunchRequest{Argv: []string{"sleep", "3600"}}
	var mu sync.Mutex
	var wg sync.WaitGroup
	var receipts []api.Receipt
	ran := map[string]bool{}
	var young *turn
	at := func(f func()) {
		wg.Go(func() {
			time.Sleep(time.Duration(rand.Int64N(2*wall)) * time.Millisecond)
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
	at(func() { told(s.Finish(t.Context(), old.ID, api.FinishRequest{})) })
	at(func() { told(s.Abandon(t.Context(), old.ID, api.AbandonRequest{})) })
	at(func() {
		v, err := s.Begin(t.Context(), api.BeginRequest{Session: session, Supersede: true})
		if err == nil {
			_, err = s.Launch(t.Context(), v.ID, sleeper)
		}
		if young = (&turn{v, s, t}); err != nil {
			t.Errorf("the newer turn: %v", err)
		}
	})
	at(func() { _, _ = s.Freeze(t.Context(), old.ID, 0) })
	for range 4 {
		at(func() {
			if p, err := s.Launch(t.Context(), old.ID, sleeper); err == nil {
				mu.Lock()
				defer mu.Unlock()
				ran[p.ID] = true
			}
		})
	}
	wg.Wait()
	told(s.Receipt(t.Context(), old.ID))
	first := receipts[0]
	for _, r := range receipts {
		if r.Reason != first.Reason || !r.AskedAt.Equal(first.AskedAt) || !r.Complete || len(r.Leftovers) > 0 {
			t.Errorf("one was told %+v, another %+v", first, r)
		}
	}
	for _, p := range first.Processes {
		delete(ran, p.ID)
		if p.Status.State == api.ProcessRunning {
			t.Errorf("%s runs on", p.ID)
		}
	}
	if len(ran) > 0 {
		t.Errorf("launched, and not on the receipt: %v", ran)
	}
	if v := young.look(); v.State != api.StateOpen || v.Alive != 1 || v.Processes[0].Status.State != api.ProcessRunning {
		t.Errorf("the newer turn is %s, %d alive", v.State, v.Alive)
	}
	young.abandon(0)
	return first.Reason
}
