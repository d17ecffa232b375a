package containment

import (
	"context"
	"runtime/debug"
	"time"

	"pinfold.dev/internal/fault"
)

// putAway lets go of a turn that is over: of its keeper and its empty cgroup,
// then, when the receipt is stored, of its record. A service that is killed in
// between is followed by one that finds the record and goes on here.
func (m *Manager) putAway(t *turn, stored bool) {
	t.mu.Lock()
	h := t.over
	t.over = nil
	t.mu.Unlock()
	for wait := 100 * time.Millisecond; h != nil; wait = min(2*wait, time.Minute) {
		err := remove(h)
		if err == nil {
			break
		}
		m.log.Warn("remove the cgroup of a turn that is over", "turn", t.id, "error", err)
		select {
		case <-m.stop:
			return
		case <-time.After(wait):
		}
	}
	fault.Point("putaway.removed")
	for wait := time.Second; !stored; wait = min(2*wait, time.Minute) { // a full disk may have room again
		select {
		case <-m.stop:
			return
		case <-time.After(wait):
		}
		stored = m.save(t) == nil
	}
	m.archive(t)
}

func remove(h Hold) error {
	ctx, cancel := context.WithTimeout(context.Background(), tidyTime)
	defer cancel()
	if err := h.Release(ctx); err != nil {
		return err
	}
	return h.Remove(ctx)
}

// archive moves an ended turn into the history and out of memory.
func (m *Manager) archive(t *turn) {
	m.outputsOver(t)
	m.toldAll(t)
	t.saveMu.Lock()
	defer t.saveMu.Unlock()
	if err := m.cfg.Records.Archive(t.id); err != nil {
		m.log.Error("move an ended turn to the history; it stays in memory and in the runtime directory", "turn", t.id, "error", err)
		return
	}
	fault.Point("putaway.archived")
	t.archived = true
	m.drop(t.id)
	m.toldNoMore(t)
	if len(t.procs) >= manyProcs {
		time.AfterFunc(answered, giveBack)
	}
}

// giveBack returns memory to the system. What pools hold goes with the second
// collection only.
func giveBack() {
	debug.FreeOSMemory()
	debug.FreeOSMemory()
}

// answered is when the answers about a turn have been read.
const answered = time.Second

// manyProcs is how many launches make a turn large: its record was encoded and
// read back whole, tens of megabytes of which the runtime would keep for later.
const manyProcs = 1000
