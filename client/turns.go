package client

import (
	"context"
	"encoding/json"
	"net/url"
	"strconv"

	"pinfold.dev/api"
)

// Host tells what the service's host can do.
func (c *Client) Host(ctx context.Context) (api.Host, error) {
	return get[api.Host](ctx, c, nil, "host")
}

// OpenAPI is the API's description, as the service has it.
func (c *Client) OpenAPI(ctx context.Context) (json.RawMessage, error) {
	return get[json.RawMessage](ctx, c, nil, "openapi.json")
}

// Begin opens a turn.
func (c *Client) Begin(ctx context.Context, req api.BeginRequest) (api.Turn, error) {
	return post[api.Turn](ctx, c, req, nil, nil, "turns")
}

// Turns lists turns, oldest first: one's own, root everybody's. Without all
// only those that are not over, or that still hold something. An empty session
// means any.
func (c *Client) Turns(ctx context.Context, all bool, session string) (api.TurnList, error) {
	q := url.Values{}
	if all {
		q.Set("all", "true")
	}
	if session != "" {
		q.Set("session", session)
	}
	return get[api.TurnList](ctx, c, q, "turns")
}

// TurnsIn lists the turns that are in a state.
func (c *Client) TurnsIn(ctx context.Context, state api.State) (api.TurnList, error) {
	return get[api.TurnList](ctx, c, url.Values{"state": {string(state)}}, "turns")
}

// Turn returns one turn.
func (c *Client) Turn(ctx context.Context, turn string) (api.Turn, error) {
	return get[api.Turn](ctx, c, nil, "turns", turn)
}

// Tree lists what a turn's cgroup holds.
func (c *Client) Tree(ctx context.Context, turn string) (api.Tree, error) {
	return get[api.Tree](ctx, c, nil, "turns", turn, "tree")
}

// WaitTurn returns once the turn is terminal. When ctx ends first, the error is
// ctx's and the turn goes on.
func (c *Client) WaitTurn(ctx context.Context, turn string) (api.Turn, error) {
	return get[api.Turn](ctx, c, nil, "turns", turn, "wait")
}

// Finish says that the turn's work is done.
func (c *Client) Finish(ctx context.Context, turn string, req api.FinishRequest) (api.Receipt, error) {
	return post[api.Receipt](ctx, c, req, nil, nil, "turns", turn, "finish")
}

// Abandon ends a turn and waits for its receipt. When ctx ends first, or the
// connection is lost, the ending goes on; Receipt tells how it went.
func (c *Client) Abandon(ctx context.Context, turn string, req api.AbandonRequest) (api.Receipt, error) {
	return post[api.Receipt](ctx, c, req, nil, nil, "turns", turn, "abandon")
}

// AbandonNow starts the ending of a turn and does not wait for it.
func (c *Client) AbandonNow(ctx context.Context, turn string, req api.AbandonRequest) (api.Turn, error) {
	return post[api.Turn](ctx, c, req, url.Values{"wait": {"false"}}, nil, "turns", turn, "abandon")
}

// Receipt returns the receipt of an ended turn.
func (c *Client) Receipt(ctx context.Context, turn string) (api.Receipt, error) {
	return get[api.Receipt](ctx, c, nil, "turns", turn, "receipt")
}

// Receipts lists receipts, newest first: one's own, root everybody's. A limit
// of 0 means the service's default, 100.
func (c *Client) Receipts(ctx context.Context, limit int) (api.ReceiptList, error) {
	q := url.Values{}
	if limit != 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	return get[api.ReceiptList](ctx, c, q, "receipts")
}
