package hold

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/containment"
	"pinfold.dev/fallback"
	"pinfold.dev/internal/fault"
	"pinfold.dev/internal/wire"
)

// How a bare turn was ended, see api.Receipt.Mechanism.
const (
	byWalk      = "walk"
	byKeeper    = "keeper"
	byHandles   = "handles"
	byNamespace = "kill -1"
	byInit      = "init"
)

// dawdle is the longest pause between two questions whether the turn is over.
const dawdle = 50 * time.Millisecond

// dyingTime is what those that were killed have at least to be gone, before they are
// named survivors.
const dyingTime = time.Second

// wordTime is how long an ending waits for the keeper's word before it does what can
// be done without.
const wordTime = time.Second

// over tells whether the keeper is seen to have nobody below it. At grade pidns
// nobody outlives the keeper, either.
func (x *bare) over(ctx context.Context) (bool, error) {
	if x.keeperDead() {
		return x.facts.Grade == api.GradePIDNS, nil
	}
	c, err := x.below(ctx)
	if err != nil {
		return false, err
	}
	return c.Alone, nil
}

// WaitEmpty waits until the turn is over.
func (x *bare) WaitEmpty(ctx context.Context) error {
	for pause := time.Millisecond; ; pause = min(2*pause, dawdle) {
		over, err := x.over(ctx)
		switch {
		case over:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil || !x.keeperDead():
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// Kill ends everything below the keeper.
func (x *bare) Kill(ctx context.Context, bound time.Duration) (containment.Killed, error) {
	out := containment.Killed{Mechanism: "none", KilledAt: time.Now(), Evidence: map[string][]string{}}
	deadline := out.KilledAt.Add(bound)
	fault.Point("bare.asked")
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	x.wake()
	soon, done := context.WithTimeout(ctx, min(bound/8, wordTime))
	over, err := x.over(soon)
	done()
	if err == nil && over {
		out.EmptyAt = time.Now()
		return out, nil
	}
	if x.facts.Grade != api.GradeSubreaper { // whose walk looks by itself
		x.count(ctx, &out)
	}
	steps := []func(context.Context, time.Time, *containment.Killed) bool{x.killByKeeper, x.killByWalk}
	if x.facts.Grade == api.GradeSubreaper {
		steps = []func(context.Context, time.Time, *containment.Killed) bool{x.killByWalk, x.killByKeeper}
	}
	if x.facts.Grade == api.GradePIDNS {
		steps = append(steps, x.killInit)
	}
	for i, step := range steps {
		left := time.Until(deadline)
		if i < len(steps)-1 { // there is another way, which may be quicker
			left = min(left/2, max(left/8, time.Second))
		}
		if step(ctx, time.Now().Add(left), &out) {
			out.Survivors, out.EmptyAt = nil, time.Now()
			fault.Point("bare.empty")
			return out, nil
		}
	}
	if x.keeperDead() {
		x.awaitEnds(ctx)
		out.Hopeless, out.Unconfirmed = true, "its keeper was gone: what had lost its parents before that is nobody's to find"
		return out, nil
	}
	if len(out.Survivors) == 0 { // nobody may say that there is none
		out.Survivors = []api.Survivor{{State: "?", Comm: "cannot be looked at"}}
	}
	out.Unconfirmed = "the keeper was not seen to have nobody below it within the bound"
	return out, nil
}

// awaitEnds waits until the ends of those that have exited are told: who watches
// each of them, now that the keeper is gone, may not have come to it.
func (x *bare) awaitEnds(ctx context.Context) {
	x.loseKeeper("it has died")
	for id, h := range x.held() {
		for x.running(id) && ctx.Err() == nil {
			if over, err := h.Exited(); err != nil || !over {
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
}

// wake has a keeper that somebody has stopped go on: one that does not answer would
// be killed, and with it goes whose child each orphan of the turn is.
func (x *bare) wake() {
	if x.keeper != nil && !x.keeperDead() {
		_ = x.keeper.Signal(syscall.SIGCONT) // one that cannot be signalled is asked all the same
	}
}

// count enters who is seen in the turn, since a keeper counts only its children.
func (x *bare) count(ctx context.Context, out *containment.Killed) {
	v, err := x.look(ctx)
	if err != nil {
		return
	}
	defer v.close()
	out.Seen = len(v.members)
	for _, m := range v.members {
		if m.launch != "" && x.isLaunch(m) {
			out.Evidence[m.launch] = append(out.Evidence[m.launch], fmt.Sprintf("seen below the keeper, as a child of %d", m.parent))
		}
	}
}

// isLaunch tells whether a member is a launched process, and not one below it.
func (x *bare) isLaunch(m seenMember) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	p := x.procs[m.launch]
	return p != nil && p.started.PID == m.Identity().PID
}

// did adds a step to the mechanism.
func did(out *containment.Killed, what string) {
	if out.Mechanism == "none" {
		out.Mechanism = what
	} else {
		out.Mechanism += "+" + what
	}
}

// killByKeeper has the keeper end its own children, and tells whether it says that
// none is left.
func (x *bare) killByKeeper(ctx context.Context, until time.Time, out *containment.Killed) bool {
	if x.keeperDead() {
		return false
	}
	soon, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	left := max(time.Until(until)*3/4, time.Millisecond) // it is to answer in time
	m, err := x.keeperSays(soon, wire.Message{Op: wire.OpEnd, End: &wire.End{Number: int(syscall.SIGKILL), BoundMS: left.Milliseconds()}})
	if err == nil && m.Ended == nil {
		err = errors.New("an empty answer")
	}
	if err != nil {
		out.Notes = append(out.Notes, "the keeper did not end its children: "+err.Error())
		return false
	}
	e := m.Ended
	out.Rounds += e.Rounds
	out.Seen = max(out.Seen, e.Seen)
	if e.Whole {
		did(out, byNamespace)
	} else {
		did(out, byKeeper)
	}
	if e.Unseen != "" {
		out.Notes = append(out.Notes, "the keeper asked for each number whether it is its child's: "+e.Unseen)
	}
	if e.Alone {
		return true
	}
	if len(e.Left) > 0 {
		out.Survivors = nil
	}
	for _, l := range e.Left {
		out.Survivors = append(out.Survivors, survivor(l.PID, l.Comm))
	}
	return false
}

// killInit ends a turn's PID namespace by its init; how what was in it ended is
// lost.
func (x *bare) killInit(ctx context.Context, until time.Time, out *containment.Killed) bool {
	did(out, byInit)
	soon, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	out.Notes = append(out.Notes, "the keeper, init of the turn's PID namespace, did not end what is in it in time, and was killed: the kernel ends the rest with it")
	if err := x.EndKeeper(soon); err != nil {
		out.Notes = append(out.Notes, err.Error())
	}
	return x.keeperDead()
}

// Census has the keeper tell of all ends before it answers. There is no outside:
// who is left below the keeper is a survivor.
func (x *bare) Census(ctx context.Context) ([]api.Outside, error) {
	x.awaitUnkept(ctx)
	if x.keeperDead() {
		return nil, keeperGone(x.turn)
	}
	_, err := x.below(ctx)
	fault.Point("bare.counted")
	return nil, err
}

// Alone tells that Release has nobody to end.
func (x *bare) Alone() bool {
	ctx, cancel := context.WithTimeout(context.Background(), quitTime)
	defer cancel()
	over, err := x.over(ctx)
	return err == nil && over || x.keeperDead()
}

// Release ends what is left, and lets the keeper go once it has nobody below it.
func (x *bare) Release(ctx context.Context) error {
	x.quitting.Store(true)
	if !x.Alone() {
		k, err := x.Kill(ctx, quitTime)
		if err == nil && k.EmptyAt.IsZero() && k.Unconfirmed == "" {
			err = fmt.Errorf("end what is below the keeper: %d processes survive", len(k.Survivors))
		}
		if err != nil {
			return err
		}
	}
	x.quit(ctx)
	if err := x.EndKeeper(ctx); err != nil {
		return err
	}
	fault.Point("bare.gone")
	return nil
}

// Remove closes the hold of which nothing is left.
func (x *bare) Remove(context.Context) error {
	x.forgetHandles()
	for _, f := range []string{"keeper.sock", "keeper.log"} { // the journal goes with the record
		os.Remove(filepath.Join(x.facts.Dir, f))
	}
	return x.Close()
}

// Ask sends each process its stop signal, and CONT after it.
func (x *bare) Ask(ctx context.Context, stop func(process string) syscall.Signal) (int, error) {
	s, err := x.look(ctx)
	if err == nil {
		defer s.close()
		n := 0
		var errs []error
		for _, m := range s.members {
			v, _, err := m.Signal(stop(m.launch))
			if err == nil && v == api.VerdictOwned {
				n++
				_, _, err = m.Signal(syscall.SIGCONT)
			}
			errs = append(errs, err)
		}
		return n, errors.Join(errs...)
	}
	return x.askLaunches(ctx, stop, err)
}

// askLaunches asks those that the keeper has launched, where the rest cannot be
// found.
func (x *bare) askLaunches(ctx context.Context, stop func(process string) syscall.Signal, why error) (int, error) {
	n := 0
	errs := []error{fmt.Errorf("only launched processes could be asked: %w", why)}
	for id := range x.held() {
		v, err := x.Signal(ctx, id, stop(id))
		if err == nil && v == api.VerdictOwned {
			n++
			_, err = x.Signal(ctx, id, syscall.SIGCONT)
		}
		errs = append(errs, err)
	}
	return n, errors.Join(errs...)
}

// killByWalk has the service itself stop, find and kill who is below the keeper;
// what it does not see to end is not over. Where the keeper is gone, it begins at
// each launched process.
func (x *bare) killByWalk(ctx context.Context, until time.Time, out *containment.Killed) bool {
	if x.keeperDead() {
		x.killByHandles(ctx, until, out)
		return false
	}
	root, err := x.root()
	if err != nil {
		out.Notes = append(out.Notes, "look below the keeper: "+err.Error())
		return false
	}
	defer root.Close()
	launches := x.launchPIDs()
	did(out, byWalk)
	res := x.host.fb.End(ctx, root, fallback.Ending{MaxTime: time.Until(until), Word: x.word})
	x.tell(res, launches, out)
	return res.Outcome == fallback.Dead
}

// word is the keeper's on whether it has children; by /proc they are listed.
func (x *bare) word(ctx context.Context) ([]int, error) {
	ctx, cancel := context.WithTimeout(ctx, wordTime) // the walk has more to do than to wait for it
	defer cancel()
	c, err := x.below(ctx)
	switch {
	case err != nil:
		return nil, err
	case c.Alone:
		return nil, nil
	case len(c.Outside) == 0 || x.facts.Grade == api.GradePIDNS:
		return nil, errors.New("the keeper has children that cannot be looked at " + c.Unseen)
	}
	var out []int
	for _, m := range c.Outside {
		out = append(out, m.PID)
	}
	return out, nil
}

// tell enters what a walk did.
func (x *bare) tell(res fallback.Result, launches map[int]string, out *containment.Killed) {
	out.Rounds += res.Rounds
	if res.Outcome != fallback.Dead {
		for _, n := range res.Evidence {
			out.Notes = append(out.Notes, "walk: "+n)
		}
	}
	owned := 0
	for _, f := range res.Processes {
		id := launches[f.Identity.PID]
		switch f.Verdict {
		case api.VerdictOwned, api.VerdictGone:
			owned++
			if id != "" {
				out.Evidence[id] = append(out.Evidence[id], f.Evidence...)
			}
		default:
			if res.Outcome == fallback.Dead && isGone(f.Identity.PID) {
				continue // it was in between two parents, and has ended as all did
			}
			out.Refused = append(out.Refused, api.Refused{PID: f.Identity.PID, Process: id, Comm: f.Comm, Verdict: f.Verdict, Evidence: f.Evidence})
		}
	}
	out.Seen = max(out.Seen, owned)
	out.Survivors = nil
	for _, s := range res.Survivors {
		if s.State == "Z" || s.State == "?" || s.WaitChannel == "" {
			s = survivor(s.PID, s.Comm)
		}
		out.Survivors = append(out.Survivors, s)
	}
}
