package containment

import (
	"context"
	"testing"
	"time"

	"pinfold.dev/api"
)

// vanished finds what held the turns gone.
type vanished struct{ *memHost }

func (vanished) Recover(context.Context, string, Facts, Hooks) (Hold, api.Verdict, error) {
	return nil, api.VerdictGone, nil
}

// A process of a lost turn is gone where it is, a survivor where it lives, and
// unverifiable where nobody can tell.
func TestLostTurnWhoseProcessLives(t *testing.T) {
	for name, c := range map[string]struct {
		alive, doubt bool
		want         api.Verdict
	}{
		"gone":         {false, false, api.VerdictGone},
		"lives":        {true, false, api.VerdictOwned},
		"unverifiable": {false, true, api.VerdictUnverifiable},
	} {
		m, h, rec := manager(0)
		id := begun(t, m, api.BeginRequest{})
		h.holds[0].candidates = map[int]Candidate{70: candidate(70, 0)}
		p, err := m.Adopt(t.Context(), id, root, adopting(70), nil)
		if err != nil {
			t.Fatal(err)
		}
		h.watch.mu.Lock()
		h.watch.alive, h.watch.doubt = map[int]bool{70: c.alive}, c.doubt
		h.watch.gone = map[int]map[int]func(){}
		h.watch.mu.Unlock()
		again := New(Config{Host: vanished{h}, Records: rec, Users: memUsers{}, Boot: "b", Bound: time.Second})
		if err := again.Recover(t.Context()); err != nil {
			t.Fatal(err)
		}
		r, err := again.Receipt(t.Context(), id)
		survivors, unsure := 0, 0
		if c.alive {
			survivors = 1
		}
		if c.doubt {
			unsure = 1
		}
		if err != nil || r.State != api.StateLost || r.Complete || len(r.Processes) != 1 || r.Processes[0].ID != p.ID || r.Processes[0].Verdict != c.want ||
			len(r.Survivors) != survivors || r.Counts.Survivors != survivors || r.Counts.Unverifiable != unsure {
			t.Errorf("%s: %+v (%v)", name, r, err)
		}
	}
}
