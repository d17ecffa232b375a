package hold

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/cgroup"
	"pinfold.dev/containment"
	"pinfold.dev/internal/fault"
	"pinfold.dev/internal/wire"
	"pinfold.dev/pidfd"
)

// Bounds of moves. They are made of small steps; these are for a host that does
// not get to them.
const (
	moveTime = 10 * time.Second // to move
	backTime = 10 * time.Second // to move back
)

// Promote moves a launch's leaf to jobs/.
func (x *hold) Promote(ctx context.Context, process string, limits *api.Limits) (int, error) {
	x.jobs.moving.Lock()
	defer x.jobs.moving.Unlock()
	if x.isJob(process) {
		return 0, api.Errorf(api.CodeBadRequest, "%s is a job already", process)
	}
	from, err := x.work.Open(process)
	if isRemoved(err) {
		return 0, noMembers(process)
	}
	if err != nil {
		return 0, fmt.Errorf("open the leaf of %s: %w", process, err)
	}
	defer from.Close()
	if populated, err := from.Populated(); err != nil || !populated {
		return 0, errors.Join(err, errUnless(err != nil, noMembers(process)))
	}
	to, err := x.makeJob(process, limits)
	if err != nil {
		return 0, err
	}
	defer to.Close()
	return x.fill(ctx, process, from, to, func(ctx context.Context) (int, error) { return from.MoveAll(ctx, to) })
}

// errUnless is err, unless cond holds.
func errUnless(cond bool, err error) error {
	if cond {
		return nil
	}
	return err
}

func noMembers(process string) *api.Error {
	return api.Errorf(api.CodeNotFound, "nothing of %s is in the turn's cgroup any more", process)
}

// makeJob makes a job's leaf. It is no job until it bears the turn's mark.
func (x *hold) makeJob(process string, limits *api.Limits) (*cgroup.Dir, error) {
	all, err := x.makeJobs(limits)
	if err != nil {
		return nil, err
	}
	to, err := all.Make(process)
	fault.Point("job.made")
	if errors.Is(err, os.ErrExist) {
		return nil, containment.ErrUsed
	}
	if err != nil {
		return nil, fmt.Errorf("make the job's cgroup: %w", err)
	}
	return to, nil
}

// fill has a job's leaf filled, and makes it a job; or everything goes back.
func (x *hold) fill(ctx context.Context, process string, from, to *cgroup.Dir, move func(context.Context) (int, error)) (int, error) {
	soon, cancel := context.WithTimeout(ctx, moveTime)
	defer cancel()
	if err := to.Mark(fillingMark + strings.TrimPrefix(from.Path(), x.dir.Path()+"/")); err != nil {
		return 0, errors.Join(err, to.Remove(context.WithoutCancel(ctx)))
	}
	fault.Point("job.filling")
	j := &job{}
	x.enterJob(process, j) // from its first member on it is none of the turn's
	n, err := move(soon)
	if err == nil && n == 0 {
		err = noMembers(process)
	}
	if err == nil {
		fault.Point("job.filled")
		err = to.Mark(x.facts.Nonce)
		fault.Point("job.marked")
	}
	if err != nil {
		err = errors.Join(moveRefused(process, err), unfill(context.WithoutCancel(ctx), from, to))
		x.enterJob(process, nil)
		return 0, err
	}
	before := from.Usage()
	x.mu.Lock()
	j.before = before
	x.mu.Unlock()
	return n, nil
}

// enterJob notes that a launch is a job, or, with nil, that it is none.
func (x *hold) enterJob(process string, j *job) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if j == nil {
		delete(x.jobs.of, process)
	} else {
		x.jobs.of[process] = j
	}
}

// moveRefused says what kept a launch from becoming a job.
func moveRefused(process string, err error) error {
	var e *api.Error
	if errors.As(err, &e) {
		return err
	}
	out := api.Errorf(api.CodeUnavailable, "make %s a job: %v", process, err)
	if errors.Is(err, pidfd.ErrGone) {
		out.Code = api.CodeNotFound
	}
	return out
}

// unfill takes an unfinished job's leaf back.
func unfill(ctx context.Context, from, to *cgroup.Dir) error {
	ctx, cancel := context.WithTimeout(ctx, backTime)
	defer cancel()
	if _, err := to.MoveAll(ctx, from); err != nil {
		return fmt.Errorf("move back: %w", err)
	}
	return to.Remove(ctx)
}

// Eject makes a job of one member of a launch's leaf and its descendants.
func (x *hold) Eject(ctx context.Context, from, process string, pid int, limits *api.Limits, before func(containment.Started) error) error {
	x.jobs.moving.Lock()
	defer x.jobs.moving.Unlock()
	leaf, err := x.openLeaf(from)
	if isRemoved(err) {
		return noMembers(from)
	}
	if err != nil {
		return fmt.Errorf("open the leaf of %s: %w", from, err)
	}
	defer leaf.Close()
	h, err := x.member(leaf, from, pid)
	if err != nil {
		return err
	}
	s, err := x.eject(ctx, leaf, h, process, limits, before)
	if err != nil {
		h.Close()
		return err
	}
	x.enterJoined(s, h)
	return nil
}

// member opens one that is in a leaf, and is not the launched process.
func (x *hold) member(leaf *cgroup.Dir, from string, pid int) (*pidfd.Handle, error) {
	if err := pidfd.RefusePID(pid, os.Getpid()); err != nil {
		return nil, api.Errorf(api.CodeNotFound, "process %d is none that %s has forked: %v", pid, from, err)
	}
	x.mu.Lock()
	p := x.procs[from]
	x.mu.Unlock()
	if p != nil && p.started.PID == pid && x.running(from) {
		return nil, api.Errorf(api.CodeBadRequest, "process %d is %s itself", pid, from).WithRemedy("promote %s", from)
	}
	var out *pidfd.Handle
	hidden, err := leaf.Each(func(h *pidfd.Handle, f cgroup.Found) error {
		if f.PID != pid || out != nil {
			return nil
		}
		fd, err := h.Dup()
		if err != nil {
			return err
		}
		out = pidfd.FromFD(fd, pid)
		return nil
	})
	switch {
	case out != nil:
		return out, nil
	case err != nil:
		return nil, api.Errorf(api.CodeNotFound, "process %d is not seen in %s: %v", pid, from, err)
	case hidden > 0:
		return nil, api.Errorf(api.CodeNotFound, "process %d is not seen in %s, of which some are in a PID namespace that the service cannot see", pid, from)
	}
	return nil, api.Errorf(api.CodeNotFound, "there is no process %d in %s", pid, from).WithRemedy("see who is by `pinfold tree %s`", x.turn)
}

// eject makes the leaf, has it recorded who is to be in it, and moves.
func (x *hold) eject(ctx context.Context, from *cgroup.Dir, h *pidfd.Handle, process string, limits *api.Limits,
	before func(containment.Started) error) (wire.Started, error) {
	to, err := x.makeJob(process, limits)
	if err != nil {
		return wire.Started{}, err
	}
	defer to.Close()
	s, err := x.joining(process, h, to)
	if err == nil {
		err = before(x.started(s))
	}
	if err != nil {
		return s, errors.Join(err, to.Remove(context.WithoutCancel(ctx)))
	}
	_, err = x.fill(ctx, process, from, to, func(ctx context.Context) (int, error) { return from.MoveTree(ctx, to, h) })
	return s, err
}
