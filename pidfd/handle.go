package pidfd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"pinfold.dev/internal/sys"
)

// ErrGone tells that the process has ended and was reaped.
var ErrGone = errors.New("process is gone")

// Handle owns one pidfd: an exact reference to one process, whatever becomes of
// its number. It is safe for concurrent use.
type Handle struct {
	pid    int
	fd     *sys.FD
	closed context.Context // done once Close was called
	close  context.CancelFunc
	number func() int // what the kernel says the pid is; 0: it does not
}

// Open opens a handle on pid (pidfd_open(2), Linux 5.3). It refuses pid <= 1
// with ErrRefused, and returns ErrGone when no process has that number, though a
// thread may.
func Open(pid int) (*Handle, error) {
	if pid <= 1 {
		return nil, RefusePID(pid, 0)
	}
	fd, err := sys.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, free(gone(err)))
	}
	h := FromFD(fd, pid)
	h.number = func() int { return pid }
	return h, nil
}

// FromFD makes a handle from a pidfd that was received, which it owns from then
// on. The pid is what the sender says: where the kernel can tell the number
// behind the descriptor, that is what is used.
func FromFD(fd, pid int) *Handle {
	h := &Handle{pid: pid, fd: sys.NewFD(fd, "pidfd")}
	h.closed, h.close = context.WithCancel(context.Background())
	h.number = sync.OnceValue(h.readNumber)
	return h
}

// PID is the process id that the handle was made with: to show, not to use.
func (h *Handle) PID() int { return h.pid }

// Close closes the descriptor and wakes every Wait. Closing again does nothing.
func (h *Handle) Close() error {
	h.close()
	return h.fd.Close()
}

// Dup returns a duplicate of the descriptor, close-on-exec, which the caller
// owns: to send it, or to store it.
func (h *Handle) Dup() (int, error) {
	n := -1
	err := h.use(func(fd int) (err error) { n, err = sys.Dup(fd); return })
	if err != nil {
		return -1, fmt.Errorf("duplicate handle of process %d: %w", h.pid, err)
	}
	return n, nil
}

// Signal sends sig to the whole process, and 0 only asks whether that may be
// done. It returns ErrGone when the process has been reaped and ErrRefused for
// what may never be signalled. A zombie takes any signal without effect.
func (h *Handle) Signal(sig syscall.Signal) error {
	if err := h.guard(); err != nil {
		return err
	}
	return h.use(func(fd int) error {
		// A pidfd may be a thread's (PIDFD_THREAD) when it was received: say
		// that the process is meant. Before 6.9 there are neither.
		err := sys.PidfdSendSignal(fd, sig, sys.PidfdSignalThreadGroup)
		if errors.Is(err, syscall.EINVAL) {
			err = sys.PidfdSendSignal(fd, sig, 0)
		}
		if err != nil {
			return fmt.Errorf("signal process %d: %w", h.pid, gone(err))
		}
		return nil
	})
}

// guard checks both the number that the caller believes in and the kernel's.
func (h *Handle) guard() error {
	self := os.Getpid()
	if err := RefusePID(h.pid, self); err != nil {
		return err
	}
	n := h.number()
	if n == 0 {
		return nil
	}
	if err := RefusePID(n, self); err != nil {
		return err
	}
	return RefuseAncestor(n)
}

// Exited tells whether every thread of the process has ended. A zombie has
// exited; a process whose main thread alone has ended has not.
func (h *Handle) Exited() (bool, error) {
	var exited bool
	err := h.use(func(fd int) (err error) { exited, err = sys.PidfdExited(fd); return })
	return exited, err
}

// waitPause is how often Wait looks while it has nothing to wait by.
const waitPause = 20 * time.Millisecond

// Wait waits until the process has exited, ctx is done (its error) or the
// handle is closed (os.ErrClosed). It holds a descriptor and no thread; while there
// is none to be had it looks now and then. The process need not be a child.
func (h *Handle) Wait(ctx context.Context) error {
	for {
		if exited, err := h.Exited(); exited || err != nil {
			return err
		}
		if err := h.watch(ctx); !sys.Short(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-h.closed.Done():
			return os.ErrClosed
		case <-time.After(waitPause):
		}
	}
}

// watch is Wait by a descriptor of its own.
func (h *Handle) watch(ctx context.Context) error {
	var w *sys.Watch
	err := h.use(func(fd int) (err error) { w, err = sys.NewWatch(fd, sys.WatchIn); return })
	if err != nil {
		return err
	}
	defer w.Close()
	stop := context.AfterFunc(h.closed, func() { _ = w.Close() })
	defer stop()
	if err := w.Wait(ctx, 0); err != nil {
		if h.closed.Err() != nil {
			return os.ErrClosed
		}
		return err
	}
	return nil
}

// use calls fn with the descriptor, which stays open until fn returns.
func (h *Handle) use(fn func(fd int) error) error { return h.fd.Use(fn) }

// free turns what pidfd_open(2) says of a number that is no process's into
// ErrGone: EINVAL, or ENOENT on later kernels, for a thread's, and for a process
// just being reaped. So that a filter's errno is not taken for that, it has to
// work on ourselves.
func free(err error) error {
	if !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOENT) {
		return err
	}
	fd, e := sys.PidfdOpen(os.Getpid(), 0)
	if e != nil {
		return err
	}
	_ = sys.Close(fd)
	return ErrGone
}

// gone turns ESRCH into ErrGone and leaves other errors as they are.
func gone(err error) error {
	if errors.Is(err, syscall.ESRCH) {
		return ErrGone
	}
	return err
}
