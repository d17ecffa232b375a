package pidfd

import (
	"context"
	"errors"
	"syscall"

	"pinfold.dev/api"
)

// ErrGone tells that the process has ended and was reaped.
var ErrGone = errors.New("process is gone")

// ErrRefused tells that a target may never be signalled: pid 0 or 1, ourselves,
// our own group, our own cgroup or an ancestor of it.
var ErrRefused = errors.New("refused")

var errSkeleton = errors.New("not built yet")

// Handle owns one pidfd. It is safe for concurrent use.
type Handle struct{ pid int }

// Open opens a handle on pid. It refuses pid <= 1 with ErrRefused, and returns
// ErrGone when there is no such process.
func Open(pid int) (*Handle, error) { return nil, errSkeleton }

// FromFD makes a handle from a pidfd that was received, which it owns from then
// on. The pid is what the sender says; it is used for nothing but PID.
func FromFD(fd, pid int) *Handle { return &Handle{pid} }

// PID is the process id that the handle was opened with.
func (h *Handle) PID() int { return h.pid }

// Close closes the descriptor and wakes every Wait. Closing again does nothing.
func (h *Handle) Close() error { return errSkeleton }

// Dup returns a duplicate of the descriptor, close-on-exec, which the caller
// owns: to send it, or to store it.
func (h *Handle) Dup() (int, error) { return -1, errSkeleton }

// Identity reads what the process can be known again by. Each field is set only
// where it can be trusted.
func (h *Handle) Identity() (api.Identity, error) { return api.Identity{}, errSkeleton }

// Verify compares the process with a record of one, and says on what evidence.
func (h *Handle) Verify(rec api.Identity) (api.Verdict, []string) {
	return api.VerdictUnverifiable, nil
}

// Signal sends sig to the whole process. It returns ErrGone when the process has
// been reaped and ErrRefused for what rule 5 forbids.
func (h *Handle) Signal(sig syscall.Signal) error { return errSkeleton }

// Exited tells whether every thread of the process has ended (a zombie has
// exited; a process whose main thread alone has ended has not).
func (h *Handle) Exited() (bool, error) { return false, errSkeleton }

// Wait waits until the process has exited, ctx is done, or the handle is closed.
func (h *Handle) Wait(ctx context.Context) error { return errSkeleton }

// CgroupID is the kernfs id of the process's cgroup v2.
func (h *Handle) CgroupID() (uint64, error) { return 0, errSkeleton }

// CgroupPath is the path on the 0:: line of /proc/pid/cgroup: relative to our
// own cgroup namespace.
func (h *Handle) CgroupPath() (string, error) { return "", errSkeleton }

// OpenVerified opens the recorded process. The handle is nil unless the verdict
// is owned, or gone with the process not yet reaped.
func OpenVerified(rec api.Identity) (*Handle, api.Verdict, []string) {
	return nil, api.VerdictUnverifiable, nil
}
