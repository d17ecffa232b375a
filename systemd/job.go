package systemd

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/godbus/dbus/v5"
)

// jobDone is what the manager says about a job that has ended.
type jobDone struct {
	path   dbus.ObjectPath
	result string // done, failed, canceled, timeout, dependency, skipped
}

// jobs hands the ends of jobs to those who wait for them. Waiting is by unit
// and begins before the call, as the end may come before the call's answer is
// seen. It is the connection's signal handler, so nothing is queued for a
// reader who is late.
type jobs struct {
	mu      sync.Mutex
	waiting map[string][]chan jobDone
}

func newJobs() *jobs { return &jobs{waiting: make(map[string][]chan jobDone)} }

// wait registers for the ends of the unit's jobs, until stop is called.
func (j *jobs) wait(unit string) (ended <-chan jobDone, stop func()) {
	ch := make(chan jobDone, 8) // so that the connection's reader never waits
	j.mu.Lock()
	defer j.mu.Unlock()
	j.waiting[unit] = append(j.waiting[unit], ch)
	return ch, func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		rest := j.waiting[unit][:0]
		for _, c := range j.waiting[unit] {
			if c != ch {
				rest = append(rest, c)
			}
		}
		if j.waiting[unit] = rest; len(rest) == 0 {
			delete(j.waiting, unit)
		}
	}
}

// DeliverSignal takes JobRemoved; it is called by the connection's reader.
func (j *jobs) DeliverSignal(iface, name string, s *dbus.Signal) {
	if iface != managerIface || name != "JobRemoved" {
		return
	}
	var id uint32
	var unit string
	var done jobDone
	if err := dbus.Store(s.Body, &id, &done.path, &unit, &done.result); err != nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, ch := range j.waiting[unit] {
		select {
		case ch <- done:
		default:
		}
	}
}

// jobError is a job that did not end as "done".
type jobError string

func (e jobError) Error() string { return "its job ended as " + string(e) }

// errJobPending is in the chain of the error for a job that has not ended yet.
var errJobPending = errors.New("its job has not ended yet")

// waitJob waits for the end of one job; others of the unit do not matter.
func waitJob(ctx context.Context, l *link, job dbus.ObjectPath, ended <-chan jobDone) error {
	for {
		select {
		case d := <-ended:
			switch {
			case d.path != job:
			case d.result == "done":
				return nil
			default:
				return jobError(d.result)
			}
		case <-l.conn.Context().Done():
			return dbus.ErrClosed
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", errJobPending, ctx.Err())
		}
	}
}
