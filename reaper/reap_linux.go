package reaper

import (
	"errors"
	"syscall"

	"pinfold.dev/internal/sys"
)

// reapBatch is how many children are reaped before somebody else gets the lock.
const reapBatch = 64

// reap waits for children, for ever. It only peeks without the lock.
func (k *keeper) reap() {
	for {
		_, err := sys.Waitid(sys.PAll, 0, sys.WExited|sys.WNoWait|sys.WAll)
		switch {
		case err == nil:
			for k.reapSome() {
			}
		case errors.Is(err, syscall.ECHILD):
			k.awaitChild()
		default:
			logLine(err.Error())
			sys.Nanosleep(1e8)
		}
	}
}

// awaitChild waits until there is a child. Without one there is no descendant
// either, so the next comes of a launch.
func (k *keeper) awaitChild() {
	k.mu.Lock()
	_, err := sys.Waitid(sys.PAll, 0, sys.WExited|sys.WNoHang|sys.WNoWait|sys.WAll)
	k.childish = errors.Is(err, syscall.ECHILD)
	wait := k.childish
	k.mu.Unlock()
	if wait {
		var b [8]byte
		_, _ = syscall.Read(k.children, b[:])
	}
}

// reapSome reaps a batch and tells whether there may be more.
func (k *keeper) reapSome() (more bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	guard("reaper", func() { more = k.reapReady(reapBatch) == reapBatch })
	guard("reaper", func() { k.sweepLeaves(16) })
	return more
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
