package reaper

import "pinfold.dev/internal/sys"

// reapBatch is how many children are reaped before the loop looks at what else
// there is.
const reapBatch = 64

// reap reaps a batch, and tries to remove leaves that may have emptied: those of
// the batch, and some others, whose last member an orphan may have been.
func (k *keeper) reap() {
	n := k.reapReady(reapBatch)
	k.reapDue = n == reapBatch
	k.sweepLeaves(n + 16)
	k.sweeps = len(sweepPauses)
}

// sweepPauses are how long the loop waits, in ms, before it tries leaves again
// that were not empty: the kernel may count what was reaped a moment longer.
// After the last one they wait for the next reaping.
var sweepPauses = [...]int{100, 10, 1}

// sweepAgain tries leaves once more, after a pause.
func (k *keeper) sweepAgain() {
	k.sweeps--
	k.sweepLeaves(64)
}

// sweepPause is the time until the next try, or -1.
func (k *keeper) sweepPause() int {
	if k.sweeps == 0 || len(k.emptied) == 0 {
		return -1
	}
	return sweepPauses[k.sweeps-1]
}

// reapReady reaps up to n children that have ended, and returns how many.
func (k *keeper) reapReady(n int) int {
	for i := range n {
		c, err := sys.Waitid(sys.PAll, 0, sys.WExited|sys.WNoHang|sys.WAll)
		if err != nil || c.PID == 0 {
			return i
		}
		k.reaped++
		k.garbage.did(0)
		p := k.byPID[c.PID]
		if p == nil {
			continue // an orphan
		}
		delete(k.byPID, c.PID)
		if p.deciding() {
			p.ended = &c
			k.decide(p) // its pipe has ended with it
			continue
		}
		k.end(p, &c)
	}
	return n
}
