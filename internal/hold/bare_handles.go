package hold

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/containment"
	"pinfold.dev/fallback"
	"pinfold.dev/pidfd"
)

// An ending without a cgroup whose keeper is gone: nothing is left but the handles of
// launched processes, and what they are known by.

// killByHandles ends the launched processes whose keeper is gone, with who is below
// them.
func (x *bare) killByHandles(ctx context.Context, until time.Time, out *containment.Killed) {
	if x.facts.Grade == api.GradePIDNS {
		return
	}
	held := x.held()
	launches := x.launchPIDs()
	var ended []*pidfd.Handle
	todo := len(held)
	for id, h := range held {
		share := time.Until(until) / time.Duration(todo) // one that comes to no end takes nothing from the others
		todo--
		if over, err := h.Exited(); err == nil && over {
			continue
		}
		p, done, err := x.holdLaunch(id, h)
		if err != nil {
			out.Notes = append(out.Notes, fmt.Sprintf("hold %s: %v", id, err))
			continue
		}
		ended = append(ended, h)
		if out.Seen == 0 {
			did(out, byHandles)
		}
		out.Seen++
		res := x.host.fb.End(ctx, p, fallback.Ending{MaxTime: share, Root: true})
		if res.Outcome != fallback.Dead { // it had no time for that, say
			_, _, _ = p.Signal(syscall.SIGKILL)
		}
		done()
		left := out.Survivors
		x.tell(res, launches, out)
		out.Survivors = append(left, out.Survivors...)
		out.Evidence[id] = append(out.Evidence[id], "held by its handle; its keeper is gone")
	}
	awaitGone(ctx, until, ended, out)
	nameSurvivors(out, held)
	x.killKnown(ctx, until, out)
}

// awaitGone waits until those that were killed have exited: to die takes its time,
// and those before may have used up what there was for all.
func awaitGone[P interface{ Wait(context.Context) error }](ctx context.Context, until time.Time, all []P, out *containment.Killed) {
	ctx, cancel := context.WithDeadline(ctx, laterOf(until, time.Now().Add(dyingTime)))
	defer cancel()
	for _, p := range all {
		_ = p.Wait(ctx)
	}
	for {
		out.Survivors = slices.DeleteFunc(out.Survivors, hasEnded)
		if !slices.ContainsFunc(out.Survivors, func(s api.Survivor) bool { return s.PID > 0 }) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func laterOf(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// holdLaunch holds a launched process by a handle of its own, since whoever is told of
// its end closes the launch's, or, where a sandbox lets no signal through that, by what
// else there is. done lets go of it.
func (x *bare) holdLaunch(id string, h *pidfd.Handle) (p *fallback.Process, done func(), err error) {
	if !sandboxed(h.Signal(0)) {
		return x.holdAgain(h)
	}
	x.mu.Lock()
	rec := x.started(x.procs[id].started).Identity
	x.mu.Unlock()
	p, v, why := x.host.fb.Recall(rec)
	if p == nil {
		return nil, nil, fmt.Errorf("it is %s: %s", v, join(why))
	}
	return p, func() { p.Close() }, nil
}

// holdAgain holds a process by another handle on it.
func (x *bare) holdAgain(h *pidfd.Handle) (p *fallback.Process, done func(), err error) {
	fd, err := h.Dup()
	if err != nil {
		return nil, nil, err
	}
	own := pidfd.FromFD(fd, h.PID())
	if p, err = x.host.fb.HoldHandle(own); err != nil {
		return nil, nil, errors.Join(err, own.Close())
	}
	return p, func() { p.Close(); own.Close() }, nil
}

// killKnown ends launches without a keeper or a handle by what they are known by;
// those that cannot be verified are refused.
func (x *bare) killKnown(ctx context.Context, until time.Time, out *containment.Killed) {
	known, unsure := x.unheld()
	out.Refused = append(out.Refused, unsure...)
	x.mu.Lock()
	for _, m := range x.wards {
		known[fmt.Sprintf("process %d", m.Identity().PID)] = m.Process
	}
	x.mu.Unlock()
	var ended []*fallback.Process
	todo := len(known)
	for _, p := range known {
		share := time.Until(until) / time.Duration(todo)
		todo--
		if v, _ := p.Verify(); v == api.VerdictGone {
			continue
		}
		if out.Seen == 0 {
			did(out, byHandles)
		}
		out.Seen++
		res := x.host.fb.End(ctx, p, fallback.Ending{MaxTime: share, Root: true})
		if res.Outcome != fallback.Dead {
			_, _, _ = p.Signal(syscall.SIGKILL)
		}
		left := out.Survivors
		x.tell(res, nil, out)
		out.Survivors = append(left, out.Survivors...)
		ended = append(ended, p)
	}
	awaitGone(ctx, until, ended, out)
	for id, p := range known {
		if v, why := p.Verify(); v == api.VerdictOwned {
			out.Survivors = append(out.Survivors, survivor(p.Identity().PID, ""))
			out.Evidence[id] = append(out.Evidence[id], why...)
		}
	}
}
