package pidfd

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"pinfold.dev/internal/sys"
)

// Thread owns a pidfd of one thread (PIDFD_THREAD, Linux 6.9).
type Thread struct {
	tid int
	fd  *sys.FD
}

// OpenThread opens a handle on one thread. ErrGone: there is none of that number.
// ErrNotSupported: before Linux 6.9.
func OpenThread(tid int) (*Thread, error) {
	if tid <= 1 {
		return nil, RefusePID(tid, 0)
	}
	fd, err := sys.PidfdOpen(tid, sys.PidfdThread)
	if errors.Is(err, syscall.EINVAL) {
		err = &Unsupported{"handles of threads", "6.9", err}
	}
	if err != nil {
		return nil, fmt.Errorf("open thread %d: %w", tid, gone(err))
	}
	return &Thread{tid, sys.NewFD(fd, "pidfd of a thread")}, nil
}

// TID is the thread id that the handle was made with.
func (t *Thread) TID() int { return t.tid }

// Close closes the descriptor. Closing again does nothing.
func (t *Thread) Close() error { return t.fd.Close() }

// PID is the process that the thread belongs to, from PIDFD_GET_INFO (6.13) or
// the thread's /proc. ErrGone: the thread has ended.
func (t *Thread) PID() (int, error) {
	pid := 0
	err := t.fd.Use(func(fd int) error {
		in, err := sys.PidfdGetInfo(fd, sys.PidfdInfoPID)
		if err == nil && in.Mask&sys.PidfdInfoPID != 0 && in.TGID > 0 {
			pid = in.TGID
			return nil
		}
		if errors.Is(err, syscall.ESRCH) {
			return ErrGone
		}
		b, err := sys.ProcFile(t.tid, "status")
		if e := sys.PidfdSendSignal(fd, 0, 0); errors.Is(e, syscall.ESRCH) {
			return ErrGone
		}
		if err != nil {
			return err
		}
		if !ReadHere().Proc {
			return errNoProc
		}
		s, err := sys.ParseStatus(b)
		pid = s.TGID
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("find process of thread %d: %w", t.tid, err)
	}
	return pid, nil
}

// Signal sends sig to this thread alone. Most signals end or stop the whole
// process all the same (signal(7)), so it is refused for what must never be
// signalled, as Handle.Signal is. ErrGone: the thread has ended.
func (t *Thread) Signal(sig syscall.Signal) error {
	pid, err := t.PID()
	if err != nil {
		return err
	}
	if err := errors.Join(RefusePID(pid, os.Getpid()), RefuseAncestor(pid)); err != nil {
		return err
	}
	err = t.fd.Use(func(fd int) error { return sys.PidfdSendSignal(fd, sig, sys.PidfdSignalThread) })
	if errors.Is(err, syscall.EINVAL) {
		err = &Unsupported{"signals to one thread", "6.9", err}
	}
	if err != nil {
		return fmt.Errorf("signal thread %d: %w", t.tid, gone(err))
	}
	return nil
}
