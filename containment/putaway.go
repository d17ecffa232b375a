package containment

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
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
		stored = m.keep(t) == nil
	}
	m.archive(t)
}

// historyTime bounds the wait for the history, on a real disk: busy ones take seconds.
const historyTime = 10 * time.Second

// keep saves the record. That of a turn that is over, and for which there is no
// room, goes into the history at once: whoever is told of the end may rely on it.
// A disk that hangs is not waited for.
func (m *Manager) keep(t *turn) error {
	err := m.save(t)
	t.mu.Lock()
	over := t.isOver()
	t.mu.Unlock()
	if err == nil || !over {
		return err
	}
	m.log.Warn("save the record of a turn that is over; it goes into the history at once", "turn", t.id, "error", err)
	done := make(chan error, 1)
	go func() { done <- m.putEnded(t) }()
	select {
	case herr := <-done:
		if herr != nil {
			return fmt.Errorf("%w; and in the history: %w", err, herr)
		}
		return nil
	case <-time.After(historyTime):
		return fmt.Errorf("%w; and the history was not written within %v", err, historyTime)
	}
}

// isOver tells that nothing of the turn is held any more, and that there is a
// receipt; the lock is held.
func (t *turn) isOver() bool {
	return t.view.State.Terminal() && t.hold == nil && t.receipt != nil
}

func (m *Manager) putEnded(t *turn) error {
	return t.write(m.cfg.Boot, func(r Record) error {
		fault.Point("ended.put")
		err := m.cfg.Records.PutEnded(r)
		fault.Point("ended.there")
		return err
	})
}

func remove(h Hold) error {
	ctx, cancel := context.WithTimeout(context.Background(), tidyTime)
	defer cancel()
	if err := h.Release(ctx); err != nil {
		return err
	}
	return h.Remove(ctx)
}

// archive moves an ended turn into the history and out of memory. What cannot
// be moved now is tried again.
func (m *Manager) archive(t *turn) {
	m.outputsOver(t)
	m.toldAll(t)
	if err := m.shelve(t, false); err != nil {
		m.log.Error("move an ended turn to the history; it stays in memory and in the runtime directory, and is moved later", "turn", t.id, "error", err)
		m.later(t)
	}
}

// shelve is the move itself; again has the record written anew before, in case
// that is what cannot be read.
func (m *Manager) shelve(t *turn, again bool) error {
	if again {
		if err := m.keep(t); err != nil {
			return err
		}
	}
	t.saveMu.Lock()
	defer t.saveMu.Unlock()
	if err := m.cfg.Records.Archive(t.id); err != nil {
		return err
	}
	fault.Point("putaway.archived")
	t.archived = true
	m.drop(t.id)
	m.toldNoMore(t)
	if len(t.procs) >= manyProcs {
		time.AfterFunc(answered, giveBack)
	}
	return nil
}

// shelf has the turns that could not be moved to the history yet.
type shelf struct {
	mu    sync.Mutex
	turns []*turn
	timer *time.Timer
	wait  time.Duration
}

// How often it is tried again, and how many failures end a try: where the disk
// is full, the next one fails as well.
const (
	shelfWait    = time.Second
	shelfLongest = time.Minute
	shelfTries   = 8
)

func (m *Manager) later(t *turn) {
	s := &m.unshelved
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turns = append(s.turns, t)
	if s.timer == nil {
		s.wait = shelfWait
		s.timer = time.AfterFunc(s.wait, m.shelveAgain)
	}
}

// shelveAgain tries all, until too many fail. Those go behind the others.
func (m *Manager) shelveAgain() {
	s := &m.unshelved
	s.mu.Lock()
	todo := s.turns
	s.turns = nil
	s.mu.Unlock()
	var failed []*turn
	for len(todo) > 0 && len(failed) < shelfTries && !m.stopped() {
		if err := m.shelve(todo[0], true); err != nil {
			failed = append(failed, todo[0])
		}
		todo = todo[1:]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turns = append(append(s.turns, todo...), failed...)
	s.timer = nil
	if len(s.turns) == 0 || m.stopped() {
		return
	}
	if s.wait = min(2*s.wait, shelfLongest); len(failed) == 0 {
		s.wait = shelfWait
	}
	s.timer = time.AfterFunc(s.wait, m.shelveAgain)
}

func (s *shelf) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer != nil {
		s.timer.Stop()
	}
}

func (m *Manager) stopped() bool {
	select {
	case <-m.stop:
		return true
	default:
		return false
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
