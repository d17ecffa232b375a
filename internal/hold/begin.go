package hold

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/cgroup"
	"pinfold.dev/containment"
	"pinfold.dev/internal/fault"
	"pinfold.dev/internal/wire"
	"pinfold.dev/systemd"
)

// hastyTime is how soon whoever asked for a turn may have gone away without that
// saying anything of the service manager, which answers within milliseconds.
const hastyTime = 5 * time.Second

// Begin makes an empty hold at the best grade. When the service manager fails,
// and the turn may be held less well, it is, and the turn says why.
func (h *Host) Begin(ctx context.Context, spec containment.Spec, hooks containment.Hooks) (containment.Hold, error) {
	var degraded []string
	if h.mgr != nil {
		err := h.scopeTrusted()
		if err == nil {
			tried := time.Now()
			hold, serr := h.begin(ctx, spec, hooks, api.GradeScope, nil)
			var e *systemd.Error
			if serr == nil || !errors.As(serr, &e) || ctx.Err() != nil && time.Since(tried) < hastyTime {
				return wrap(hold, serr)
			}
			err = serr
			h.distrustScope(serr, time.Since(tried))
		}
		if !api.GradeCgroup.AtLeast(spec.MinGrade) {
			return nil, scopeError(err)
		}
		if h.parent == nil {
			return h.beginWithoutScope(ctx, spec, hooks, err)
		}
		degraded = append(degraded, fmt.Sprintf("held at grade cgroup, not scope: %v", err))
		h.log.Warn("turn degraded to grade cgroup", "turn", spec.Turn, "error", err)
	}
	if h.parent == nil {
		return h.beginLess(ctx, spec, hooks, nil)
	}
	return wrap(h.begin(ctx, spec, hooks, api.GradeCgroup, degraded))
}

// beginWithoutScope begins at what is left where the service manager fails and
// there is no cgroup to write; nothing less is to be had than was allowed.
func (h *Host) beginWithoutScope(ctx context.Context, spec containment.Spec, hooks containment.Hooks, why error) (containment.Hold, error) {
	g, err := h.bestBare(ctx, spec.MinGrade, spec.AllowPIDNS)
	if err != nil {
		return nil, scopeError(why)
	}
	h.log.Warn("turn degraded to grade "+string(g), "turn", spec.Turn, "error", why)
	return h.beginAt(ctx, spec, hooks, g, []string{fmt.Sprintf("held at grade %s, not scope: %v", g, why)})
}

// wrap keeps a nil *hold from becoming a Hold that is not nil.
func wrap(h *hold, err error) (containment.Hold, error) {
	if err != nil {
		return nil, err
	}
	return h, nil
}

// scopeError tells a caller what the service manager said.
func scopeError(err error) error {
	out := api.Errorf(api.CodeGradeUnavailable, "the service manager makes no scope: %v", err)
	var e *systemd.Error
	if errors.As(err, &e) && e.Remedy != "" {
		return out.WithRemedy("%s", e.Remedy)
	}
	return out
}

// begin makes a keeper in a cgroup, in the order that its grade asks for, and
// hands the cgroup over to it.
func (h *Host) begin(ctx context.Context, spec containment.Spec, hooks containment.Hooks, g api.Grade, degraded []string) (_ *hold, err error) {
	x := h.newHold(spec.Turn, h.newFacts(spec, g, degraded), hooks)
	if g == api.GradeScope {
		x.facts.Unit = systemd.UnitName(spec.Turn)
	}
	defer func() {
		if err != nil {
			x.undo()
		}
	}()
	if g == api.GradeCgroup { // the keeper is born in it
		if err = x.makeGroup(spec); err != nil {
			return nil, err
		}
	}
	if err = x.startKeeper(x.home); err != nil {
		return nil, err
	}
	fault.Point("keeper.started")
	greeting, giveUp := context.WithCancel(ctx)
	defer giveUp()
	greeted := x.greet(greeting) // the keeper's start takes as long as all the rest
	if err = x.furnish(ctx, spec); err != nil {
		defer time.AfterFunc(quitTime, giveUp).Stop() // greeted, it goes when told to; but it may be frozen
	}
	gerr := <-greeted
	if err == nil {
		err = gerr
	}
	if gerr != nil {
		err = x.whyNotGreeted(err)
	}
	if err != nil {
		return nil, err
	}
	x.told = x.whatToHold()
	if err = x.tellHold(ctx); err != nil {
		return nil, err
	}
	fault.Point("keeper.told")
	return x, nil
}

// furnish makes the turn's cgroup all that it is to be, and has it recorded.
func (x *hold) furnish(ctx context.Context, spec containment.Spec) error {
	if err := x.hooks.Save(x.facts); err != nil {
		return fmt.Errorf("save the turn's record: %w", err)
	}
	fault.Point("begin.recorded")
	if x.facts.Grade == api.GradeScope {
		if err := x.makeScope(ctx, spec); err != nil {
			return err
		}
	}
	if err := x.place(); err != nil {
		return err
	}
	if x.work == nil { // controllers cannot be handed down before the keeper has moved
		if err := x.makeWork(spec); err != nil {
			return err
		}
	}
	x.facts.Cgroup, x.facts.CgroupID = x.dir.Path(), x.dir.ID()
	if err := x.hooks.Save(x.facts); err != nil { // before anything can be launched
		return fmt.Errorf("save the turn's record: %w", err)
	}
	fault.Point("begin.findable")
	return nil
}

// whatToHold is what the keeper is told once its turn's cgroup is furnished.
func (x *hold) whatToHold() wire.Hold {
	return wire.Hold{Work: x.work.Path(), Gate: x.host.gate, Spool: x.facts.Spool, OutputMax: x.facts.OutputMax}
}

// newFacts are what is known of a turn before there is anything of it.
func (h *Host) newFacts(spec containment.Spec, g api.Grade, degraded []string) containment.Facts {
	return containment.Facts{Grade: g, Nonce: h.nonce(), Dir: filepath.Join(h.cfg.RuntimeDir, "turns", spec.Turn),
		Spool: spec.Spool, OutputMax: spec.OutputMax,
		UserManager: os.Geteuid() != 0, Degraded: append(degraded, h.missing(g)...)}
}

// newHold is a hold that holds nothing yet.
func (h *Host) newHold(turn string, f containment.Facts, hooks containment.Hooks) *hold {
	x := &hold{keeping: newKeeping(h, turn, f, hooks), jobs: jobs{of: map[string]*job{}}}
	x.body = x
	return x
}

func newKeeping(h *Host, turn string, f containment.Facts, hooks containment.Hooks) keeping {
	return keeping{host: h, hooks: hooks, turn: turn, facts: f, procs: map[string]*proc{}, early: map[string]wire.Exit{}}
}

// nonce marks a turn's cgroup as this service's, and as this very turn.
func (h *Host) nonce() string {
	var b [12]byte
	rand.Read(b[:])
	return h.instance + "." + hex.EncodeToString(b[:])
}

// missing is what a turn at this grade does not get.
func (h *Host) missing(g api.Grade) []string {
	switch g {
	case api.GradeCgroup:
		return slices.Concat(h.notes, h.weak)
	case api.GradePIDNS, api.GradeSubreaper, api.GradeToken:
		return lacks(g)
	}
	return h.weak
}

// makeScope has the service manager put the keeper into a scope, and believes
// it only after it has looked.
func (x *hold) makeScope(ctx context.Context, spec containment.Spec) error {
	fd, err := x.keeper.Dup()
	if err != nil {
		return fmt.Errorf("hand over the keeper: %w", err)
	}
	defer closeFD(fd)
	desc := "pinfold turn " + spec.Turn
	if spec.Label != "" {
		desc += ": " + spec.Label
	}
	fault.Point("scope.asked")
	s, err := x.host.mgr.StartScope(ctx, systemd.ScopeSpec{Unit: x.facts.Unit, Description: desc,
		PID: x.keeper.PID(), PIDFD: fd})
	if errors.Is(err, systemd.ErrUnitExists) {
		x.facts.Unit = "" // it is somebody else's, and not ours to stop
	}
	if err != nil {
		return err
	}
	path := filepath.Join(x.host.mount.Path, strings.TrimPrefix(s.ControlGroup, x.host.mount.Root))
	if x.dir, err = cgroup.Open(path); err != nil {
		return fmt.Errorf("open the scope's cgroup: %w", err)
	}
	id, err := x.keeper.CgroupID()
	if err != nil {
		return fmt.Errorf("verify the scope: %w", err)
	}
	if id != x.dir.ID() || (s.ControlGroupID != 0 && s.ControlGroupID != id) {
		return api.Errorf(api.CodeUnavailable, "systemd says that the keeper is in %s, but it is not", path).
			WithRemedy("try again; if it happens again, use --grade cgroup")
	}
	fault.Point("scope.placed")
	x.host.mu.Lock()
	x.host.scopes = filepath.Dir(path)
	x.host.mu.Unlock()
	for _, p := range s.Dropped {
		x.facts.Degraded = append(x.facts.Degraded, "systemd does not know the property "+p)
	}
	return x.makeHome()
}

// makeGroup makes the turn's cgroup below our own directory, whole before there
// is a process in it: then neither the keeper nor a controller makes the kernel
// wait, see spawnIn.
func (x *hold) makeGroup(spec containment.Spec) (err error) {
	x.dir, err = x.host.parent.Make(spec.Turn)
	if err != nil {
		return fmt.Errorf("make the turn's cgroup: %w", err)
	}
	fault.Point("cgroup.made")
	if err := x.makeHome(); err != nil {
		return err
	}
	return x.makeWork(spec)
}

// makeHome marks the turn's cgroup and makes the keeper's in it.
func (x *hold) makeHome() (err error) {
	if err := x.dir.Mark(x.facts.Nonce); err != nil {
		return fmt.Errorf("mark the turn's cgroup: %w", err)
	}
	fault.Point("cgroup.marked")
	if x.home, err = x.dir.Make("keeper"); err != nil {
		return fmt.Errorf("make the keeper's cgroup: %w", err)
	}
	fault.Point("home.made")
	// What is below a frozen cgroup is frozen from its start: a keeper would not
	// even get to its exec, for which we would wait.
	if frozen, err := x.home.Frozen(); err == nil && frozen {
		return &frozenError{api.Errorf(api.CodeUnavailable, "%s is frozen: nothing can begin in it", filepath.Dir(x.dir.Path())).
			WithRemedy("thaw it, or the one above it whose cgroup.freeze reads 1")}
	}
	return nil
}

// frozenError is why no turn begins in a cgroup that is frozen.
type frozenError struct{ told *api.Error }

func (e *frozenError) Error() string { return e.told.Error() }

func (e *frozenError) Unwrap() error { return e.told }

// makeWork makes work/, with its limits.
func (x *hold) makeWork(spec containment.Spec) (err error) {
	if x.work, err = x.dir.Make("work"); err != nil {
		return fmt.Errorf("make the turn's work cgroup: %w", err)
	}
	fault.Point("work.made")
	return x.limit(spec.Limits)
}

// place makes sure that the keeper is where it belongs, and moves it there if it
// was not born there.
func (x *hold) place() error {
	defer x.home.Close()
	id, err := x.keeper.CgroupID()
	if err == nil && id != x.home.ID() {
		if err := x.home.Add(x.keeper.PID()); err != nil {
			return fmt.Errorf("move the keeper: %w", err)
		}
		id, err = x.keeper.CgroupID()
	}
	if err != nil || id != x.home.ID() {
		return fmt.Errorf("verify the keeper's cgroup: it is in %d, not in %d (%v)", id, x.home.ID(), err)
	}
	fault.Point("keeper.placed")
	x.facts.Keeper.CgroupID = id // part of its identity before Linux 6.9
	line, err := x.keeper.CgroupPath()
	if err != nil {
		return fmt.Errorf("read the keeper's cgroup: %w", err)
	}
	x.facts.CgroupLine = strings.TrimSuffix(line, "/keeper")
	return nil
}

// limit sets the limits of work/.
func (x *hold) limit(want *api.Limits) error {
	bounded, err := x.limitDir(x.work, want)
	if err == nil && !bounded {
		x.facts.Degraded = append(x.facts.Degraded, "no bound on the number of processes: this host gives turns no pids controller")
	}
	return err
}

// limitDir hands controllers down to one of the turn's cgroups and sets its
// limits. What was asked for and cannot be had is refused; the default pids.max
// is best effort, and bounded tells whether it, or another, is there.
func (x *hold) limitDir(d *cgroup.Dir, want *api.Limits) (bounded bool, err error) {
	names, err := useful(x.dir)
	if err != nil {
		return false, fmt.Errorf("list controllers: %w", err)
	}
	_, _ = x.dir.Delegate(names) // what is missing shows below, when it is asked for
	if slices.Contains(names, "memory") {
		_, _ = d.Delegate([]string{"memory"}) // so that each leaf counts what is ended for want of it
	}
	var l api.Limits
	if want != nil {
		l = *want
	}
	bounded = l.PIDs > 0
	if !bounded {
		bounded = d.Limit(api.Limits{PIDs: x.host.defaultPIDs()}) == nil
	}
	if l == (api.Limits{}) {
		return bounded, nil
	}
	err = d.Limit(l)
	var c *cgroup.ControllerError
	if errors.As(err, &c) {
		return bounded, api.Errorf(api.CodeLimitUnavailable, "a limit needs the %s controller, which this host does not give: %v", c.Controller, c.Err).
			WithRemedy("ask for no limit, or use a host with unified cgroup v2; see `pinfold doctor`").With("controller", c.Controller)
	}
	if err != nil {
		return bounded, fmt.Errorf("set limits: %w", err)
	}
	return bounded, nil
}

// undo takes back a begin that failed. Nothing was launched.
func (x *hold) undo() {
	fault.Point("undo.begun")
	ctx, cancel := context.WithTimeout(context.Background(), undoTime)
	defer cancel()
	x.quitting.Store(true)
	x.quit(ctx)
	if err := x.EndKeeper(ctx); err != nil {
		x.host.log.Warn("end the keeper of a turn that did not begin", "turn", x.turn, "error", err)
	}
	x.remove(ctx)
	x.forgetHandles()
	x.Close()
	os.RemoveAll(x.facts.Dir)
	fault.Point("undo.done")
}
