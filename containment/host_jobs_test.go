package containment

import (
	"context"
	"time"

	"pinfold.dev/api"
)

// memJobs is what a memHold has beside its launches: jobs, which no Kill reaches.
// The lock is the hold's.
type memJobs struct {
	jobs       map[string]int // launch to pid
	promoteErr error
}

func (x *memHold) Promote(ctx context.Context, process string, limits *api.Limits) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	pid, ok := x.live[process]
	switch {
	case x.promoteErr != nil:
		return 0, x.promoteErr
	case !ok:
		return 0, api.Errorf(api.CodeNotFound, "nothing of %s is left", process)
	}
	delete(x.live, process)
	if x.slow.promote != nil {
		x.mu.Unlock()
		err := x.slow.promote()
		x.mu.Lock()
		if err != nil {
			x.live[process] = pid
			return 0, err
		}
	}
	x.enterJob(process, pid)
	return 1, nil
}

func (x *memHold) enterJob(process string, pid int) {
	if x.jobs == nil {
		x.jobs = map[string]int{}
	}
	x.jobs[process] = pid
}

func (x *memHold) Eject(ctx context.Context, from, process string, pid int, limits *api.Limits, before func(Started) error) error {
	x.mu.Lock()
	_, ok := x.live[from]
	x.mu.Unlock()
	if !ok {
		return api.Errorf(api.CodeNotFound, "process %d is not in the leaf of %s", pid, from)
	}
	if err := before(Started{Process: process, PID: pid, Identity: api.Identity{PID: pid, Ino: uint64(pid) * 10}, Placement: "join"}); err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.enterJob(process, pid)
	return nil
}

func (x *memHold) JobMembers(process string) (out []api.Member, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if pid, ok := x.jobs[process]; ok {
		out = append(out, api.Member{PID: pid, Process: process, State: "S"})
	}
	return out, nil
}

func (x *memHold) JobAlive(process string) (int, error) {
	ms, err := x.JobMembers(process)
	return len(ms), err
}

func (x *memHold) WaitJob(ctx context.Context, process string) error {
	for {
		if n, _ := x.JobAlive(process); n == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (x *memHold) JobUsage(process string) api.Usage { return api.NoUsage() }
