package server

import (
	"context"
	"net/http"

	"pinfold.dev/api"
	"pinfold.dev/containment"
)

// startJob starts a job in a hold of its own.
func startJob(ctx context.Context, c *call, req api.JobRequest) (api.Job, error) {
	j, err := c.s.cfg.Engine.StartJob(ctx, c.caller(), req)
	if !j.Repeated {
		c.status = http.StatusCreated
	}
	return j, err
}

// promote makes a job of a process.
func promote(ctx context.Context, c *call, req api.PromoteRequest) (api.Job, error) {
	return c.s.cfg.Engine.Promote(ctx, c.turn, c.proc, c.caller(), req)
}

// listJobs shows jobs that have not ended; ended ones too with all=true.
func listJobs(ctx context.Context, c *call) (api.JobList, error) {
	all, err := c.flag("all", false)
	if err != nil {
		return api.JobList{}, err
	}
	if err := c.notBlank("session", "turn", "cwd"); err != nil {
		return api.JobList{}, err
	}
	f := containment.JobFilter{Owner: c.seen(), Session: c.query.Get("session"), Turn: c.query.Get("turn"), Cwd: c.query.Get("cwd"), All: all}
	jobs, err := c.s.cfg.Engine.Jobs(ctx, f)
	if jobs == nil {
		jobs = []api.Job{}
	}
	return api.JobList{Jobs: jobs, Grade: c.s.grade()}, err
}

func showJob(ctx context.Context, c *call) (api.Job, error) { return c.s.cfg.Engine.Job(ctx, c.job) }

func waitJob(ctx context.Context, c *call) (api.Job, error) {
	return wait(ctx, c, func(ctx context.Context) (api.Job, error) { return c.s.cfg.Engine.WaitJob(ctx, c.job) })
}

func stopJob(ctx context.Context, c *call, req api.StopJobRequest) (api.Job, error) {
	return c.s.cfg.Engine.StopJob(ctx, c.job, c.caller(), req)
}

func transfer(ctx context.Context, c *call, req api.TransferRequest) (api.Job, error) {
	return c.s.cfg.Engine.Transfer(ctx, c.job, c.caller(), req)
}
