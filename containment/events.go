package containment

import (
	"context"
	"slices"
	"strings"
	"time"

	"pinfold.dev/api"
)

// tell adds an event about the turn; the lock is held. The key makes one that an
// earlier service has told of be told once.
func (t *turn) tell(kind api.EventKind, key string, with func(*api.Event)) {
	if t.events == nil {
		return
	}
	e := api.Event{At: time.Now().UTC(), Kind: kind, Owner: t.owner, Turn: t.id, Epoch: t.view.Epoch, Session: t.view.Session,
		State: t.view.State, Stopped: t.view.State != api.StateOpen, Grade: t.view.Grade}
	if with != nil {
		with(&e)
	}
	if key != "" {
		key = strings.Join([]string{t.id, string(kind), key}, "/")
	}
	t.events.Add(key, e)
}

// How events are looked through for a query.
const (
	eventPage   = 256 // numbers at a time
	eventsAsked = 1000
	eventPages  = 64 // at most, for one answer
)

// Events reads what happened, at most q.Limit of it (0: 1000), in order. Gaps are
// among it whatever the query says. next is the number to go on after; when it is
// q.After, there is nothing yet.
func (m *Manager) Events(ctx context.Context, q EventQuery) (events []api.Event, next int64, err error) {
	m.awaitTold(ctx)
	if q.After < 0 {
		return nil, m.cfg.Events.Last(), nil
	}
	if q.Limit <= 0 {
		q.Limit = eventsAsked
	}
	next = q.After
	for range eventPages {
		page, to, err := m.cfg.Events.After(ctx, next, min(eventPage, q.Limit-len(events)))
		if err != nil {
			return events, next, asAPI(err, api.CodeInternal, "read events")
		}
		for _, e := range page {
			if q.match(e) {
				events = append(events, e)
			}
		}
		if over := to == next || len(events) >= q.Limit; over || ctx.Err() != nil {
			return events, to, nil
		}
		next = to
	}
	return events, next, nil
}

// toldSoon bounds the wait for what was told just now.
const toldSoon = 250 * time.Millisecond

// awaitTold waits, not for long, until readers see what was told before: whoever
// has the answer to a call finds what it did among the events.
func (m *Manager) awaitTold(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, toldSoon)
	defer cancel()
	_ = m.cfg.Events.Flush(ctx) // readers are told from memory then, or soon
}

func (q EventQuery) match(e api.Event) bool {
	return e.Kind == api.EventGap ||
		(q.Owner == nil || *q.Owner == e.Owner) &&
			(q.Turn == "" || q.Turn == e.Turn) &&
			(q.Session == "" || q.Session == e.Session) &&
			(len(q.Kinds) == 0 || slices.Contains(q.Kinds, e.Kind))
}

// WaitEvents returns when there is an event after seq, or ctx ends.
func (m *Manager) WaitEvents(ctx context.Context, seq int64) error {
	return m.cfg.Events.Wait(ctx, seq)
}

// Acknowledged is how far a consumer is; 0 for a new one.
func (m *Manager) Acknowledged(_ context.Context, owner uint32, consumer string) (int64, error) {
	if err := checkConsumer(consumer); err != nil {
		return 0, err
	}
	n, err := m.cfg.Events.Acked(owner, consumer)
	if err != nil {
		return 0, asAPI(err, api.CodeUnavailable, "read what was acknowledged")
	}
	return n, nil
}

// AckEvents notes that a consumer has dealt with every event up to a number. Of
// several that say the same, all but one read Repeated.
func (m *Manager) AckEvents(_ context.Context, owner uint32, req api.AckRequest) (api.AckAnswer, error) {
	if err := checkConsumer(req.Consumer); err != nil {
		return api.AckAnswer{}, err
	}
	if last := m.cfg.Events.Last(); req.Seq < 1 || req.Seq > last {
		return api.AckAnswer{}, api.Errorf(api.CodeBadRequest, "seq is %d, not that of an event: the newest is %d", req.Seq, last).
			WithRemedy("acknowledge an event that was read; after a gap, numbers may be smaller")
	}
	now, repeated, err := m.cfg.Events.Ack(owner, req.Consumer, req.Seq)
	if err != nil {
		return api.AckAnswer{}, asAPI(err, api.CodeUnavailable, "acknowledge events")
	}
	return api.AckAnswer{Consumer: req.Consumer, Seq: now, Repeated: repeated, Grade: m.Grade()}, nil
}

// maxConsumer is how long the name of a consumer may be.
const maxConsumer = 64

func checkConsumer(name string) error {
	bad := func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && !strings.ContainsRune(".-_", r)
	}
	if name == "" || len(name) > maxConsumer || strings.ContainsFunc(name, bad) {
		return api.Errorf(api.CodeBadRequest, "consumer is %.80q, not 1 to %d letters, digits, dots, dashes and underscores", name, maxConsumer)
	}
	return nil
}
