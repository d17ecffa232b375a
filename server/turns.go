package server

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/containment"
)

func host(ctx context.Context, c *call) (api.Host, error) { return c.s.cfg.Engine.Host(ctx) }

func openAPI(context.Context, *call) (document, error) { return document(api.OpenAPI()), nil }

// seen is whose turns a list shows: the peer's own, or everybody's.
func (c *call) seen() *uint32 {
	if c.conn.peer.Admin {
		return nil
	}
	return &c.conn.peer.UID
}

// listTurns shows turns that are not over, and finished ones that still hold
// something; ended ones too with all=true or when a state is asked for.
func listTurns(ctx context.Context, c *call) (api.TurnList, error) {
	all, err := c.flag("all", false)
	if err != nil {
		return api.TurnList{}, err
	}
	if err := c.notBlank("session", "state"); err != nil {
		return api.TurnList{}, err
	}
	f := containment.TurnFilter{Owner: c.seen(), Session: c.query.Get("session"), State: api.State(c.query.Get("state"))}
	if f.State != "" && !known(f.State) {
		return api.TurnList{}, api.Errorf(api.CodeBadRequest, "there is no state %q", clip(string(f.State)))
	}
	f.Live = !all && f.State == ""
	turns, err := c.s.cfg.Engine.Turns(ctx, f)
	if turns == nil {
		turns = []api.Turn{}
	}
	return api.TurnList{Turns: turns, Grade: c.s.grade()}, err
}

func known(s api.State) bool {
	switch s {
	case api.StateOpen, api.StateFinishing, api.StateEnding, api.StateFinished, api.StateAbandoned,
		api.StateUnkillable, api.StateLost:
		return true
	}
	return false
}

func begin(ctx context.Context, c *call, req api.BeginRequest) (api.Turn, error) {
	t, err := c.s.cfg.Engine.Begin(ctx, c.caller(), req)
	if !t.Repeated {
		c.status = http.StatusCreated
	}
	return t, err
}

func showTurn(ctx context.Context, c *call) (api.Turn, error) {
	return c.s.cfg.Engine.Turn(ctx, c.turn)
}

func tree(ctx context.Context, c *call) (api.Tree, error) { return c.s.cfg.Engine.Tree(ctx, c.turn) }

func waitTurn(ctx context.Context, c *call) (api.Turn, error) {
	return wait(ctx, c, func(ctx context.Context) (api.Turn, error) {
		return c.s.cfg.Engine.WaitTurn(ctx, c.turn)
	})
}

func finish(ctx context.Context, c *call, req api.FinishRequest) (api.Receipt, error) {
	return c.s.cfg.Engine.Finish(ctx, c.turn, c.caller(), req)
}

// abandon answers with the receipt, or, for wait=false, at once with the turn.
func abandon(ctx context.Context, c *call, req api.AbandonRequest) (any, error) {
	stay, err := c.flag("wait", true)
	if err != nil {
		return nil, err
	}
	if stay {
		return c.s.cfg.Engine.Abandon(ctx, c.turn, c.caller(), req)
	}
	over, cancel := context.WithCancel(ctx)
	cancel() // see Engine.Abandon: this starts the ending and does not wait
	if _, err := c.s.cfg.Engine.Abandon(over, c.turn, c.caller(), req); err != nil && !errors.Is(err, api.ErrTimeout) {
		return nil, err
	}
	c.status = http.StatusAccepted
	return c.s.cfg.Engine.Turn(ctx, c.turn)
}

func receipt(ctx context.Context, c *call) (api.Receipt, error) {
	return c.s.cfg.Engine.Receipt(ctx, c.turn)
}

// Bounds of a list of receipts.
const (
	someReceipts = 100 // when nobody says
	mostReceipts = 1000
)

func listReceipts(ctx context.Context, c *call) (api.ReceiptList, error) {
	limit, err := c.number("limit", someReceipts, mostReceipts)
	if err != nil {
		return api.ReceiptList{}, err
	}
	rs, err := c.s.cfg.Engine.Receipts(ctx, c.seen(), int(limit))
	if rs == nil {
		rs = []api.Receipt{}
	}
	return api.ReceiptList{Receipts: rs, Grade: c.s.grade()}, err
}

// maxWait bounds timeout_ms; longer waits say none.
const maxWait = 31 * 24 * time.Hour

// wait calls f until the request's timeout_ms, the client, or the service's
// own end ends it.
func wait[Resp any](ctx context.Context, c *call, f func(context.Context) (Resp, error)) (Resp, error) {
	var none Resp
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.s.stopping, func() { cancel(errStopping) })()
	if c.query.Has("timeout_ms") {
		ms, err := c.number("timeout_ms", 0, maxWait.Milliseconds())
		if err != nil {
			return none, err
		}
		var done context.CancelFunc
		ctx, done = context.WithTimeout(ctx, time.Duration(ms)*time.Millisecond)
		defer done()
	}
	v, err := f(ctx)
	switch {
	case err == nil || ctx.Err() == nil:
		return v, err
	case context.Cause(ctx) == errStopping:
		return none, api.Errorf(api.CodeUnavailable, "the service is stopping; turns go on").
			WithRemedy("ask again when it is back")
	case errors.Is(err, api.ErrTimeout):
		return none, err
	}
	return none, api.Errorf(api.CodeTimeout, "still running")
}

// flag is a parameter that is true or false.
func (c *call) flag(name string, unsaid bool) (bool, error) {
	switch v := c.query.Get(name); {
	case !c.query.Has(name):
		return unsaid, nil
	case v == "true", v == "false":
		return v == "true", nil
	default:
		return false, api.Errorf(api.CodeBadRequest, "%s is %q, not true or false", name, clip(v))
	}
}

// number is a parameter from 0 to most.
func (c *call) number(name string, unsaid, most int64) (int64, error) {
	if !c.query.Has(name) {
		return unsaid, nil
	}
	n, err := strconv.ParseInt(c.query.Get(name), 10, 64)
	if err != nil || n < 0 || n > most {
		return 0, api.Errorf(api.CodeBadRequest, "%s is %q, not a number from 0 to %d", name, clip(c.query.Get(name)), most)
	}
	return n, nil
}
