//go:build linux

package cgroup

import (
	"errors"
	"fmt"
	"syscall"

	"pinfold.dev/pidfd"
)

// Signal sends each process in it and below the signal that sig says for the
// cgroup it is in (relative, "" for the cgroup itself; 0: none), and CONT after
// it unless it was KILL, so that a stopped one can act on it. A frozen one
// cannot, until it is thawed. It returns how many were sent to; those that we
// may not signal are told in the error, and those that went meanwhile are not.
func (d *Dir) Signal(sig func(rel string) syscall.Signal) (int, error) {
	l, err := d.list("cgroup.procs")
	if err != nil {
		return 0, err
	}
	if err := d.refuse(l); err != nil {
		return 0, err
	}
	send := func(h *pidfd.Handle, p Pid) error {
		s := sig(p.Dir)
		if s == 0 {
			return errSkipped
		}
		if err := h.Signal(s); err != nil || s == syscall.SIGKILL {
			return err
		}
		return h.Signal(syscall.SIGCONT)
	}
	var loc pidfd.Locator
	n, err := signalProcesses(l, &loc, send)
	if n > 0 || err != nil || len(l.pids) > 0 {
		return n, err
	}
	if l, err = d.list("cgroup.threads"); err != nil {
		return 0, err
	}
	return signalThreads(l, &loc, send)
}

// errSkipped tells that a process was not to be signalled.
var errSkipped = errors.New("skipped")

// signalProcesses opens each listed process, makes sure that what was opened is
// in one of the listed cgroups, and lets send signal it: number, handle,
// membership, signal. It returns how many were sent to.
func signalProcesses(l listing, loc *pidfd.Locator, send func(*pidfd.Handle, Pid) error) (int, error) {
	var t tally
	for _, p := range l.pids {
		t.add(p, signalProcess(p, l.ids, loc, send))
	}
	return t.result()
}

func signalProcess(p Pid, ids map[uint64]bool, loc *pidfd.Locator, send func(*pidfd.Handle, Pid) error) error {
	h, err := pidfd.Open(p.PID)
	if err != nil {
		return err
	}
	defer h.Close()
	id, err := loc.CgroupID(h)
	if err != nil {
		return err
	}
	if !ids[id] {
		return errSkipped
	}
	return send(h, p)
}

// signalThreads does the same from a list of threads, once for each process
// that has one in it.
func signalThreads(l listing, loc *pidfd.Locator, send func(*pidfd.Handle, Pid) error) (int, error) {
	var t tally
	done := make(map[int]bool)
	for _, p := range l.pids {
		t.add(p, signalThread(p, l.ids, loc, done, send))
	}
	return t.result()
}

func signalThread(p Pid, ids map[uint64]bool, loc *pidfd.Locator, done map[int]bool, send func(*pidfd.Handle, Pid) error) error {
	h, id, err := loc.OpenThread(p.PID)
	if err != nil {
		return err
	}
	defer h.Close()
	if !ids[id] || done[h.PID()] {
		return errSkipped
	}
	done[h.PID()] = true
	return send(h, p)
}

// tally counts what was sent, and keeps the first of the errors that matter.
type tally struct {
	sent, failed int
	first        error
}

func (t *tally) add(p Pid, err error) {
	switch {
	case err == nil:
		t.sent++
	case errors.Is(err, errSkipped), errors.Is(err, pidfd.ErrGone):
	default:
		if t.failed++; t.first == nil {
			t.first = fmt.Errorf("member %d: %w", p.PID, err)
		}
	}
}

func (t *tally) result() (int, error) {
	if t.failed > 1 {
		return t.sent, fmt.Errorf("%w (and %d more)", t.first, t.failed-1)
	}
	return t.sent, t.first
}
