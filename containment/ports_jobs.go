package containment

import (
	"context"
	"syscall"
	"time"

	"pinfold.dev/api"
)

// Jobs is the part of a Hold that lets single launches outlive their turn. A
// job's processes are in jobs/<process>, beside work/: what is said of work/
// (Kill, WaitEmpty, Members, Alive, Ask, Usage, Freeze) does not reach them, and
// while one lives neither Release nor Remove does anything. After Recover which
// launches are jobs is known again; an ejected one has to be found by Rejoin.
type Jobs interface {
	// Promote moves what is in a launch's leaf, descendants included, to the
	// launch's directory below jobs/, until nobody is left in the leaf, and
	// tells how many were moved. limits are set on jobs/. What cannot be moved
	// is an error, and all that was moved is moved back: into the turn, so an
	// ending that began meanwhile has to look again when the call has returned.
	// api.ErrNotFound: nobody is in the leaf.
	Promote(ctx context.Context, process string, limits *api.Limits) (int, error)
	// Eject does the same to one member of a launch's leaf and those of its
	// descendants whose parents live; from may be a job. It becomes the launch process (a fresh id); before is told who it is, before
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
	// itself is not touched: its descendants are ended to a fixed point. The leaf
	// is frozen until the process is seen alone in it; what it forks afterwards
	// lives. There is nobody to spare when it has ended or left its leaf.
	EndLaunch(ctx context.Context, process string, stop syscall.Signal, grace, bound time.Duration, spare bool) (Killed, error)
	// Freeze stops what is in work/, and returns when it is seen frozen; after an
	// error it is thawed. Thaw lets it go on. Ask thaws, too, once all have been
	// sent to; Kill needs no thaw. A later service finds it as it is.
	Freeze(ctx context.Context) error
	Thaw(ctx context.Context) error
	// Targets lists what an ending would deal with, each opened, verified and
	// left alone.
	Targets(ctx context.Context) ([]api.Target, error)
	// Uses tells how the turn's processes, jobs included, use a directory (an
	// absolute path, whose symbolic links are followed); unseen are those that
	// could not be looked at.
	Uses(ctx context.Context, dir string) (uses []api.Use, unseen []string, err error)
	// Servers lists processes of work/ whose sockets others are connected to: unix
	// and TCP. A client without a pid is one of another host, or its Comm says why
	// nobody can tell who is connected. Beside them, those that are connected to
	// sockets on which processes outside listen. It keeps few descriptors open, and is
	// over soon after ctx is.
	Servers(ctx context.Context) ([]api.Server, []api.Served, error)
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
