package fallback

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys"
	"pinfold.dev/pidfd"
)

// clock is time, for decisions that wait.
type clock interface {
	now() time.Time
	sleep(ctx context.Context, d time.Duration)
}

// pidfdRef holds a process by its pidfd.
type pidfdRef struct {
	h   *pidfd.Handle
	at  pidfd.Here
	loc *pidfd.Locator
	own bool // the handle is ours to close
}

func newHandleRef(h *pidfd.Handle, at pidfd.Here) ref {
	return &pidfdRef{h: h, at: at, loc: new(pidfd.Locator)}
}

func (r *pidfdRef) how() How { return ByPidfd }

func (r *pidfdRef) pid() int { return r.h.PID() }

func (r *pidfdRef) read() (pidfd.Seen, error) {
	s, err := r.loc.Look(r.h, r.at)
	if err != nil || s.Group != 0 {
		return s, err
	}
	g, err := syscall.Getpgid(s.PID) // where /proc does not say
	if err == nil && r.h.Life() != pidfd.Reaped {
		s.Group = g
	}
	return s, nil
}

func (r *pidfdRef) life() pidfd.Life { return r.h.Life() }

func (r *pidfdRef) signal(sig syscall.Signal) error { return r.h.Signal(sig) }

func (r *pidfdRef) wait(ctx context.Context) error { return r.h.Wait(ctx) }

func (r *pidfdRef) close() error {
	if !r.own {
		return nil
	}
	return r.h.Close()
}

// dirRef holds a process by its open directory in /proc. What is read through
// it is that process's or nobody's (ESRCH), whatever becomes of the number.
type dirRef struct {
	k         *linux
	n         int
	dir, stat *sys.FD
	mu        sync.Mutex
	buf       [1024]byte
}

// errThread tells that a number is that of a thread.
var errThread = fmt.Errorf("%w: its number is a thread's", pidfd.ErrGone)

// openDir opens a process in /proc. What is not there is gone only when the
// kernel says that the number is free: it may be hidden.
func (k *linux) openDir(pid int) (ref, error) {
	if pid <= 1 {
		return nil, pidfd.RefusePID(pid, 0)
	}
	if !k.at.Proc {
		return nil, fmt.Errorf("hold process %d: no pidfd, and no /proc of our PID namespace", pid)
	}
	dir, err := sys.Openat(sys.AtFDCWD, "/proc/"+strconv.Itoa(pid), sys.ODirectory)
	if err != nil {
		return nil, k.free(pid, err)
	}
	r := &dirRef{k: k, n: pid, dir: sys.NewFD(dir, "proc directory")}
	stat, err := sys.Openat(dir, "stat", sys.ORdonly)
	if err == nil {
		r.stat = sys.NewFD(stat, "proc stat")
		err = isProcess(dir, pid)
	}
	if err != nil {
		_ = r.close()
		return nil, k.free(pid, err)
	}
	return r, nil
}

// isProcess tells a process from a thread, which has a directory, too, and to
// which kill(2) would deliver for all of its process.
func isProcess(dir, pid int) error {
	b, err := sys.ReadFileAt(dir, "status")
	if err != nil {
		return err
	}
	s, err := sys.ParseStatus(b)
	if err == nil && s.TGID != pid {
		err = errThread
	}
	return err
}

// free turns an error of /proc into pidfd.ErrGone when the kernel has nobody of
// that number.
func (k *linux) free(pid int, err error) error {
	if errors.Is(err, pidfd.ErrGone) {
		return err
	}
	if errors.Is(killNumber(pid, 0), syscall.ESRCH) {
		return fmt.Errorf("hold process %d: %w", pid, pidfd.ErrGone)
	}
	return fmt.Errorf("hold process %d: %w", pid, err)
}

func (r *dirRef) how() How {
	if r.k.sends {
		return ByProcDir
	}
	return ByToken
}

func (r *dirRef) pid() int { return r.n }

// parse reads stat through the held descriptor.
func (r *dirRef) parse() (st sys.Stat, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	err = r.stat.Use(func(fd int) (err error) { n, err = sys.Pread(fd, r.buf[:], 0); return })
	if errors.Is(err, syscall.ESRCH) {
		err = pidfd.ErrGone
	}
	if err != nil {
		return st, err
	}
	if st, err = sys.ParseStat(r.buf[:n]); err == nil && st.PID != r.n {
		err = sys.ErrParse
	}
	return st, err
}

func (r *dirRef) read() (pidfd.Seen, error) {
	st, err := r.parse()
	if err != nil {
		return pidfd.Seen{}, fmt.Errorf("read process %d: %w", r.n, err)
	}
	at := r.k.at
	s := pidfd.Seen{
		Identity: api.Identity{PID: r.n, Boot: at.Boot, PIDNS: at.PIDNS, TimeNS: at.TimeNS, StartTicks: st.StartTicks},
		Comm:     st.Comm, State: st.State, Parent: st.PPID, Group: st.Group, Session: st.Session, Threads: st.Threads,
	}
	_ = r.dir.Use(func(fd int) (err error) { s.CgroupID, err = r.k.loc.CgroupIDAt(fd); return })
	return s, nil
}

func (r *dirRef) life() pidfd.Life {
	st, err := r.parse()
	switch {
	case errors.Is(err, pidfd.ErrGone):
		return pidfd.Reaped
	case err != nil:
		return pidfd.Unknown
	case (st.State == 'Z' || st.State == 'X') && st.Threads <= 1:
		return pidfd.Exited
	}
	return pidfd.Alive
}

func (r *dirRef) signal(sig syscall.Signal) error {
	err := r.k.refuse(r.n)
	switch {
	case err != nil:
	case r.k.sends:
		err = r.dir.Use(func(fd int) error { return sys.PidfdSendSignal(fd, sig, 0) })
	default:
		err = killNumber(r.n, sig)
	}
	if errors.Is(err, syscall.ESRCH) {
		err = pidfd.ErrGone
	}
	return err
}

func (r *dirRef) wait(ctx context.Context) error {
	for d := time.Millisecond; ; d = min(2*d, 20*time.Millisecond) {
		switch r.life() {
		case pidfd.Exited, pidfd.Reaped:
			return nil
		case pidfd.Unknown:
			_, err := r.parse()
			return err
		}
		if r.k.sleep(ctx, d); ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

func (r *dirRef) close() error {
	err := r.dir.Close()
	if r.stat != nil {
		err = errors.Join(err, r.stat.Close())
	}
	return err
}

// killNumber is kill(2) with a number that was stored: the one place of all
// Pinfold, which a test of internal/archtest sees to. It is for those who have just
// verified what has the number, and will again; a negative number, which means
// a group, is only asked about.
func killNumber(n int, sig syscall.Signal) error {
	err := pidfd.RefusePID(n, os.Getpid())
	if n < -1 && sig == 0 {
		err = pidfd.RefuseGroup(-n, syscall.Getpgrp())
	}
	if err == nil && sig != 0 {
		err = pidfd.RefuseAncestor(n)
	}
	if err != nil {
		return err
	}
	return os.NewSyscallError("kill", syscall.Kill(n, sig))
}
