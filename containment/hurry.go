package containment

import (
	"context"
	"fmt"
	"slices"
	"time"

	"pinfold.dev/api"
)

// patience is the grace of an ending that is under way. It is below its turn's lock.
type patience struct {
	end   time.Time   // zero: nobody was asked to stop yet
	timer *time.Timer // nil: it is over, or has not begun
	most  time.Time   // no later than this, as somebody has said since; zero: nobody has
	note  string      // who, for the receipt
}

// hurry cuts the grace of an ending that is under way short, if it is not that of the
// request itself, e. Whoever asks for the end once more, and with less time, wants it by
// then: an ending with a grace of an hour could not be had sooner else. It makes none
// longer. With no grace at all, jobs that end with the turn are ended at once, too.
func (m *Manager) hurry(t *turn, e EndRequest) {
	t.mu.Lock()
	var stands EndRequest
	late := t.ending != nil && *t.ending != e && !t.view.State.Terminal()
	if late {
		m.cutShort(t, e)
		stands = *t.ending
	}
	ids := slices.Clone(t.view.Jobs)
	t.mu.Unlock()
	if !late || e.GraceMS > 0 || stands.Jobs != api.FateEnd {
		return
	}
	for _, id := range ids {
		if o, j, ok := m.findJob(id); ok && (o != t || j.Origin != api.JobStarted) {
			m.endJob(o, j, stands.Reason, stands.Actor, &e.GraceMS)
		}
	}
}

// cutShort does so, also for the service that goes on when this one is killed; the
// lock is held.
func (m *Manager) cutShort(t *turn, e EndRequest) {
	grace := time.Duration(e.GraceMS) * time.Millisecond
	p, at := &t.patience, time.Now().Add(grace)
	if !p.end.IsZero() && !at.Before(p.end) || !p.most.IsZero() && !at.Before(p.most) {
		return
	}
	p.most, p.note = at, fmt.Sprintf("the grace was cut short on request of uid %d", e.Actor.UID)
	if p.timer != nil {
		p.end = at
		p.timer.Reset(grace)
	}
	if stands := *t.ending; e.GraceMS < stands.GraceMS {
		stands.GraceMS = max(1, e.GraceMS) // it stays one that asks
		t.ending = &stands
		m.saveSoon(t)
	}
}

// wait is over when the grace is; done tells what is to be noted about that.
func (t *turn) wait(grace time.Duration) (over context.Context, done func() (note string)) {
	over, cancel := context.WithCancel(context.Background())
	t.mu.Lock()
	defer t.mu.Unlock()
	p := &t.patience
	p.end = time.Now().Add(grace)
	if !p.most.IsZero() && p.most.Before(p.end) {
		p.end = p.most
	} else {
		p.note = ""
	}
	p.timer = time.AfterFunc(time.Until(p.end), cancel)
	return over, func() string {
		t.mu.Lock()
		defer t.mu.Unlock()
		p.timer.Stop()
		p.timer = nil
		cancel()
		return p.note
	}
}
