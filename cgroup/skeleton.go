//go:build linux

package cgroup

import (
	"context"
	"errors"
	"syscall"
	"time"

	"pinfold.dev/api"
)

var errSkeleton = errors.New("not built yet")

// Mount is where cgroup v2 is mounted.
type Mount struct {
	Path string // absolute
	Root string // the cgroup that is mounted there, from our cgroup namespace
	// Unified is false on hybrid hosts: where cgroup v1 hierarchies are
	// mounted beside it, which then have the controllers.
	Unified bool
}

// FindMount finds the cgroup v2 mount in /proc/self/mountinfo.
func FindMount() (Mount, error) { return Mount{}, errSkeleton }

// Own is the absolute directory of our own cgroup.
func (m Mount) Own() (string, error) { return "", errSkeleton }

// Dir is an open cgroup directory. It is safe for concurrent use.
type Dir struct{}

// Open opens the cgroup at an absolute path.
func Open(path string) (*Dir, error) { return nil, errSkeleton }

// OpenVerified opens the cgroup at path if it is the one that was recorded: the
// Dir is nil unless the verdict is owned.
func OpenVerified(path string, id uint64, nonce string) (*Dir, api.Verdict, error) {
	return nil, api.VerdictUnverifiable, errSkeleton
}

// Make makes the cgroup at an absolute path and opens it. That it exists is an
// error.
func Make(path string) (*Dir, error) { return nil, errSkeleton }

// Make makes a child cgroup and opens it.
func (d *Dir) Make(name string) (*Dir, error) { return nil, errSkeleton }

// Open opens a child cgroup.
func (d *Dir) Open(name string) (*Dir, error) { return nil, errSkeleton }

// Path is the path it was opened with.
func (d *Dir) Path() string { return "" }

// ID is its 64-bit kernfs id.
func (d *Dir) ID() uint64 { return 0 }

// FD is its descriptor, for CLONE_INTO_CGROUP; it stays the Dir's.
func (d *Dir) FD() int { return -1 }

// Close closes the descriptors; it leaves the cgroup alone.
func (d *Dir) Close() error { return errSkeleton }

// Mark writes the nonce into the directory's extended attribute.
func (d *Dir) Mark(nonce string) error { return errSkeleton }

// Nonce reads it back.
func (d *Dir) Nonce() (string, error) { return "", errSkeleton }

// Controllers lists the controllers that limits of this cgroup may use.
func (d *Dir) Controllers() ([]string, error) { return nil, errSkeleton }

// Delegate enables controllers for the children, one by one, and returns those
// that were; the error joins the refusals.
func (d *Dir) Delegate(names []string) ([]string, error) { return nil, errSkeleton }

// ControllerError tells which controller was missing or refused.
type ControllerError struct {
	Controller string
	Err        error
}

func (e *ControllerError) Error() string { return "controller " + e.Controller + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *ControllerError) Unwrap() error { return e.Err }

// ErrNoController is the cause when the cgroup has not got a controller.
var ErrNoController = errors.New("not available in this cgroup")

// Limit sets limits; a *ControllerError names a controller that is missing.
func (d *Dir) Limit(l api.Limits) error { return errSkeleton }

// Add moves a process into the cgroup.
func (d *Dir) Add(pid int) error { return errSkeleton }

// Populated tells whether a live process is in it or below.
func (d *Dir) Populated() (bool, error) { return false, errSkeleton }

// Frozen tells whether it is frozen.
func (d *Dir) Frozen() (bool, error) { return false, errSkeleton }

// Freeze asks for it to be frozen or thawed.
func (d *Dir) Freeze(on bool) error { return errSkeleton }

// Empty waits until it is not populated, or removed.
func (d *Dir) Empty(ctx context.Context) error { return errSkeleton }

// Pid is a process in the cgroup, and in which one below it.
type Pid struct {
	PID int
	Dir string // relative; "" for the cgroup itself
}

// Pids lists the processes in it and below.
func (d *Dir) Pids() ([]Pid, error) { return nil, errSkeleton }

// Count counts them; hidden are those in a PID namespace that we cannot see.
func (d *Dir) Count() (seen, hidden int, err error) { return 0, 0, errSkeleton }

// Members describes them.
func (d *Dir) Members() ([]api.Member, error) { return nil, errSkeleton }

// Signal sends each member the signal that sig says for the cgroup it is in
// (0: none), and CONT after it unless it was KILL. It returns how many.
func (d *Dir) Signal(sig func(rel string) syscall.Signal) (int, error) { return 0, errSkeleton }

// Killed is what a kill did and saw.
type Killed struct {
	Mechanism string // cgroup.kill, cgroup.kill+members, freeze+members
	Rounds    int
	Seen      int // members before the first signal
	KilledAt  time.Time
	EmptyAt   time.Time // zero when it was not seen empty
	Survivors []api.Survivor
	Notes     []string
}

// Kill ends every process in it and below and waits until it is seen empty.
// When bound runs out first, Survivors says who is left and the error is nil.
func (d *Dir) Kill(ctx context.Context, bound time.Duration) (Killed, error) {
	return Killed{}, errSkeleton
}

// Survivors lists what is in it and below, and where it hangs.
func (d *Dir) Survivors() []api.Survivor { return nil }

// Usage reads its counters; -1 where the host does not say.
func (d *Dir) Usage() api.Usage { return api.NoUsage() }

// Remove removes it and the cgroups below, depth first. That it is gone already
// is no error.
func (d *Dir) Remove(ctx context.Context) error { return errSkeleton }
