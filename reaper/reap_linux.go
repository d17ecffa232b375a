package reaper

import "pinfold.dev/internal/sys"

// reapBatch is how many children are reaped before the loop looks at what else
// there is.
const reapBatch = 64

// reap reaps a batch, and tries to remove leaves that may have emptied.
func (k *keeper) reap() {
	k.reapDue = k.reapReady(reapBatch) == reapBatch
	k.sweepLeaves(16)
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
