package containment

import (
	"context"
	"fmt"
	"time"

	"pinfold.dev/api"
)

// now is the monotonic clock.
func (m *Manager) now() time.Duration { return m.cfg.Clock() }

// arm has a process ended when its deadline is over, also when that was while
// there was no service; the lock is held. While the turn is frozen the deadline
// stands still; of what has become a job it is lifted.
func (t *turn) arm(p *process) {
	if t.promoted(p.view.ID) {
		p.disarm()
		p.view.Deadline = nil
		return
	}
	if p.meta.Deadline == 0 || p.view.Status.State != api.ProcessRunning || p.timer != nil || t.expire == nil || t.clocks.Frozen {
		return
	}
	stood := max(0, t.clocks.Stood-max(0, p.meta.Stood))
	if mendDeadline(p.meta.Deadline, t.clock()) == 0 {
		return // it was damaged: what cannot be ends nothing
	}
	if at := p.meta.DeadlineAt; at != nil {
		late := at.Add(stood)
		p.view.Deadline = &late
	}
	id := p.view.ID
	p.timer = time.AfterFunc(max(0, p.meta.Deadline+stood-t.clock()), func() { t.expire(id) })
}

// promoted tells whether a launch of the turn has become a job, or is about to: it
// has the job's lifetime then; the lock is held.
func (t *turn) promoted(process string) bool {
	j := t.job(process)
	return j != nil && j.Origin == api.JobPromoted
}

// stopping notes that a process is ended on request, or as a job; the lock is held.
// What ends it already stands.
func (t *turn) stopping(process string) {
	if p := t.byID[process]; p != nil && p.view.Status.State == api.ProcessRunning && p.view.Status.EndedBy == "" {
		p.fired, p.view.Status.EndedBy = time.Now(), api.EndedByStop
	}
}

// notStopping takes that back: it has not ended, and nobody ends it; the lock is held.
func (t *turn) notStopping(process string) {
	if p := t.byID[process]; p != nil && p.view.Status.State == api.ProcessRunning && p.view.Status.EndedBy == api.EndedByStop {
		p.fired, p.view.Status.EndedBy = time.Time{}, ""
	}
}

// noteFor is how long a process is not ended yet while it is written down what ends it: a
// disk that is slow is not waited for.
const noteFor = 100 * time.Millisecond

// noteSoon writes down what ends a process, so that the next service knows, and gives
// that a little time.
func (m *Manager) noteSoon(t *turn) (saved <-chan struct{}) {
	done := make(chan struct{})
	m.wg.Go(func() {
		defer close(done)
		if err := m.save(t); err != nil {
			m.log.Warn("save the record of a turn", "turn", t.id, "error", err)
		}
	})
	select {
	case <-done:
	case <-time.After(noteFor):
	}
	return done
}

// disarm stops the clock of a process that has ended; the lock is held.
func (p *process) disarm() {
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
}

// expire ends a process whose deadline is over, with its descendants. A turn
// that is ending does that anyway, and a process that has ended was first.
func (m *Manager) expire(t *turn, id string) {
	select {
	case <-m.stop:
		return // the next service goes on
	default:
	}
	t.mu.Lock()
	p, h := t.byID[id], t.hold
	if p == nil || h == nil || p.view.Status.State != api.ProcessRunning || t.view.State == api.StateEnding || t.clocks.Frozen || t.promoted(id) {
		t.mu.Unlock()
		return
	}
	grace := m.cfg.Grace
	if t.graceMS != nil {
		grace = time.Duration(*t.graceMS) * time.Millisecond
	}
	if p.view.Status.EndedBy == "" {
		p.fired, p.view.Status.EndedBy = time.Now(), api.EndedByDeadline
	}
	stop := p.stopSignal()
	t.touch()
	t.mu.Unlock()
	m.log.Info("deadline over", "turn", t.id, "process", id, "grace", grace)
	m.wg.Go(func() {
		if err := m.save(t); err != nil { // who ended it is to be known after a restart, too
			m.log.Warn("save the record of a turn", "turn", t.id, "error", err)
		}
	})
	m.wg.Go(func() {
		ctx, cancel := m.whileOpen(context.Background())
		defer cancel()
		if err := h.EndProcess(ctx, id, stop, grace, m.cfg.Bound); err != nil && ctx.Err() == nil {
			m.log.Warn("end a process at its deadline", "turn", t.id, "process", id, "error", err)
			t.mu.Lock()
			t.view.Degraded = append(t.view.Degraded, fmt.Sprintf("%s was not ended at its deadline: %v", id, err))
			t.tell(api.EventDegraded, "", func(e *api.Event) { e.Process, e.Message = id, "it was not ended at its deadline: "+err.Error() })
			t.mu.Unlock()
		}
	})
}

// whileOpen is a context that ends when the Manager closes.
func (m *Manager) whileOpen(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-m.stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}
