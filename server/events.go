package server

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/containment"
)

// eventsAnswer is what GET /v1/events answers with: a line for each event.
type eventsAnswer struct {
	q      containment.EventQuery
	most   int64 // events; -1: no bound
	follow bool
}

// heartbeat is how often a reader who waits is told that we are there.
const heartbeat = 15 * time.Second

// eventsChunk is how many events are read and written at once: what a reader
// costs, however slow it is.
const eventsChunk = 256

func events(ctx context.Context, c *call) (*eventsAnswer, error) {
	a := &eventsAnswer{q: containment.EventQuery{Owner: c.seen(), Turn: c.query.Get("turn"), Session: c.query.Get("session")}}
	err := c.notBlank("turn", "session", "kinds", "consumer")
	if err != nil {
		return nil, err
	}
	if a.q.Kinds, err = kinds(c.query.Get("kinds")); err != nil {
		return nil, err
	}
	if a.most, err = c.number("limit", -1, 1<<62); err != nil {
		return nil, err
	}
	if a.follow, err = c.flag("follow", false); err != nil {
		return nil, err
	}
	if err := a.start(ctx, c); err != nil {
		return nil, err
	}
	return a, nil
}

// start finds the number to begin after.
func (a *eventsAnswer) start(ctx context.Context, c *call) (err error) {
	after, consumer := c.query.Get("after"), c.query.Get("consumer")
	switch {
	case after != "" && consumer != "":
		return api.Errorf(api.CodeBadRequest, "after and consumer are both given").WithRemedy("give one of them")
	case consumer != "":
		a.q.After, err = c.s.cfg.Engine.Acknowledged(ctx, c.conn.peer.UID, consumer)
	case after == "-1": // from now on
		a.q.After = -1
		_, a.q.After, err = c.s.cfg.Engine.Events(ctx, a.q)
	default:
		a.q.After, err = c.number("after", 0, 1<<62)
	}
	return err
}

func kinds(s string) (out []api.EventKind, err error) {
	if s == "" {
		return nil, nil
	}
	for w := range strings.SplitSeq(s, ",") {
		k := api.EventKind(w)
		if !slices.Contains(api.EventKinds(), k) {
			return nil, api.Errorf(api.CodeBadRequest, "there is no kind %q of events", clip(w)).
				WithRemedy("GET /v1/openapi.json lists them; separate them by commas")
		}
		out = append(out, k)
	}
	return out, nil
}

func (a *eventsAnswer) stream(c *call) {
	ctx, cancel := context.WithCancelCause(c.r.Context())
	defer cancel(nil)
	w := &eventWriter{c: c, rc: http.NewResponseController(c.w)}
	defer context.AfterFunc(c.s.stopping, func() {
		cancel(errStopping)
		_ = w.rc.SetWriteDeadline(time.Now().Add(lastWrite))
	})()
	h := c.w.Header()
	h.Set(api.GradeHeader, string(c.s.grade()))
	h.Set("Content-Type", api.NDJSON)
	c.w.WriteHeader(http.StatusOK)
	if w.flush() != nil {
		return
	}
	err := a.copy(ctx, w)
	if errors.Is(err, errReader) {
		return
	}
	end := api.EventLine{Next: &a.q.After, Grade: c.s.grade()}
	if err != nil && ctx.Err() == nil {
		c.s.cfg.Log.Warn("read events", "after", a.q.After, "error", err)
		end.Error = asAPI(err, api.CodeInternal, "read events")
	}
	if c.s.stopping.Err() != nil { // that has its time of its own: we may be late
		_ = w.rc.SetWriteDeadline(time.Now().Add(lastWrite))
	}
	_ = w.line(end)
}

// copy hands on what there is, and with follow what comes, until the end or the
// limit.
func (a *eventsAnswer) copy(ctx context.Context, w *eventWriter) error {
	for ctx.Err() == nil && a.most != 0 {
		a.q.Limit = eventsChunk
		if a.most > 0 {
			a.q.Limit = int(min(a.most, eventsChunk))
		}
		found, next, err := w.c.s.cfg.Engine.Events(ctx, a.q)
		if err != nil {
			return err
		}
		for i := range found {
			if w.line(api.EventLine{Event: &found[i]}) != nil {
				return errReader
			}
			if a.most > 0 {
				a.most--
			}
		}
		over := len(found) == 0 && next == a.q.After
		a.q.After = next
		switch {
		case len(found) > 0:
			if w.flush() != nil {
				return errReader
			}
		case over && !a.follow:
			return nil
		case over:
			if err := a.wait(ctx, w); err != nil {
				return err
			}
		}
	}
	return nil
}

// wait waits for an event, and tells the reader now and then that it does.
func (a *eventsAnswer) wait(ctx context.Context, w *eventWriter) error {
	within, cancel := context.WithTimeout(ctx, heartbeat)
	defer cancel()
	err := w.c.s.cfg.Engine.WaitEvents(within, a.q.After)
	if err == nil || ctx.Err() != nil || within.Err() == nil {
		return err
	}
	if w.line(api.EventLine{}) != nil || w.flush() != nil {
		return errReader
	}
	return nil
}

// eventWriter writes lines; a reader that does not take one in its time is cut
// off, and goes on from its cursor when it is back.
type eventWriter struct {
	c  *call
	rc *http.ResponseController
}

func (w *eventWriter) line(l api.EventLine) error {
	w.limit()
	_, err := w.c.w.Write(encode(l))
	return err
}

func (w *eventWriter) flush() error {
	w.limit()
	return w.rc.Flush()
}

func (w *eventWriter) limit() {
	if w.c.s.stopping.Err() == nil {
		_ = w.rc.SetWriteDeadline(time.Now().Add(w.c.s.cfg.WriteTimeout))
	}
}

func ackEvents(ctx context.Context, c *call, req api.AckRequest) (api.AckAnswer, error) {
	return c.s.cfg.Engine.AckEvents(ctx, c.conn.peer.UID, req)
}
