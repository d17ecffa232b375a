package turns

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"pinfold.dev/api"
)

// raceRounds is how many turns are abandoned under launches. A scope takes its
// time to make, and changes nothing of the race.
func raceRounds(g api.Grade) int {
	n := max(1000/run.slow, 50)
	if g == api.GradeScope {
		n /= 4
	}
	if testing.Short() {
		n = max(n/10, 10)
	}
	return n
}

// raceLaunch is one launch of the race, and what became of it.
type raceLaunch struct {
	marker string // the file that it makes before anything else
	p      api.Process
	err    error
}

// A turn is abandoned while launches into it arrive. Whatever ran is in the
// receipt, and nothing of it lives.
func TestAbandonWhileLaunching(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{})
		newCanary(t, s)
		newNeighbour(t, s)
		rounds, ran, refused := raceRounds(g), 0, 0
		idle := fds(t, s.proc.pid)
		began := time.Now()
		span := patience(12 * time.Millisecond)
		for i := range rounds {
			a, b := raceOnce(t, s, i, span)
			ran, refused = ran+a, refused+b
			if ran <= i { // a busy machine takes longer than that to launch
				span = min(2*span, patience(time.Second))
			}
			if t.Failed() {
				t.Fatalf("in round %d of %d", i, rounds)
			}
		}
		t.Logf("%d turns, %d launches ran, %d were refused, in %v", rounds, ran, refused, time.Since(began).Round(time.Millisecond))
		if ran < rounds || refused < rounds/2 {
			t.Errorf("of %d rounds, %d launches ran and %d were refused: that is no race", rounds, ran, refused)
		}
		s.Close()
		eventually(t, "the service has as many descriptors as before", func() bool { return fds(t, s.proc.pid) <= idle })
	})
}

// raceOnce is one round, which is abandoned within a span; it returns how many
// launches ran and how many were refused.
func raceOnce(t *testing.T, s *service, round int, span time.Duration) (ran, refused int) {
	const launchers = 3
	x := s.begin(t, api.BeginRequest{Label: "race"})
	dir := files(t, "markers")[0]
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(filepath.Dir(dir))
	var all [launchers][]raceLaunch
	var wg sync.WaitGroup
	for i := range launchers {
		wg.Go(func() { all[i] = x.launchUntilOver(t.Context(), fmt.Sprintf("%s/%d", dir, i)) })
	}
	time.Sleep(rand.N(span))
	r, err := s.Abandon(t.Context(), x.ID, api.AbandonRequest{})
	if err != nil {
		t.Fatal(err)
	}
	made := markers(t, dir) // before the last launchers are through
	wg.Wait()
	x.over(r)
	told := map[string]api.ReceiptProcess{} // by marker
	for _, p := range r.Processes {
		told[p.Argv[3]] = p
	}
	for _, l := range slices.Concat(all[:]...) {
		p, ok := told[l.marker]
		switch {
		case l.err == nil && (!ok || p.ID != l.p.ID || p.Identity != l.p.Identity):
			t.Errorf("round %d: %s was launched, the receipt has %+v", round, l.p.ID, p)
		case l.err == nil:
			ran++
		default:
			wantRefusal(t, l.err)
			refused++
		}
	}
	for _, m := range made {
		if _, ok := told[m]; !ok {
			t.Errorf("round %d: %s ran without being in the receipt", round, m)
		}
	}
	if late := markers(t, dir); len(late) != len(made) {
		t.Errorf("round %d: something ran after the receipt: %q, then %q", round, made, late)
	}
	return ran, refused
}

// launchUntilOver launches, one after the other, until the turn takes no more.
func (x *turn) launchUntilOver(ctx context.Context, name string) (out []raceLaunch) {
	for n := 0; ; n++ {
		l := raceLaunch{marker: fmt.Sprintf("%s.%d", name, n)}
		l.p, l.err = x.s.Launch(ctx, x.ID, api.LaunchRequest{Cwd: "/",
			Argv: []string{"/bin/sh", "-c", `: >"$0"; exec sleep 3600`, l.marker}})
		if out = append(out, l); l.err != nil {
			return out
		}
	}
}

func markers(t *testing.T, dir string) (out []string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		out = append(out, filepath.Join(dir, e.Name()))
	}
	return out
}

// wantRefusal checks that a launch was refused because its turn ends.
func wantRefusal(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, api.ErrTurnOver) {
		t.Errorf("a launch into an ending turn: %v, want the code %s", err, api.CodeTurnOver)
	}
}
