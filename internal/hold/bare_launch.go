package hold

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/containment"
	"pinfold.dev/fallback"
	"pinfold.dev/pidfd"
)

// EndLaunch ends a launched process with who is seen below it, or, with spare, those
// alone. Who has lost a parent is below the keeper then, and ends with the turn.
func (x *bare) EndLaunch(ctx context.Context, process string, stop syscall.Signal, grace, bound time.Duration, spare bool) (containment.Killed, error) {
	out := containment.Killed{Mechanism: "none", KilledAt: time.Now(), Evidence: map[string][]string{}}
	h, p := x.handleOf(process), x.knownOf(process)
	switch {
	case h != nil:
		var err error
		var done func()
		if p, done, err = x.holdLaunch(process, h); err != nil {
			return x.endLaunched(ctx, process, h, stop, grace, bound, spare, out)
		}
		defer done()
	case p == nil && x.endless(process):
		return out, api.Errorf(api.CodeUnavailable, "%s cannot be verified, and is not signalled", process).
			WithRemedy("end the turn, whose keeper may reach it")
	case p == nil:
		out.EmptyAt = time.Now()
		out.Notes = append(out.Notes, "the launched process had ended: what it has left below the keeper is not told apart, and ends with the turn")
		return out, nil
	}
	did(&out, byWalk)
	var below []fallback.Member
	if s, err := x.host.fb.Observe(ctx, p); err == nil { // held before anybody goes, and loses the rest
		defer s.Close()
		below = s.Members
	}
	if out.Seen = len(below); !spare {
		out.Seen++
	}
	if grace > 0 {
		if x.askBelow(ctx, process, p, below, stop, grace, spare) {
			out.EmptyAt = time.Now()
			return out, nil
		}
	}
	if !spare {
		_, _, _ = p.Signal(syscall.SIGSTOP) // so that it forks nothing meanwhile
	}
	res := x.host.fb.End(ctx, p, fallback.Ending{MaxTime: bound, Root: !spare})
	x.tell(res, map[int]string{p.Identity().PID: process}, &out)
	x.endRest(ctx, below, bound, &out)
	if !res.KilledAt.IsZero() {
		out.KilledAt = res.KilledAt
	}
	if h != nil && !spare && res.Outcome != fallback.Dead {
		if over, err := h.Exited(); err == nil && !over {
			return x.endLaunched(ctx, process, h, stop, 0, bound, spare, out)
		}
	}
	if len(out.Survivors) == 0 && (res.Outcome == fallback.Dead || h != nil && !x.running(process)) {
		out.EmptyAt = time.Now()
	}
	return out, nil
}

// askBelow sends a launched process, unless it is spared, and those below it a stop
// signal, waits out the grace, or less, and tells whether all of them have gone.
func (x *bare) askBelow(ctx context.Context, process string, p *fallback.Process, below []fallback.Member, stop syscall.Signal, grace time.Duration, spare bool) bool {
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	if !spare {
		for _, sig := range []syscall.Signal{stop, syscall.SIGCONT} {
			if v, _ := x.Signal(ctx, process, sig); v == api.VerdictUnverifiable { // it has no handle
				_, _, _ = p.Signal(sig)
			}
		}
	}
	for _, m := range below {
		_, _, _ = m.Signal(stop)
		_, _, _ = m.Signal(syscall.SIGCONT)
	}
	for _, m := range below {
		if m.Wait(ctx) != nil {
			return false
		}
	}
	s, err := x.host.fb.Observe(ctx, p)
	if err == nil {
		defer s.Close()
	}
	return !spare && p.Wait(ctx) == nil || spare && err == nil && s.Whole && len(s.Members) == 0
}

// endRest ends those that were seen below a launch and have lost it meanwhile.
func (x *bare) endRest(ctx context.Context, below []fallback.Member, bound time.Duration, out *containment.Killed) {
	for _, m := range below {
		if v, _ := m.Verify(); v != api.VerdictOwned {
			continue
		}
		left := out.Survivors
		x.tell(x.host.fb.End(ctx, m.Process, fallback.Ending{MaxTime: bound, Root: true}), nil, out)
		out.Survivors = append(left, out.Survivors...)
	}
}

// awaitExit tells whether a launched process has ended, or does within d.
func (x *bare) awaitExit(ctx context.Context, process string, h *pidfd.Handle, d time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, max(d, 0))
	defer cancel()
	over, err := h.Exited()
	return err == nil && over || h.Wait(ctx) == nil || !x.running(process)
}

// endLaunched ends the launched process alone, where nobody can look below it.
func (x *bare) endLaunched(ctx context.Context, process string, h *pidfd.Handle, stop syscall.Signal, grace, bound time.Duration, spare bool, out containment.Killed) (containment.Killed, error) {
	if spare {
		return out, api.Errorf(api.CodeUnavailable, "what is below %s cannot be looked at here", process).
			WithRemedy("end the process, or the turn; see `pinfold doctor`")
	}
	out.Notes = append(out.Notes, "what is below the launched process could not be looked at: it ends with the turn")
	did(&out, byKeeper)
	for _, step := range []struct {
		sig   syscall.Signal
		bound time.Duration
	}{{stop, grace}, {syscall.SIGKILL, bound}} {
		if step.bound <= 0 {
			continue
		}
		if _, err := x.Signal(ctx, process, step.sig); err != nil {
			return out, err
		}
		if x.awaitExit(ctx, process, h, step.bound) {
			out.EmptyAt = time.Now()
			return out, nil
		}
	}
	nameSurvivors(&out, map[string]*pidfd.Handle{process: h})
	return out, nil
}

// EndProcess ends a launched process and what is below it.
func (x *bare) EndProcess(ctx context.Context, process string, stop syscall.Signal, grace, bound time.Duration) error {
	out, err := x.EndLaunch(ctx, process, stop, grace, bound, false)
	if err != nil {
		return err
	}
	if n := len(out.Survivors); n > 0 {
		s := out.Survivors[0]
		return fmt.Errorf("%d processes survive, one is %d (%s) in state %s", n, s.PID, s.Comm, s.State)
	}
	return nil
}
