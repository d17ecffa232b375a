package crash

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pinfold.dev/api"
)

// TestCrash dies at every point.
func TestCrash(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make cgroups")
	}
	all := plans(points(t))
	if testing.Short() {
		all = quick(all)
	}
	two := make(chan struct{}, 2)
	for _, p := range all {
		t.Run(p.String(), func(t *testing.T) {
			t.Parallel()
			two <- struct{}{}
			defer func() { <-two }()
			l := newLife(t, p)
			l.live()
			if !l.reached() {
				t.Errorf("the point was never reached: have a plan that comes to it, or say why there is none (plan_test.go)")
			}
		})
	}
}

// live is a whole life of a service and its client.
func (l *life) live() {
	l.start()
	l.settleNeighbour()
	if l.plan.first != "" && l.plan.first != "rmdir.done" {
		touch(l.t, l.first())
	}
	l.arm(atBegin)
	l.turn = l.begin("the turn")
	l.arm(atLaunch)
	l.launches()
	l.disturb()
	if l.plan.first == "rmdir.done" {
		touch(l.t, l.first())
	}
	l.arm(atEnd)
	if l.plan.full {
		l.obstruct()
	}
	r := l.end()
	l.settle(&r)
	l.over(r)
	l.adopteesOver()
	l.stop()
}

// obstruct has no record of the turn written any more, as on a full disk.
func (l *life) obstruct() {
	if err := os.Mkdir(filepath.Join(l.dir, "run", "turns", l.turn.ID, "record.json.new"), 0o700); err != nil {
		l.t.Fatal(err)
	}
}

// settleNeighbour begins the turn beside, whose process is to live to the end. Its
// keeper has nothing more to do by then: no point is its to come to.
func (l *life) settleNeighbour() {
	l.neighbour = l.begin("neighbour")
	l.must("launch the neighbour's process", func(ctx context.Context) (err error) {
		l.beside, err = l.Launch(ctx, l.neighbour.ID, api.LaunchRequest{IdempotencyKey: "n", Cwd: "/", Argv: []string{"sleep", "100000"},
			Stdio: api.Stdio{Stdin: api.Stream{Mode: api.StdioPipe}}})
		if err == nil { // its keeper takes this once it is done with all else
			_, err = l.WriteStdin(ctx, l.neighbour.ID, l.beside.ID, strings.NewReader("x"), false)
		}
		return err
	})
	l.fds = l.openFDs()
}

// launches launches all there is.
func (l *life) launches() {
	all := l.payloads()
	for _, p := range all {
		if !l.launch(p) {
			continue
		}
		switch p.key {
		case "terminal", "pipe":
			l.say(p)
		}
		if p.code >= 0 {
			l.exited(p)
		} else {
			eventually(l.t, p.key+" runs", func() bool { return l.startsOf(p) > 0 || l.keeperLost() })
		}
	}
	l.refused()
	if l.plan.bare == "" { // a keeper is no parent of what joins
		l.join()
	}
	if l.plan.adopts {
		l.adopt()
	}
	if l.plan.job {
		l.promote()
	}
	l.recorded()
}

// disturb is what happens to the turn before its end.
func (l *life) disturb() {
	switch l.plan.stage {
	case atRestart:
		l.kill()
		l.arm(atRestart)
		l.must("look after a restart", func(ctx context.Context) error { _, err := l.Host(ctx); return err })
	case atLoss:
		l.arm(atLoss)
		l.killKeepers()
		eventually(l.t, "the keeper's loss is told", func() bool {
			v, err := l.Turn(context.Background(), l.turn.ID)
			if err != nil {
				l.revive()
			}
			return len(v.Degraded) > len(l.turn.Degraded)
		})
	case atRemoval:
		l.kill()
		l.killed.Store(l.turn.KeeperPID, true)
		removeTree(l.turn.Cgroup)
		removeTree(l.out) // whoever had left it would be nobody's
		l.arm(atRemoval)
		l.must("look after the removal", func(ctx context.Context) error { _, err := l.Host(ctx); return err })
	}
}

// settle brings a service that is to die after the receipt to do so, and gets
// the receipt that holds in the end.
func (l *life) settle(r *api.Receipt) {
	eventually(l.t, "the turn is put away", func() bool {
		if !exists(filepath.Join(l.dir, "run", "turns", l.turn.ID)) {
			return true
		}
		if _, err := l.Host(context.Background()); err != nil {
			l.revive()
		}
		return false
	})
	l.must("read the receipt", func(ctx context.Context) (err error) {
		*r, err = l.Receipt(ctx, l.turn.ID)
		return err
	})
}
