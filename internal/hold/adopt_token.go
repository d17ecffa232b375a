package hold

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"syscall"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/containment"
	"pinfold.dev/internal/inspect"
	"pinfold.dev/internal/sys"
	"pinfold.dev/pidfd"
)

// withTokens is a hold with processes beside it that are held by their identity
// alone: they were adopted, and are in no cgroup of the turn's and below no keeper
// of it. All that is done to the turn is done to each of these, through its handle;
// what they fork is not held.
type withTokens struct {
	containment.Hold
	x *keeping
}

// WithTokens is a Host whose holds can have processes beside them that are held by
// their identity alone.
type WithTokens struct{ *Host }

// Begin is Host.Begin.
func (h WithTokens) Begin(ctx context.Context, spec containment.Spec, hooks containment.Hooks) (containment.Hold, error) {
	x, err := h.Host.Begin(ctx, spec, hooks)
	return tokened(x), err
}

// Recover is Host.Recover.
func (h WithTokens) Recover(ctx context.Context, turn string, facts containment.Facts, hooks containment.Hooks) (containment.Hold, api.Verdict, error) {
	x, v, err := h.Host.Recover(ctx, turn, facts, hooks)
	return tokened(x), v, err
}

func tokened(x containment.Hold) containment.Hold {
	if k, ok := x.(interface{ kept() *keeping }); ok {
		return &withTokens{Hold: x, x: k.kept()}
	}
	return nil // there is none
}

func (x *keeping) kept() *keeping { return x }

// isToken tells whether a launch is held so; the hold's lock is not held.
func (x *keeping) isToken(process string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	p := x.procs[process]
	return p != nil && p.started.Placement == tokenPlacement
}

// tokens are the handles of those whose end is not known.
func (x *keeping) tokens() map[string]*pidfd.Handle {
	out := x.handles()
	maps.DeleteFunc(out, func(id string, _ *pidfd.Handle) bool { return !x.isToken(id) })
	return out
}

// living are those that have not exited.
func (w *withTokens) living() map[string]*pidfd.Handle {
	out := w.x.tokens()
	maps.DeleteFunc(out, func(_ string, h *pidfd.Handle) bool { over, err := h.Exited(); return err == nil && over })
	return out
}

// Ask sends each its stop signal, and CONT after it.
func (w *withTokens) Ask(ctx context.Context, stop func(process string) syscall.Signal) (int, error) {
	n, err := w.Hold.Ask(ctx, stop)
	for id, h := range w.living() {
		serr := h.Signal(stop(id))
		if serr == nil {
			n++
			serr = h.Signal(syscall.SIGCONT)
		}
		if !errors.Is(serr, pidfd.ErrGone) {
			err = errors.Join(err, serr)
		}
	}
	return n, err
}

// WaitEmpty waits for them, too.
func (w *withTokens) WaitEmpty(ctx context.Context) error {
	if err := w.Hold.WaitEmpty(ctx); err != nil {
		return err
	}
	for id, h := range w.x.tokens() {
		if err := h.Wait(ctx); err != nil && w.x.running(id) {
			return err
		}
	}
	return nil
}

// Kill kills them, too, and waits until each is seen gone.
func (w *withTokens) Kill(ctx context.Context, bound time.Duration) (containment.Killed, error) {
	out, err := w.killAll(ctx, bound)
	sayWhy(out.Survivors)
	return out, err
}

func (w *withTokens) killAll(ctx context.Context, bound time.Duration) (containment.Killed, error) {
	all := w.living()
	if len(all) == 0 {
		return w.Hold.Kill(ctx, bound)
	}
	at := time.Now()
	notes := kill(all)
	out, err := w.Hold.Kill(ctx, bound)
	if err != nil {
		return out, err
	}
	out.Notes = append(out.Notes, notes...)
	w.seeGone(ctx, all, at, at.Add(bound), &out)
	return out, nil
}

func kill(all map[string]*pidfd.Handle) (notes []string) {
	for _, id := range slices.Sorted(maps.Keys(all)) {
		if err := all[id].Signal(syscall.SIGKILL); err != nil && !errors.Is(err, pidfd.ErrGone) {
			notes = append(notes, fmt.Sprintf("kill %s: %v", id, err))
		}
	}
	return notes
}

// seeGone enters what becomes of those that were killed.
func (w *withTokens) seeGone(ctx context.Context, all map[string]*pidfd.Handle, at, deadline time.Time, out *containment.Killed) {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	if out.Evidence == nil {
		out.Evidence = map[string][]string{}
	}
	out.Seen += len(all)
	if out.KilledAt.IsZero() || out.KilledAt.After(at) {
		out.KilledAt = at
	}
	if out.Mechanism == "" {
		out.Mechanism = "none"
	}
	did(out, byHandles)
	for _, id := range slices.Sorted(maps.Keys(all)) {
		h := all[id]
		out.Evidence[id] = append(out.Evidence[id], "held by its pidfd, through which it was killed; what it has forked was not looked for")
		if h.Wait(ctx) != nil && w.x.running(id) {
			out.Survivors = append(out.Survivors, survivor(h.PID(), comm(h.PID())))
		}
	}
	switch {
	case len(out.Survivors) > 0:
		out.EmptyAt = time.Time{}
	case !out.EmptyAt.IsZero():
		out.EmptyAt = time.Now()
	}
}

// Members lists them, too.
func (w *withTokens) Members() ([]api.Member, error) {
	out, err := w.Hold.Members()
	for id, h := range w.living() {
		m, merr := memberOf(h.PID())
		if merr != nil {
			m = api.Member{PID: h.PID(), State: "?"}
		}
		m.Process, m.Grade = id, api.GradeToken
		m.Cgroup, _ = h.CgroupPath()
		out = append(out, m)
	}
	return out, err
}

// Alive counts them, too.
func (w *withTokens) Alive() (int, error) {
	n, err := w.Hold.Alive()
	return n + len(w.living()), err
}

// Targets lists them, too.
func (w *withTokens) Targets(ctx context.Context) ([]api.Target, error) {
	out, err := w.Hold.Targets(ctx)
	l := &looking{now: sys.BootTicks()}
	for id, h := range w.living() {
		t := api.Target{PID: h.PID(), Process: id, Verdict: api.VerdictOwned, Would: wouldSignal,
			Evidence: "adopted, and held by its pidfd ever since; it is not in the turn's cgroup",
			Why:      "it is ended through its handle; what it has forked is not"}
		if l.describe(h, &t) {
			out = append(out, t)
		}
	}
	return out, err
}

// EndLaunch ends one through its handle.
func (w *withTokens) EndLaunch(ctx context.Context, process string, stop syscall.Signal, grace, bound time.Duration, spare bool) (containment.Killed, error) {
	if !w.x.isToken(process) {
		out, err := w.Hold.EndLaunch(ctx, process, stop, grace, bound, spare)
		sayWhy(out.Survivors)
		return out, err
	}
	if spare {
		return containment.Killed{}, api.Errorf(api.CodeGradeUnavailable, "%s is held by its identity alone, and its descendants are not held", process).
			WithRemedy("end it as a whole")
	}
	var out containment.Killed
	one := w.living()
	maps.DeleteFunc(one, func(id string, _ *pidfd.Handle) bool { return id != process })
	if h := one[process]; h != nil && grace > 0 && h.Signal(stop) == nil {
		soon, cancel := context.WithTimeout(ctx, grace)
		_ = h.Signal(syscall.SIGCONT)
		_ = h.Wait(soon)
		cancel()
	}
	out.KilledAt, out.EmptyAt = time.Now(), time.Now()
	out.Notes = kill(one)
	w.seeGone(ctx, one, out.KilledAt, time.Now().Add(bound), &out)
	sayWhy(out.Survivors)
	return out, nil
}

// EndProcess ends one through its handle.
func (w *withTokens) EndProcess(ctx context.Context, process string, stop syscall.Signal, grace, bound time.Duration) error {
	if !w.x.isToken(process) {
		return w.Hold.EndProcess(ctx, process, stop, grace, bound)
	}
	out, err := w.EndLaunch(ctx, process, stop, grace, bound, false)
	if err == nil && len(out.Survivors) > 0 {
		err = fmt.Errorf("process %d survives, in state %s", out.Survivors[0].PID, out.Survivors[0].State)
	}
	return err
}

// Promote refuses what is not in the turn's cgroup.
func (w *withTokens) Promote(ctx context.Context, process string, limits *api.Limits) (int, error) {
	if w.x.isToken(process) {
		return 0, noJobOf(process)
	}
	return w.Hold.Promote(ctx, process, limits)
}

// Eject does so, too.
func (w *withTokens) Eject(ctx context.Context, from, process string, pid int, limits *api.Limits, before func(containment.Started) error) error {
	if w.x.isToken(from) {
		return noJobOf(from)
	}
	return w.Hold.Eject(ctx, from, process, pid, limits, before)
}

func noJobOf(process string) *api.Error {
	return api.Errorf(api.CodeGradeUnavailable, "%s is held by its identity alone: a job is in a cgroup", process).
		WithRemedy("start it as a job, or adopt it into a turn at grade cgroup")
}

// Uses tells how they use a directory: of a hold with a cgroup it is told already.
func (w *withTokens) Uses(ctx context.Context, dir string) ([]api.Use, []string, error) {
	uses, unseen, err := w.Hold.Uses(ctx, dir)
	if _, told := w.Hold.(*hold); told || err != nil {
		return uses, unseen, err
	}
	look, err := inspect.NewUses(dir)
	if err != nil {
		return uses, unseen, err
	}
	s := &seeing{x: w.x, ctx: ctx, look: look, seen: map[int]bool{}, uses: uses, unseen: unseen}
	for id, h := range w.living() {
		_ = s.one(h, api.Use{Turn: w.x.turn, Process: id})
	}
	return s.uses, s.unseen, ctx.Err()
}
