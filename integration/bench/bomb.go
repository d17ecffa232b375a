package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"pinfold.dev/api"
)

// The fork bomb is bounded by its user's number of processes (RLIMIT_NPROC):
// at the bound every one of them goes on trying to fork.
const (
	bombUID  = 64421 // nobody's
	bombSize = 500
)

// playBomb becomes the bomb: a user of its own, bounded, then the program.
func playBomb(args []string) error {
	if len(args) != 1 {
		return errors.New("bomb: wants a program")
	}
	const rlimitNproc = 6
	if err := syscall.Setrlimit(rlimitNproc, &syscall.Rlimit{Cur: bombSize, Max: bombSize}); err != nil {
		return fmt.Errorf("bound the bomb: %w", err)
	}
	if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(bombUID), syscall.Setuid(bombUID)); err != nil {
		return fmt.Errorf("bound the bomb: %w", err)
	}
	// Under a real-time policy of the bench's it would take the whole machine.
	var param int32
	if _, _, e := syscall.Syscall(syscall.SYS_SCHED_SETSCHEDULER, 0, 0, uintptr(unsafe.Pointer(&param))); e != 0 {
		return fmt.Errorf("bound the bomb: %w", os.NewSyscallError("sched_setscheduler", e))
	}
	return syscall.Exec(args[0], args, nil)
}

// bombs compares the ending of a fork bomb at work.
func (b *bench) bombs(rounds int) error {
	bomb, err := b.programs.bomb()
	if err != nil {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	const grown = bombSize - 20
	got, err := compare(rounds,
		contestant{"pinfold", func() (time.Duration, error) {
			d, err := b.endTurn(grown, exe, "bomb", bomb)
			return d, errors.Join(err, noneLeft())
		}},
		contestant{"cgroup.kill", func() (time.Duration, error) {
			d, err := b.endBare(grown, func(cgroup string, _ int) (time.Duration, error) { return bareKill(cgroup) }, exe, "bomb", bomb)
			return d, errors.Join(err, noneLeft())
		}},
	)
	if err != nil {
		return err
	}
	b.add(against("abandon → receipt (grade cgroup)", fmt.Sprintf("abandon a fork bomb of %d", bombSize), got[0], got[1],
		"bare cgroup.kill of the same bomb", budget{times: 1.5}))
	return nil
}

// noneLeft looks for a live process of the bomb's user, anywhere.
func noneLeft() error {
	dir, err := os.Open("/proc")
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		if _, err := strconv.Atoi(name); err != nil {
			continue
		}
		b, err := os.ReadFile("/proc/" + name + "/status")
		if err == nil && strings.Contains(string(b), fmt.Sprintf("\nUid:\t%d\t", bombUID)) && !strings.Contains(string(b), "\nState:\tZ") {
			return errors.New("a process of the bomb survived: " + name)
		}
	}
	return nil
}

// abandonLaunched compares the ending of n processes that were launched one by
// one, so that each has a cgroup of its own.
func (b *bench) abandonLaunched(n, rounds int) error {
	pause, err := b.programs.herd(1)
	if err != nil {
		return err
	}
	got, err := compare(rounds,
		contestant{"pinfold", func() (time.Duration, error) { return b.endLaunched(n, pause) }},
		contestant{"cgroup.kill", func() (time.Duration, error) { return b.endBareLeaves(n, pause) }},
	)
	if err != nil {
		return err
	}
	b.add(against("abandon → receipt (grade cgroup)", fmt.Sprintf("abandon %d launches, a leaf each", n), got[0], got[1],
		"bare cgroup.kill, then re-reading", killBudget()))
	return nil
}

func (b *bench) endLaunched(n int, program string) (time.Duration, error) {
	turn, err := b.service.begin()
	if err != nil {
		return 0, err
	}
	for range n {
		if _, err := b.service.launch(turn, program); err != nil {
			return 0, err
		}
	}
	time.Sleep(quiet)
	return since(func() error {
		r, err := b.service.abandon(turn)
		if err == nil && b.verbose {
			fmt.Fprintf(os.Stderr, "%d launches: %s\n", n, stages(r))
		}
		return err
	})
}

func (b *bench) endBareLeaves(n int, program string) (time.Duration, error) {
	b.groups++
	path, dir, err := b.place.group("leaves-" + strconv.Itoa(b.groups))
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	for i := range n {
		leaf := path + "/" + strconv.Itoa(i)
		if err := os.Mkdir(leaf, 0o755); err != nil {
			return 0, err
		}
		if _, err := b.holder.start(leaf, program); err != nil {
			return 0, err
		}
	}
	time.Sleep(quiet)
	d, err := bareKill(path)
	if err != nil {
		return 0, err
	}
	return d, errors.Join(b.holder.reaped(), removeTree(path))
}

// stages tells where the time went, as the receipt has it.
func stages(r api.Receipt) string {
	var b strings.Builder
	last := r.AskedAt
	for _, s := range []struct {
		name string
		at   *time.Time
	}{{"fenced", r.FencedAt}, {"killed", r.KilledAt}, {"seen empty", r.SeenEmptyAt}} {
		if s.at != nil {
			fmt.Fprintf(&b, "%s +%s, ", s.name, brief(s.at.Sub(last)))
			last = *s.at
		}
	}
	fmt.Fprintf(&b, "%d rounds, %s", r.Rounds, r.Mechanism)
	return b.String()
}
