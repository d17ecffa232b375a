//go:build linux

package cgroup

import (
	"context"
	"errors"

	"pinfold.dev/pidfd"
)

// Found is a member that was opened.
type Found struct {
	PID int
	Dir string // of which cgroup: relative, "" for the one that was looked at
	ID  uint64 // its kernfs id, as the handle tells it; 0: only its threads show it
}

// Each opens each process in it and below, also those that only their threads
// show, and calls fn with those that the handle says are in there. The handle is
// closed after fn. hidden counts members in a PID namespace that we cannot see.
// One that cannot be opened, or fn's first error, is returned after all others
// were gone through; after one of a context that is done no more are opened.
func (d *Dir) Each(fn func(h *pidfd.Handle, f Found) error) (hidden int, err error) {
	var loc pidfd.Locator
	done := make(map[int]bool)
	var first error
	over := false
	for _, each := range []struct {
		file string
		pass signalPass
	}{{"cgroup.procs", signalProcess}, {"cgroup.threads", signalThread}} {
		l, err := d.list(each.file)
		if err != nil {
			return hidden, err
		}
		if each.file == "cgroup.procs" {
			hidden = l.hidden
		}
		pass := func(p Pid, ids map[uint64]bool, loc *pidfd.Locator, done map[int]bool, send sender) error {
			if over {
				return errSkipped
			}
			err := each.pass(p, ids, loc, done, send)
			over = errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
			return err
		}
		_, err = signalAll(l, &loc, done, pass, func(h *pidfd.Handle, p Pid) error {
			if over, err := h.Exited(); err != nil || over {
				return errSkipped
			}
			f := Found{PID: h.PID(), Dir: p.Dir}
			if each.file == "cgroup.procs" {
				var err error
				if f.ID, err = loc.CgroupID(h); err != nil {
					return err
				}
			}
			return fn(h, f)
		})
		if first == nil {
			first = err
		}
		if over {
			break
		}
	}
	return hidden, first
}
