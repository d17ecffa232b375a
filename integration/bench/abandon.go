package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// quiet is how long the machine is left alone before something is ended, so
// that nobody pays for what went before.
const quiet = 10 * time.Millisecond

// killBudget is that of an ending, 1 to 5,000 processes.
func killBudget() budget { return budget{1.1, time.Millisecond} }

// abandonSleepers compares the ending of n processes: all born of one launch,
// in one cgroup, with one subreaper above them.
func (b *bench) abandonSleepers(n, rounds int) error {
	herd, err := b.programs.herd(n)
	if err != nil {
		return err
	}
	got, err := compare(rounds,
		contestant{"pinfold", func() (time.Duration, error) { return b.endTurn(n, herd) }},
		contestant{"cgroup.kill", func() (time.Duration, error) {
			return b.endBare(n, func(cgroup string, _ int) (time.Duration, error) { return bareKill(cgroup) }, herd)
		}},
		contestant{"tree kill", func() (time.Duration, error) {
			return b.endBare(n, func(_ string, root int) (time.Duration, error) { return treeKill(root) }, herd)
		}},
	)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("abandon %s", count(n))
	const group = "abandon → receipt (grade cgroup)"
	b.add(against(group, what, got[0], got[1], "bare cgroup.kill, then re-reading", killBudget()),
		against(group, what, got[0], got[2], "psutil-style tree kill", budget{times: 1}))
	return nil
}

func count(n int) string {
	if n == 1 {
		return "1 sleeper"
	}
	return strconv.Itoa(n) + " sleepers"
}

// endTurn makes a turn of n processes and ends it.
func (b *bench) endTurn(n int, argv ...string) (time.Duration, error) {
	turn, err := b.service.begin()
	if err != nil {
		return 0, err
	}
	if _, err := b.service.launch(turn, argv...); err != nil {
		return 0, err
	}
	if err := b.bornTurn(turn, n); err != nil {
		return 0, err
	}
	time.Sleep(quiet)
	return since(func() error {
		r, err := b.service.abandon(turn)
		if err == nil && b.verbose {
			fmt.Fprintf(os.Stderr, "%d: %s\n", n, stages(r))
		}
		return err
	})
}

// bornTurn waits until a turn holds n processes.
func (b *bench) bornTurn(turn string, n int) error {
	t, err := b.service.client.Turn(context.Background(), turn)
	if err != nil {
		return err
	}
	return eventually(fmt.Sprintf("%d members in the turn", n), func() bool {
		return members(filepath.Join(t.Cgroup, "work")) >= n
	})
}

// endBare makes the same below the holder, and ends it with end.
func (b *bench) endBare(n int, end func(cgroup string, root int) (time.Duration, error), argv ...string) (time.Duration, error) {
	b.groups++
	path, dir, err := b.place.group("bare-" + strconv.Itoa(b.groups))
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	leaf := filepath.Join(path, "leaf")
	if err := os.Mkdir(leaf, 0o755); err != nil {
		return 0, err
	}
	pid, err := b.holder.start(leaf, argv...)
	if err != nil {
		return 0, err
	}
	if err := eventually(fmt.Sprintf("%d members in the cgroup", n), func() bool { return members(path) >= n }); err != nil {
		return 0, err
	}
	time.Sleep(quiet)
	d, err := end(path, pid)
	if err != nil {
		return 0, err
	}
	if err := b.holder.reaped(); err != nil {
		return 0, err
	}
	return d, removeTree(path)
}
