package client

import (
	"context"
	"net/url"
	"strconv"
	"time"

	"pinfold.dev/api"
)

// StartJob starts a job in a hold of its own.
func (c *Client) StartJob(ctx context.Context, req api.JobRequest) (api.Job, error) {
	return post[api.Job](ctx, c, req, nil, nil, "jobs")
}

// Promote makes a job of a launched process, or of one of its descendants.
func (c *Client) Promote(ctx context.Context, turn, process string, req api.PromoteRequest) (api.Job, error) {
	return post[api.Job](ctx, c, req, nil, nil, "turns", turn, "processes", process, "promote")
}

// JobQuery narrows a list of jobs; a zero field does not.
type JobQuery struct {
	Session, Turn, Cwd string
	All                bool // ended ones, too
}

// Jobs lists jobs, oldest first.
func (c *Client) Jobs(ctx context.Context, f JobQuery) (api.JobList, error) {
	q := url.Values{}
	for k, v := range map[string]string{"session": f.Session, "turn": f.Turn, "cwd": f.Cwd} {
		if v != "" {
			q.Set(k, v)
		}
	}
	if f.All {
		q.Set("all", "true")
	}
	return get[api.JobList](ctx, c, q, "jobs")
}

// Job returns one job.
func (c *Client) Job(ctx context.Context, id string) (api.Job, error) {
	return get[api.Job](ctx, c, nil, "jobs", id)
}

// WaitJob returns once the job has ended; timeout 0: whenever that is.
func (c *Client) WaitJob(ctx context.Context, id string, timeout time.Duration) (api.Job, error) {
	q := url.Values{}
	if timeout > 0 {
		q.Set("timeout_ms", strconv.FormatInt(timeout.Milliseconds(), 10))
	}
	return get[api.Job](ctx, c, q, "jobs", id, "wait")
}

// StopJob ends a job and returns when it is seen gone.
func (c *Client) StopJob(ctx context.Context, id string, req api.StopJobRequest) (api.Job, error) {
	return post[api.Job](ctx, c, req, nil, nil, "jobs", id, "stop")
}

// Transfer gives a job to another session, or to another turn of its owner.
func (c *Client) Transfer(ctx context.Context, id string, req api.TransferRequest) (api.Job, error) {
	return post[api.Job](ctx, c, req, nil, nil, "jobs", id, "transfer")
}
