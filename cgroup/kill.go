//go:build linux

package cgroup

// How a turn's processes are ended. The rules of this file:
//
//   - Over is what cgroup.events says, never that a signal was sent.
//   - cgroup.kill reaches all at once, forks in progress included, in the
//     cgroup and those below. One write is not always enough: a process whose
//     main thread has exited survives it (the signal goes to the zombie), and
//     kernels before 6.14 have a race with fork. So it is written again, and
//     whoever is left is signalled one by one.
//   - One by one means: number, then handle, then membership seen through the
//     handle, then the signal through the handle.
//   - Only the kernel is needed: no fork, no new thread, no disk, no bus.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys"
	"pinfold.dev/pidfd"
)

// The mechanisms that Killed names.
const (
	byKill    = "cgroup.kill"
	byMembers = "cgroup.kill+members"
	byFreeze  = "freeze+members"
)

// Killed is what a kill did and saw.
type Killed struct {
	// Mechanism is cgroup.kill; cgroup.kill+members when members had to be
	// signalled one by one after it; freeze+members where there is no
	// cgroup.kill (before Linux 5.14) or it was refused.
	Mechanism string
	Rounds    int
	Seen      int // members before the first signal, those included that we cannot see
	KilledAt  time.Time
	EmptyAt   time.Time // zero when it was not seen empty
	Survivors []api.Survivor
	Notes     []string
}

// killing is one Kill under way.
type killing struct {
	Killed
	dir    *Dir
	end    time.Time
	loc    pidfd.Locator
	refuse error // why cgroup.kill cannot be used
	frozen bool
}

// Kill ends every process in it and below and waits until it is seen empty.
// When bound runs out first, EmptyAt is zero, Survivors says who is left and
// the error is nil; when ctx is done first, the error is ctx's. Our own cgroup
// and its ancestors are refused with pidfd.ErrRefused.
//
// A cgroup that was killed must not be launched into again: from Linux 6.14, and
// stable kernels of February 2025 on, what is cloned into it dies at birth.
func (d *Dir) Kill(ctx context.Context, bound time.Duration) (Killed, error) {
	end := time.Now().Add(bound)
	l, listErr := d.list("cgroup.procs")
	for err := d.refuse(l); err != nil; err = d.refuse(l) {
		if !sys.Short(err) || over(ctx, end) != nil {
			return Killed{}, err
		}
		sys.Nanosleep(int64(pollFirst))
		l, listErr = d.list("cgroup.procs")
	}
	now := time.Now()
	k := &killing{dir: d, end: end}
	k.Mechanism, k.Seen, k.KilledAt = byKill, len(l.pids)+l.hidden, now
	if listErr != nil { // too many descriptors, say: one write may do all the same
		k.note("%v", listErr)
	}
	if l.hidden > 0 { // they have no number here, so that nobody else will tell of them
		k.note("%d of those that were to be killed are of a PID namespace that we cannot see", l.hidden)
	}
	defer k.thaw()
	err := k.run(ctx)
	return k.Killed, err
}

// run goes through rounds until the cgroup is empty or the time is over.
func (k *killing) run(ctx context.Context) error {
	left := k.Seen
	for {
		k.Rounds++
		k.killAll()
		if k.refuse != nil {
			k.freeze(ctx)
			k.killMembers()
		}
		var err error
		for shrinking := true; shrinking; {
			if err = k.settle(ctx, left); !errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			shrinking, left = k.shrunk(left)
		}
		switch {
		case err == nil:
			k.EmptyAt = time.Now()
			return nil
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return err
		case !time.Now().Before(k.end):
			k.Survivors = k.dir.Survivors()
			return nil
		case k.refuse == nil:
			k.Mechanism = byMembers
			k.killMembers()
		}
	}
}

// killAll writes cgroup.kill (Linux 5.14). Where that is refused, the reason is
// noted and it is not tried again: ENOENT before 5.14, EACCES or EROFS without
// the right, EOPNOTSUPP in a threaded cgroup. A want of descriptors may pass.
func (k *killing) killAll() {
	if k.refuse != nil {
		return
	}
	err := k.dir.write("cgroup.kill", "1")
	if err == nil || (removed(err) && k.isRemoved()) {
		return
	}
	if sys.Short(err) {
		k.note("cgroup.kill could not be used for a time: %v", err)
		return
	}
	k.refuse = err
	k.Mechanism = byFreeze
	k.note("cgroup.kill cannot be used: %v", err)
}

// isRemoved tells a cgroup that is gone from one without a cgroup.kill.
func (k *killing) isRemoved() bool {
	_, err := k.dir.read("cgroup.procs")
	return removed(err)
}

// freezeFor bounds the wait for a freeze: it is a help, not a condition.
const freezeFor = 20 * time.Millisecond

// freeze holds the members still, so that none forks while the others are
// signalled. A frozen process takes SIGKILL without being thawed.
func (k *killing) freeze(ctx context.Context) {
	if !k.frozen {
		if err := k.dir.write("cgroup.freeze", "1"); err != nil {
			k.note("cgroup.freeze cannot be used: %v", err)
			return
		}
		k.frozen = true
	}
	for end := time.Now().Add(freezeFor); time.Now().Before(end) && ctx.Err() == nil; {
		if frozen, err := k.dir.Frozen(); frozen || err != nil {
			return
		}
		sys.Nanosleep(int64(100 * time.Microsecond))
	}
}

// thaw undoes freeze for those that survived.
func (k *killing) thaw() {
	if k.frozen {
		_ = k.dir.write("cgroup.freeze", "0")
	}
}

// killMembers signals every process that is listed, then those that only their
// threads show: a process whose main thread has exited and that was then moved
// here is in cgroup.threads alone.
func (k *killing) killMembers() {
	kill := func(h *pidfd.Handle, _ Pid) error { return h.Signal(syscall.SIGKILL) }
	done := make(map[int]bool)
	for _, each := range []struct {
		file string
		pass signalPass
	}{{"cgroup.procs", signalProcess}, {"cgroup.threads", signalThread}} {
		l, err := k.dir.list(each.file)
		if err == nil {
			_, err = signalAll(l, &k.loc, done, each.pass, kill)
		}
		if err != nil {
			k.note("%v", err)
		}
		if l.hidden > 0 {
			k.note("%s shows members of a PID namespace that we cannot see", each.file)
		}
	}
}

// A signal is given this long before somebody looks who is left: taking a
// process down is some 40 µs of work, and looking, or a second signal, only
// takes the kernel's time from it.
const (
	settleFor  = 3 * time.Millisecond
	settleEach = 60 * time.Microsecond
	settleMost = 50 * time.Millisecond // one that escaped forks on meanwhile
)

// settle waits for the cgroup to become empty, with left processes in it. The
// wait grows with the rounds, so that those that cannot die cost little.
func (k *killing) settle(ctx context.Context, left int) error {
	wait := settleFor<<min(k.Rounds-1, 6) + min(time.Duration(left)*settleEach, settleMost)
	end := time.Now().Add(wait)
	if end.After(k.end) {
		end = k.end
	}
	return k.dir.awaitEmpty(ctx, end)
}

// shrunk tells whether fewer are left than before: they are dying, and want time.
func (k *killing) shrunk(before int) (bool, int) {
	if !time.Now().Before(k.end) {
		return false, before
	}
	seen, hidden, err := k.dir.Count()
	n := seen + hidden
	return err == nil && n > 0 && n < before, n
}

// note keeps a remark for the receipt, each once and not without end.
func (k *killing) note(format string, args ...any) {
	s := fmt.Sprintf(format, args...)
	for _, have := range k.Notes {
		if have == s {
			return
		}
	}
	if len(k.Notes) < 8 {
		k.Notes = append(k.Notes, s)
	}
}
