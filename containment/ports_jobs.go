package containment

import (
	"context"
	"syscall"
	"time"

	"pinfold.dev/api"
)

// Jobs is the part of a Hold that lets single launches outlive their turn. A
// job's processes are in jobs/<process>, beside work/: what is said of work/
// (Kill, WaitEmpty, Members, Alive, Ask) does not reach them.
type Jobs interface {
	// Promote moves what is in a launch's leaf, descendants included, to the
	// launch's directory below jobs/, until nobody is left in the leaf, and
	// tells how many were moved. limits are set on jobs/. What cannot be moved
	// is an error, and all that was moved is moved back.
	Promote(ctx context.Context, process string, limits *api.Limits) (int, error)
	// Eject does the same to one member of a launch's leaf and its descendants.
	// It becomes the launch process (a fresh id); before is told who it is, before
	// anything is done, and may refuse.
	Eject(ctx context.Context, from, process string, pid int, limits *api.Limits, before func(Started) error) error
	// JobMembers lists the processes of a job now.
	JobMembers(process string) ([]api.Member, error)
	// JobAlive counts them; 0 also when its directory is gone.
	JobAlive(process string) (int, error)
	// WaitJob waits until a job's directory is empty; ctx bounds it.
	WaitJob(ctx context.Context, process string) error
	// JobUsage reads the counters of one launch, job or not.
	JobUsage(process string) api.Usage
}

// Targets is the part of a Hold that ends, stops and looks at parts of a turn.
type Targets interface {
	// EndLaunch ends a launch with its descendants, in work/ or jobs/, as
	// EndProcess does, and tells what it saw. With spare, the launched process
	// itself is not touched: its descendants are ended to a fixed point.
	EndLaunch(ctx context.Context, process string, stop syscall.Signal, grace, bound time.Duration, spare bool) (Killed, error)
	// Freeze stops what is in work/, and returns when it is seen frozen; Thaw
	// lets it go on.
	Freeze(ctx context.Context) error
	Thaw(ctx context.Context) error
	// Targets lists what an ending would deal with, each opened, verified and
	// left alone.
	Targets(ctx context.Context) ([]api.Target, error)
	// Uses tells how the turn's processes, jobs included, use a directory (a
	// resolved path); unseen are those that could not be looked at.
	Uses(ctx context.Context, dir string) (uses []api.Use, unseen []string, err error)
	// Servers lists processes of work/ whose sockets others are connected to.
	Servers(ctx context.Context) ([]api.Server, error)
}

// ClientWatch is what a Host offers to watch turns' clients.
type ClientWatch interface {
	// Watch opens the process of a caller's connection, by its pidfd or, after a
	// restart, by its identity, and calls gone once it has exited. The identity
	// is what to record. Anything but owned means that it is not there: gone, or
	// not to be verified.
	Watch(c Client, gone func()) (id api.Identity, stop func(), v api.Verdict, err error)
}

// Client is a process to watch: the peer's pidfd where it has just asked, else
// what was recorded.
type Client struct {
	FD       int // -1: none; it stays the caller's
	Recorded api.Identity
}
