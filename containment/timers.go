package containment

import (
	"errors"
	"fmt"
	"time"

	"pinfold.dev/api"
)

// One timer for each turn whose clocks have something to tell later; a turn
// without clocks wakes nobody up.

// wind has the turn's clocks looked at when they next have something to tell.
func (t *turn) wind() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rearm()
}

// rearm is wind with the lock held. A turn that is not held, or not yet, has
// nothing to end.
func (t *turn) rearm() {
	if t.alarm != nil {
		t.alarm.Stop()
		t.alarm = nil
	}
	if t.hold == nil || t.tick == nil {
		return
	}
	if at, ok := t.clocks.wake(t.looking); ok {
		t.alarm = time.AfterFunc(max(0, at-t.clock()), t.tick)
	}
}

// stopClocks stops what could end an open turn; the lock is held.
func (t *turn) stopClocks() {
	t.clocks.end(t.clock())
	t.client.leave()
	t.rearm()
}

// unwatch lets nothing come from the turn's clocks and client any more.
func (t *turn) unwatch() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.client.leave()
	if t.alarm != nil {
		t.alarm.Stop()
	}
}

// shownClocks are the clocks for callers; the lock is held.
func (t *turn) shownClocks() []api.Clock {
	if t.clock == nil {
		return nil
	}
	return t.clocks.show(t.clock(), time.Now(), t.view.State == api.StateOpen)
}

// stood is how long the turn has been frozen so far.
func (t *turn) stood() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.clocks.Stood
}

// lookAtClocks is what the timer calls: it starts a look at what the turn does,
// and what has to be done because a clock has run out.
func (m *Manager) lookAtClocks(t *turn) {
	select {
	case <-m.stop:
		return // the next service goes on
	default:
	}
	t.mu.Lock()
	now := t.clock()
	if c := &t.clocks; t.hold != nil && !t.looking && !c.Frozen && c.looks() && c.lookAt() <= now {
		t.looking = true // a disk that hangs holds up no other clock
		m.wg.Go(func() { m.inspect(t) })
	}
	name, _, ok := t.clocks.due(now)
	if !ok || t.hold == nil {
		t.rearm()
		t.mu.Unlock()
		return
	}
	t.mu.Unlock()
	if name == api.ClockLeftovers {
		m.wg.Go(func() { m.leftoversOver(t) })
		return
	}
	m.ranOut(t, name)
}

// errNotDue tells that a clock has not run out after all.
var errNotDue = errors.New("not due")

// ranOut ends the turn because a clock has run out, unless what renews the clock,
// or the end of the work, came first.
func (m *Manager) ranOut(t *turn, name api.ClockName) {
	err := m.startEndingIf(t, m.ownEnd(t, reasonOf(name)), func() error {
		now, _, ok := t.clocks.due(t.clock())
		if !ok || now != name || t.workDone() {
			return errNotDue
		}
		return nil
	})
	switch {
	case errors.Is(err, errNotDue):
		t.mu.Lock()
		if !t.workDone() { // else its finish is under way
			t.rearm()
		}
		t.mu.Unlock()
	case err != nil:
		m.log.Warn("end a turn whose clock has run out", "turn", t.id, "clock", name, "error", err)
	}
}

// workDone tells whether a process has ended whose end finishes the turn; the
// lock is held.
func (t *turn) workDone() bool {
	for _, p := range t.procs {
		if p.view.FinishesTurn && p.view.Status.State != api.ProcessRunning {
			return true
		}
	}
	return false
}

// leftoversOver ends leftovers whose time is over. Where they cannot be ended, it
// tries again.
func (m *Manager) leftoversOver(t *turn) {
	t.mu.Lock()
	limit := t.clocks.Leftovers.Limit
	if !t.clocks.Leftovers.On || t.hold == nil {
		t.mu.Unlock()
		return
	}
	t.clocks.Leftovers.On = false
	t.mu.Unlock()
	m.log.Info("time of leftovers over", "turn", t.id, "after", limit)
	_, _ = m.endLeftovers(t, fmt.Sprintf("by pinfold: their time, %s, was over", limit))
	t.mu.Lock()
	if t.hold != nil {
		t.clocks.Leftovers.Due, t.clocks.Leftovers.On = t.clock()+leftoversAgain, true
	}
	t.rearm()
	t.mu.Unlock()
}

// leftoversAgain is when those are tried again that could not be ended.
const leftoversAgain = time.Minute

// inspect looks at output, CPU and I/O, as far as they count.
func (m *Manager) inspect(t *turn) {
	s := sample{Output: -1, CPU: -1, IO: -1}
	t.mu.Lock()
	h, by := t.hold, t.clocks.By
	s.At = t.clock()
	t.mu.Unlock()
	for _, a := range by {
		switch {
		case a == api.ActivityOutput:
			s.Output = m.outputTotal(t)
		case (a == api.ActivityCPU || a == api.ActivityIO) && h != nil && s.CPU < 0:
			u := h.Usage()
			s.CPU = u.CPUUsec
			if u.IOReadBytes >= 0 && u.IOWriteBytes >= 0 {
				s.IO = u.IOReadBytes + u.IOWriteBytes
			}
		}
	}
	t.mu.Lock()
	s.Until = t.clock()
	t.looking = false
	t.clocks.looked(s)
	m.noteClocks(t)
	t.mu.Unlock()
	m.lookAtClocks(t)
}

// outputTotal is how many bytes of kept output the turn's processes have written.
func (m *Manager) outputTotal(t *turn) (n int64) {
	m.noteOutputs(t)
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.procs {
		for _, st := range p.view.Output {
			n += st.BytesTotal
		}
	}
	return n
}

// noteClocks writes the clocks down where what is written is too far behind; the
// lock is held.
func (m *Manager) noteClocks(t *turn) {
	if now := t.clock(); t.clocks.behind(now - t.wrote) {
		t.wrote = now
		m.saveSoon(t)
	}
}

// saveSoon writes the record in the background.
func (m *Manager) saveSoon(t *turn) {
	m.wg.Go(func() {
		if err := m.save(t); err != nil {
			m.log.Warn("save the record of a turn", "turn", t.id, "error", err)
		}
	})
}

// resumeClocks goes on with the clocks of a turn that was found again.
func (m *Manager) resumeClocks(t *turn) {
	t.mu.Lock()
	t.clocks.restarted(t.clock())
	t.wrote = t.clock()
	t.mu.Unlock()
	m.resumeClient(t)
	m.resumeFrozen(t)
	t.wind()
}
