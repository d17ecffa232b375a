package containment

import (
	"context"
	"time"

	"pinfold.dev/api"
)

// Bounds of a look at who serves a turn that is being ended.
const (
	servedTime = 10 * time.Second       // however long the grace
	servedSoon = 100 * time.Millisecond // where nobody is to be killed
)

// servedLook is such a look, beside the ending: which neither waits for it nor lets
// it run on when somebody is to be killed.
type servedLook struct {
	seen   chan []api.Served
	cancel context.CancelFunc
}

func (m *Manager) lookServed(h Hold, turn string) servedLook {
	ctx, cancel := context.WithTimeout(context.Background(), servedTime)
	l := servedLook{make(chan []api.Served, 1), cancel}
	m.wg.Go(func() {
		defer cancel()
		_, served, err := h.Servers(ctx)
		if err != nil {
			m.log.Debug("look who serves an ending turn", "turn", turn, "error", err)
		}
		l.seen <- served
	})
	return l
}

// enter ends the look, and enters what it has seen by now, or does within some time.
func (l servedLook) enter(r *api.Receipt, within time.Duration) {
	defer l.cancel()
	var seen []api.Served
	select {
	case seen = <-l.seen:
	default:
		if within > 0 {
			select {
			case seen = <-l.seen:
			case <-time.After(within):
			}
		}
	}
	if len(seen) > 0 { // else an earlier service may have seen more
		r.ServedBy = seen
	}
}
