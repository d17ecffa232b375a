package reaper

import (
	"slices"
	"syscall"
	"time"

	"pinfold.dev/internal/fault"
	"pinfold.dev/internal/sys"
	"pinfold.dev/internal/wire"
)

// A keeper of a turn without a cgroup ends it by its own children. Each of them
// is unreaped as long as this goroutine does not reap it, so its number is its
// own; and whoever loses its parent becomes one of them. So a keeper that has no
// child left has no descendant either, which the kernel tells without /proc.
const (
	endPause = 1       // ms between two rounds
	scanStep = 1 << 15 // numbers that are asked for in one go, where /proc does not list them
	pidLimit = 1 << 22 // PID_MAX_LIMIT of include/linux/threads.h
)

// ending is an OpEnd under way.
type ending struct {
	question
	until time.Time
	told  wire.Ended
}

// end takes an OpEnd. Other signals than SIGKILL are sent once.
func (k *keeper) endChildren(q question, e *wire.End) *wire.Error {
	sig := syscall.Signal(e.Number)
	if sig <= 0 || sig > 64 {
		return refusal(wire.ErrProtocol, "no such signal: "+itoa(e.Number))
	}
	if !k.work.isBare() {
		return refusal(wire.ErrProtocol, "end: the turn has a cgroup")
	}
	fault.Point("end.taken")
	x := ending{question: q, until: time.Now().Add(time.Duration(e.BoundMS) * time.Millisecond)}
	if sig == syscall.SIGKILL {
		k.endings = append(k.endings, x)
		return nil
	}
	for scanned := false; !scanned; {
		scanned = k.signalChildren(sig, &x.told)
	}
	x.told.Alone = k.deserted()
	k.send(q.c, wire.Message{ID: q.id, Ended: &x.told}, nil)
	return nil
}

// runEndings is one round of all of them.
func (k *keeper) runEndings() {
	for k.reapReady(reapBatch) == reapBatch {
	}
	left := k.endings[:0]
	for _, x := range k.endings {
		switch {
		case k.deserted():
			x.told.Alone = true
		case time.Now().Before(x.until):
			if k.signalChildren(syscall.SIGKILL, &x.told) {
				x.told.Rounds++
			}
			left = append(left, x)
			continue
		default:
			x.told.Left, x.told.Unseen = k.below()
		}
		k.send(x.c, wire.Message{ID: x.id, Ended: &x.told}, nil)
		fault.Point("end.told")
	}
	k.endings = left
}

// deserted tells that nobody below the keeper lives: it has no child, or, as while a
// tracer holds them, only such as have ended and cannot be reaped yet. Those have
// given their own children away before, so a list that reads the same before and
// after that was seen misses nobody.
func (k *keeper) deserted() bool {
	if childless() {
		return true
	}
	if !k.proc {
		return false
	}
	self := syscall.Getpid()
	before, err := k.childrenOf(self)
	if err != nil || len(before) == 0 {
		return false
	}
	for _, pid := range before {
		k.garbage.did(2 * fileBytes)
		b, err := sys.ProcFile(pid, "stat")
		if err != nil {
			return false
		}
		st, err := sys.ParseStat(b)
		if err != nil || st.PPID != self || st.State != 'Z' || st.Threads > 1 {
			return false
		}
	}
	after, err := k.childrenOf(self)
	return err == nil && slices.Equal(before, after)
}

// below lists who is below the keeper, as far as that can be seen.
func (k *keeper) below() (out []wire.Member, unseen string) {
	out, _, err := k.outsiders()
	if err == nil {
		return out, ""
	}
	for _, p := range k.order {
		listed := func(m wire.Member) bool { return m.PID == p.started.PID }
		if p.exit == nil && !slices.ContainsFunc(out, listed) {
			out = append(out, wire.Member{PID: p.started.PID, Process: p.started.Process})
		}
	}
	return out, err.Error()
}

// signalChildren sends to each child, and SIGCONT after what does not end it; as
// init of a PID namespace, to everybody in that. It tells whether it has come
// round: without a list of children it asks for some numbers at a time.
func (k *keeper) signalChildren(sig syscall.Signal, told *wire.Ended) (round bool) {
	if k.opts.Namespace {
		told.Whole = true
		_ = sys.SignalNamespace(sig)
		if sig != syscall.SIGKILL {
			_ = sys.SignalNamespace(syscall.SIGCONT)
		}
	}
	pids, round, err := k.children()
	if err != nil {
		told.Unseen = err.Error()
	}
	if k.scan == 0 {
		k.scanned = 0
	}
	for _, pid := range pids {
		k.scanned++
		if told.Whole {
			continue
		}
		_ = sys.SignalChild(pid, sig)
		if sig != syscall.SIGKILL {
			_ = sys.SignalChild(pid, syscall.SIGCONT)
		}
	}
	told.Seen = max(told.Seen, k.scanned)
	return round
}

// children lists them: from /proc, or else, some at a time, by asking for each
// number whether it is one.
func (k *keeper) children() (pids []int, round bool, err error) {
	if k.proc {
		if pids, err = k.childrenOf(syscall.Getpid()); err == nil {
			return pids, true, nil
		}
	}
	most := pidMax()
	k.garbage.did(fileBytes)
	end := min(k.scan+scanStep, most)
	for pid := max(k.scan, 2); pid < end; pid++ {
		if isChild(pid) {
			pids = append(pids, pid)
		}
	}
	if k.scan = end; end == most {
		k.scan = 0
	}
	return pids, k.scan == 0, nil
}

// isChild tells whether a number is that of a child of ours that has not ended.
func isChild(pid int) bool {
	c, err := sys.Waitid(sys.PPid, pid, sys.WExited|sys.WNoHang|sys.WNoWait|sys.WAll)
	return err == nil && c.PID == 0
}

// pidMax is the number that all pids are below.
func pidMax() int {
	if b, err := sys.ReadFileAt(sys.AtFDCWD, "/proc/sys/kernel/pid_max"); err == nil {
		if n, err := sys.ParseNumbers(b); err == nil && len(n) == 1 && n[0] > 2 {
			return n[0]
		}
	}
	return pidLimit
}
