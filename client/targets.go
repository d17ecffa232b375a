package client

import (
	"context"
	"net/url"

	"pinfold.dev/api"
)

// Why tells why a turn is as it is, and what would change that.
func (c *Client) Why(ctx context.Context, turn string) (api.Why, error) {
	return get[api.Why](ctx, c, nil, "turns", turn, "why")
}

// Plan tells what an abandon would do now; nothing is touched.
func (c *Client) Plan(ctx context.Context, turn string, req api.AbandonRequest) (api.Plan, error) {
	return post[api.Plan](ctx, c, req, nil, nil, "turns", turn, "plan")
}

// EndProcess ends a launched process with its descendants, or only those.
func (c *Client) EndProcess(ctx context.Context, turn, process string, req api.EndProcessRequest) (api.EndProcessAnswer, error) {
	return post[api.EndProcessAnswer](ctx, c, req, nil, nil, "turns", turn, "processes", process, "end")
}

// AbandonMany ends the turns that the request names.
func (c *Client) AbandonMany(ctx context.Context, req api.AbandonManyRequest) (api.AbandonManyAnswer, error) {
	return post[api.AbandonManyAnswer](ctx, c, req, nil, nil, "abandon")
}

// Quiet tells whether no process of a turn or job uses a directory.
func (c *Client) Quiet(ctx context.Context, path string) (api.Quiet, error) {
	return get[api.Quiet](ctx, c, url.Values{"path": {path}}, "quiet")
}
