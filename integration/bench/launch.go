package main

import (
	"fmt"
	"os/exec"
	"sync"
	"time"
)

// launchOne compares one launch into an open turn, from the request until the
// exit is seen, with os/exec.
func (b *bench) launchOne(rounds int) error {
	exit, err := b.programs.exit()
	if err != nil {
		return err
	}
	turn, err := b.service.begin()
	if err != nil {
		return err
	}
	for _, p := range []struct{ name, path string }{{"a static no-op", exit}, {"/bin/true", "/bin/true"}} {
		got, err := compare(rounds,
			contestant{"pinfold", func() (time.Duration, error) {
				return since(func() error { return b.service.runOne(turn, p.path) })
			}},
			contestant{"os/exec", func() (time.Duration, error) { return since(exec.Command(p.path).Run) }},
		)
		if err != nil {
			return err
		}
		b.add(against("launch (grade "+string(b.service.grade)+")", "launch "+p.name+", exit seen", got[0], got[1],
			"os/exec of the same", budget{times: 1.5}))
	}
	_, err = b.service.abandon(turn)
	return err
}

// workers is how many launch at a time.
const workers = 16

// launchMany compares launches per second.
func (b *bench) launchMany(rounds int) error {
	exit, err := b.programs.exit()
	if err != nil {
		return err
	}
	turns := make([]string, workers)
	for i := range turns {
		if turns[i], err = b.service.begin(); err != nil {
			return err
		}
	}
	const each = 25
	got, err := compare(rounds,
		contestant{"own turns", func() (time.Duration, error) {
			return crowd(each, func(i int) error { return b.service.runOne(turns[i], exit) })
		}},
		contestant{"one turn", func() (time.Duration, error) {
			return crowd(each, func(int) error { return b.service.runOne(turns[0], exit) })
		}},
		contestant{"os/exec", func() (time.Duration, error) {
			return crowd(each, func(int) error { return exec.Command(exit).Run() })
		}},
	)
	if err != nil {
		return err
	}
	for i, what := range []string{"launches/s, 16 clients, a turn each", "launches/s, 16 clients, one turn"} {
		b.add(rates("launch (grade "+string(b.service.grade)+")", what, got[i], got[2], workers*each))
	}
	for _, turn := range turns {
		if _, err := b.service.abandon(turn); err != nil {
			return err
		}
	}
	return nil
}

// rates makes a row of how many there are in a second: the ratio is ours to
// theirs, and at least 0.7 is allowed.
func rates(group, what string, ours, theirs samples, n int) row {
	per := func(d time.Duration) float64 { return float64(n) / d.Seconds() }
	o, t := per(ours.median()), per(theirs.median())
	const least = 0.7
	r := row{Group: group, What: what, Peer: "os/exec loop, 16 workers", Ratio: fmt.Sprintf("%.2f", o/t), Budget: "≥ 0.7 x",
		Ours: fmt.Sprintf("%.0f (%.0f)", o, per(ours.p90())), Theirs: fmt.Sprintf("%.0f (%.0f)", t, per(theirs.p90())), Stands: "ok"}
	if o < least*t {
		r.Stands = fmt.Sprintf("short by %.0f %%", 100*(1-o/(least*t)))
	}
	return r
}

// crowd has all workers do something so many times each.
func crowd(each int, do func(worker int) error) (time.Duration, error) {
	var wg sync.WaitGroup
	errs := make(chan error, workers)
	start := time.Now()
	for i := range workers {
		wg.Go(func() {
			for range each {
				if err := do(i); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	d := time.Since(start)
	select {
	case err := <-errs:
		return 0, err
	default:
		return d, nil
	}
}
