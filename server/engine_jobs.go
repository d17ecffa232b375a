package server

import (
	"context"

	"pinfold.dev/api"
	"pinfold.dev/containment"
)

// Targets is the part of an Engine that ends parts of turns, or many of them, and
// that tells what an ending would do. See Engine for what holds of all methods.
type Targets interface {
	// Plan tells what an abandon would do.
	Plan(ctx context.Context, id string, req api.AbandonRequest) (api.Plan, error)
	// Why tells why a turn is as it is.
	Why(ctx context.Context, id string) (api.Why, error)
	// EndProcess ends a launched process with its descendants, or only those.
	EndProcess(ctx context.Context, id, proc string, c containment.Caller, req api.EndProcessRequest) (api.EndProcessAnswer, error)
	// AbandonMany ends turns; owner nil allows everybody's.
	AbandonMany(ctx context.Context, c containment.Caller, owner *uint32, req api.AbandonManyRequest) (api.AbandonManyAnswer, error)
	// Quiet tells who of the owner's (nil: of all) uses a directory.
	Quiet(ctx context.Context, owner *uint32, path string) (api.Quiet, error)
}

// JobEngine is the part of an Engine that deals with jobs.
type JobEngine interface {
	// StartJob starts a job in a hold of its own.
	StartJob(ctx context.Context, c containment.Caller, req api.JobRequest) (api.Job, error)
	// Promote makes a job of a launched process, or of a descendant.
	Promote(ctx context.Context, id, proc string, c containment.Caller, req api.PromoteRequest) (api.Job, error)
	// Jobs lists jobs, oldest first.
	Jobs(ctx context.Context, f containment.JobFilter) ([]api.Job, error)
	Job(ctx context.Context, id string) (api.Job, error)
	// WaitJob returns once the job has ended.
	WaitJob(ctx context.Context, id string) (api.Job, error)
	// StopJob ends a job and waits until it is seen gone, or ctx ends.
	StopJob(ctx context.Context, id string, c containment.Caller, req api.StopJobRequest) (api.Job, error)
	Transfer(ctx context.Context, id string, c containment.Caller, req api.TransferRequest) (api.Job, error)
}
