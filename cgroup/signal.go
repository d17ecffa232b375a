//go:build linux

package cgroup

import (
	"errors"
	"fmt"
	"os"
	"strconv"
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
		if err := h.Signal(syscall.SIGCONT); !errors.Is(err, pidfd.ErrGone) {
			return err
		}
		return nil // it has acted on the first already
	}
	var loc pidfd.Locator
	done := make(map[int]bool)
	// It may hold processes whose main thread has exited and that were moved here.
	// They are looked for first: what a signal makes others start is to get none.
	_, rest, restErr := d.unlisted(l)
	n, err := signalAll(l, &loc, done, signalProcess, send)
	if restErr != nil {
		return n, errors.Join(err, restErr)
	}
	more, restErr := signalAll(rest, &loc, done, signalThread, send)
	return n + more, errors.Join(err, restErr)
}

// errSkipped tells that a process was not to be signalled.
var errSkipped = errors.New("skipped")

// sender signals a process that has been verified to be a member.
type sender func(*pidfd.Handle, Pid) error

// signalPass opens what a number of a list stands for, makes sure that what was
// opened is in one of the listed cgroups and not in done, and has it signalled:
// number, handle, membership, signal.
type signalPass func(p Pid, ids map[uint64]bool, loc *pidfd.Locator, done map[int]bool, send sender) error

// signalAll does so with each number in a list, and returns how many processes
// were sent to.
func signalAll(l listing, loc *pidfd.Locator, done map[int]bool, pass signalPass, send sender) (int, error) {
	var t tally
	for _, p := range l.pids {
		t.add(p, pass(p, l.ids, loc, done, send))
	}
	return t.result()
}

// signalProcess is the pass for numbers of processes.
func signalProcess(p Pid, ids map[uint64]bool, loc *pidfd.Locator, done map[int]bool, send sender) error {
	h, err := pidfd.Open(p.PID)
	if err != nil {
		return err
	}
	defer h.Close()
	id, err := loc.CgroupID(h)
	if err != nil {
		return err
	}
	if !ids[id] || movedOn(p.PID, ids, loc) {
		return errSkipped
	}
	done[p.PID] = true
	return send(h, p)
}

// movedOn tells a process whose main thread has exited in one of the cgroups, and
// whose other threads were moved elsewhere: it is listed still, and is no member.
func movedOn(pid int, ids map[uint64]bool, loc *pidfd.Locator) bool {
	if s, ok := readStat(pid, "stat"); !ok || s.State != 'Z' {
		return false
	}
	in, out := threadsIn(pid, ids, loc)
	return out && !in
}

// threadsIn tells whether live threads of a process, its main one apart, are in
// one of the cgroups, and whether some are not.
func threadsIn(pid int, ids map[uint64]bool, loc *pidfd.Locator) (in, out bool) {
	tasks, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task")
	if err != nil {
		return false, false
	}
	for _, t := range tasks {
		tid, err := strconv.Atoi(t.Name())
		if err != nil || tid == pid {
			continue
		}
		h, id, err := loc.OpenThread(tid)
		if err != nil {
			continue
		}
		_ = h.Close()
		in, out = in || ids[id], out || !ids[id]
	}
	return in, out
}

// signalThread is the pass for numbers of threads: it goes by the cgroup of the
// thread and signals its process, once.
func signalThread(p Pid, ids map[uint64]bool, loc *pidfd.Locator, done map[int]bool, send sender) error {
	if done[p.PID] {
		return errSkipped // its main thread
	}
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
