package server

import (
	"context"

	"pinfold.dev/api"
)

func why(ctx context.Context, c *call) (api.Why, error) { return c.s.cfg.Engine.Why(ctx, c.turn) }

// plan tells what an abandon would do.
func plan(ctx context.Context, c *call, req api.AbandonRequest) (api.Plan, error) {
	return c.s.cfg.Engine.Plan(ctx, c.turn, req)
}

// endProcess ends a launched process with its descendants, or only those.
func endProcess(ctx context.Context, c *call, req api.EndProcessRequest) (api.EndProcessAnswer, error) {
	return c.s.cfg.Engine.EndProcess(ctx, c.turn, c.proc, c.caller(), req)
}

// fewTurns is how many a request may name whose answer is not long at once: turns
// that are over need no ending, and have receipts all the same.
const fewTurns = 16

// abandonMany ends the turns that the request names. No ending waits for those of
// other requests: leave for a long answer is asked for when there is one.
func abandonMany(ctx context.Context, c *call, req api.AbandonManyRequest) (api.AbandonManyAnswer, error) {
	if req.DryRun || len(req.Turns) > fewTurns {
		if err := c.lift(); err != nil {
			return api.AbandonManyAnswer{}, err
		}
	}
	a, err := c.s.cfg.Engine.AbandonMany(ctx, c.caller(), c.seen(), req)
	if err == nil {
		_ = c.lift() // what was done is told in any case
	}
	return a, err
}

// quiet tells who uses a directory.
func quiet(ctx context.Context, c *call) (api.Quiet, error) {
	if c.query.Get("path") == "" {
		return api.Quiet{}, api.Errorf(api.CodeBadRequest, "path says which directory to look at").WithRemedy("GET /v1/quiet?path=/srv/work")
	}
	return c.s.cfg.Engine.Quiet(ctx, c.seen(), c.query.Get("path"))
}
