package server

import (
	"context"
	"net/http"
	"time"

	"pinfold.dev/api"
)

func policy(_ context.Context, c *call) (api.PolicyAnswer, error) {
	return api.PolicyAnswer{Policy: api.DefaultPolicy(), Grade: c.s.grade()}, nil
}

func touch(ctx context.Context, c *call, req api.TouchRequest) (api.TouchAnswer, error) {
	return c.s.cfg.Engine.Touch(ctx, c.turn, req)
}

func take(ctx context.Context, c *call, req api.TakeRequest) (api.Turn, error) {
	return c.s.cfg.Engine.Take(ctx, c.turn, c.caller(), req)
}

func freeze(ctx context.Context, c *call, req api.FreezeRequest) (api.Turn, error) {
	return c.s.cfg.Engine.Freeze(ctx, c.turn, c.caller(), req)
}

func thaw(ctx context.Context, c *call, req api.FreezeRequest) (api.Turn, error) {
	return c.s.cfg.Engine.Thaw(ctx, c.turn, c.caller(), req)
}

// holdAnswer is what GET …/hold answers with: lines, until the turn is over.
type holdAnswer struct {
	turn  api.Turn
	over  <-chan holdEnd
	letGo func()
	ctx   context.Context
}

// holdEnd is how holding a turn ended.
type holdEnd struct {
	turn api.Turn
	err  error
}

// hold holds the turn from before its answer begins until that ends.
func hold(ctx context.Context, c *call) (*holdAnswer, error) {
	epoch, err := c.number("epoch", 0, 1<<62)
	if err != nil {
		return nil, err
	}
	asked := ctx
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(asked))
	letGo := func() { // a service that stops closes connections, too: that is none of the client's doing
		if c.s.stopping.Err() != nil {
			cancel(errStopping)
		} else {
			cancel(nil)
		}
	}
	context.AfterFunc(asked, letGo)
	first, over := make(chan api.Turn, 1), make(chan holdEnd, 1)
	go func() {
		t, err := c.s.cfg.Engine.Hold(ctx, c.turn, epoch, func(t api.Turn) { first <- t })
		over <- holdEnd{t, err}
	}()
	select {
	case t := <-first:
		return &holdAnswer{t, over, letGo, ctx}, nil
	case end := <-over:
		defer letGo()
		if end.err == nil { // it was over at once
			return nil, api.Errorf(api.CodeTurnOver, "turn %s is %s", c.turn, end.turn.State)
		}
		return nil, end.err
	}
}

// beatEvery is how often a client that holds a turn hears that the service is
// there.
const beatEvery = 15 * time.Second

// stream writes the lines. What counts is the connection: when the client closes
// it, or has died, the request's context ends.
func (a *holdAnswer) stream(c *call) {
	defer a.letGo()
	defer context.AfterFunc(c.s.stopping, a.letGo)()
	rc := http.NewResponseController(c.w)
	h := c.w.Header()
	h.Set(api.GradeHeader, string(a.turn.Grade))
	h.Set("Content-Type", api.NDJSON)
	line := func(v any) bool {
		_ = rc.SetWriteDeadline(time.Now().Add(c.s.cfg.WriteTimeout))
		_, err := c.w.Write(encode(v))
		return err == nil && rc.Flush() == nil
	}
	if !line(api.HoldLine{Turn: a.turn.ID, State: a.turn.State, Grade: a.turn.Grade}) {
		return
	}
	beat := time.NewTicker(beatEvery)
	defer beat.Stop()
	for {
		select {
		case <-beat.C:
			if !line(struct{}{}) {
				return
			}
		case end := <-a.over:
			_ = line(a.last(c, end))
			return
		}
	}
}

// last is the last line.
func (a *holdAnswer) last(c *call, end holdEnd) api.HoldLine {
	l := api.HoldLine{Turn: a.turn.ID, State: end.turn.State, Grade: a.turn.Grade}
	switch {
	case context.Cause(a.ctx) == errStopping:
		l.Error = api.Errorf(api.CodeUnavailable, "the service is stopping; turns go on").WithRemedy("hold it again when it is back")
	case end.err != nil:
		l.Error = c.s.fail(c, end.err)
	}
	return l
}
