package containment

import (
	"context"
	"fmt"
	"time"
)

// patience is the grace of an ending that is under way. It is below its turn's lock.
type patience struct {
	end   time.Time   // zero: nobody was asked to stop yet
	timer *time.Timer // nil: it is over, or has not begun
	most  time.Time   // no later than this, as somebody has said since; zero: nobody has
	note  string      // who, for the receipt
}

// underWay tells that the turn is being ended.
func (t *turn) underWay() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ending != nil && !t.view.State.Terminal()
}

// hurry cuts the grace of an ending that is under way short. Whoever asks for the end
// once more, and with less time, wants it by then: an ending with a grace of an hour
// could not be had sooner else. It makes none longer.
func (t *turn) hurry(grace time.Duration, uid uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p, at := &t.patience, time.Now().Add(grace)
	if !p.end.IsZero() && !at.Before(p.end) || !p.most.IsZero() && !at.Before(p.most) {
		return
	}
	p.most, p.note = at, fmt.Sprintf("the grace was cut short on request of uid %d", uid)
	if p.timer != nil {
		p.end = at
		p.timer.Reset(grace)
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
