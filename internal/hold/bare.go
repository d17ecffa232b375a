package hold

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"pinfold.dev/api"
	"pinfold.dev/containment"
	"pinfold.dev/internal/fault"
	"pinfold.dev/internal/wire"
)

// bare is one turn held without a cgroup, by its keeper alone: at grade pidns that
// is init of the turn's PID namespace, at the others a subreaper, which every
// descendant that loses its parent becomes a child of. So the turn is over when the
// keeper has no child left, which the kernel tells it without /proc. It implements
// containment.Hold.
type bare struct {
	keeping
	wards []seenMember // who was seen below launches when the keeper was gone; the lock is the hold's
}

func (h *Host) newBare(turn string, f containment.Facts, hooks containment.Hooks) *bare {
	x := &bare{keeping: newKeeping(h, turn, f, hooks)}
	x.body = x
	x.told = wire.Hold{Bare: true, Spool: f.Spool, OutputMax: f.OutputMax}
	return x
}

// beginBare makes a keeper and nothing else.
func (h *Host) beginBare(ctx context.Context, spec containment.Spec, hooks containment.Hooks, g api.Grade, degraded []string) (_ *bare, err error) {
	if spec.Limits != nil && *spec.Limits != (api.Limits{}) {
		return nil, api.Errorf(api.CodeLimitUnavailable, "a limit needs a cgroup, and turns are held at grade %s here", g).
			WithRemedy("ask for no limit, or use a host with unified cgroup v2; see `pinfold doctor`")
	}
	x := h.newBare(spec.Turn, h.newFacts(spec, g, degraded), hooks)
	defer func() {
		if err != nil {
			x.undo()
		}
	}()
	if err = x.startKeeper(nil); err != nil {
		return nil, err
	}
	fault.Point("bare.started")
	greeting, giveUp := context.WithCancel(ctx)
	defer giveUp()
	greeted := x.greet(greeting)
	x.facts.Bare = true
	if err = x.hooks.Save(x.facts); err != nil { // before anything can be launched
		err = fmt.Errorf("save the turn's record: %w", err)
		giveUp()
	}
	fault.Point("bare.findable")
	if gerr := <-greeted; err == nil {
		err = x.whyNotGreeted(gerr)
	}
	if err != nil {
		return nil, err
	}
	return x, x.tellHold(ctx)
}

// whyNotGreeted adds what a keeper said that could not begin.
func (x *keeping) whyNotGreeted(err error) error {
	if err == nil {
		return nil
	}
	b, rerr := os.ReadFile(filepath.Join(x.facts.Dir, "keeper.log"))
	if last := lastLine(b); rerr == nil && last != "" {
		for _, room := range []error{syscall.ENOSPC, syscall.EDQUOT} { // which has a remedy
			if said, ok := strings.CutSuffix(last, room.Error()); ok {
				return fmt.Errorf("%w (it said: %s%w)", err, said, room)
			}
		}
		return fmt.Errorf("%w (it said: %s)", err, last)
	}
	var fs syscall.Statfs_t
	if syscall.Statfs(x.facts.Dir, &fs) == nil && (fs.Blocks > 0 && fs.Bfree == 0 || fs.Files > 0 && fs.Ffree == 0) { // it needs room to begin, and to say so
		return fmt.Errorf("%w (%s: %w)", err, x.facts.Dir, syscall.ENOSPC)
	}
	return err
}

func lastLine(b []byte) string {
	s := strings.TrimSpace(string(b))
	return s[strings.LastIndexByte(s, '\n')+1:]
}

// undo takes back a begin that failed. Nothing was launched.
func (x *bare) undo() {
	ctx, cancel := context.WithTimeout(context.Background(), undoTime)
	defer cancel()
	x.quitting.Store(true)
	x.quit(ctx)
	if err := x.EndKeeper(ctx); err != nil {
		x.host.log.Warn("end the keeper of a turn that did not begin", "turn", x.turn, "error", err)
	}
	x.Close()
	os.RemoveAll(x.facts.Dir)
}

// A bare turn has no jobs, and no cgroup in which to count.
func (x *bare) isJob(string) bool     { return false }
func (x *bare) livesIn(string) uint64 { return 0 }
func (x *bare) leafOOM(string) int64  { return 0 }
func (x *bare) jobOOM(string) int64   { return 0 }
func (x *bare) left(string)           {}

// alone takes hold of who is seen below launches once the keeper is gone: whoever
// loses a parent from now on cannot be found any more.
func (x *bare) alone() {
	if x.facts.Grade == api.GradePIDNS {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), reachTime)
	defer cancel()
	v, err := x.look(ctx)
	if err != nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, m := range v.members {
		if p := x.procs[m.launch]; p == nil || p.started.PID != m.Identity().PID { // who has a handle of its own
			x.wards = append(x.wards, m)
		}
	}
}

// Close lets go of them, too.
func (x *bare) Close() error {
	x.mu.Lock()
	for _, m := range x.wards {
		_ = m.Close()
	}
	x.wards = nil
	x.mu.Unlock()
	return x.keeping.Close()
}

// needsCgroup refuses what cannot be done without one.
func (x *bare) needsCgroup(what string) *api.Error {
	return api.Errorf(api.CodeGradeUnavailable, "turn %s is held at grade %s: %s needs a cgroup", x.turn, x.facts.Grade, what).
		WithRemedy("use a host where the service has a cgroup v2 directory that it may write, and demand it with min_grade; see `pinfold doctor`").
		With("feature", what)
}

// Freeze needs a cgroup: a process that is stopped by a signal is seen to be by its
// parent, and goes on at anybody's SIGCONT.
func (x *bare) Freeze(context.Context) error { return x.needsCgroup("freezing") }

// Thaw has nothing to do.
func (x *bare) Thaw(context.Context) error { return nil }

// Promote needs a cgroup.
func (x *bare) Promote(context.Context, string, *api.Limits) (int, error) {
	return 0, x.needsCgroup("making a job of a process that runs")
}

// Eject needs a cgroup.
func (x *bare) Eject(context.Context, string, string, int, *api.Limits, func(containment.Started) error) error {
	return x.needsCgroup("making a job of a process that runs")
}

// JobMembers are none.
func (x *bare) JobMembers(string) ([]api.Member, error) { return nil, nil }

// JobAlive counts none.
func (x *bare) JobAlive(string) (int, error) { return 0, nil }

// WaitJob has nothing to wait for.
func (x *bare) WaitJob(context.Context, string) error { return nil }

// JobUsage says nothing.
func (x *bare) JobUsage(string) api.Usage { return api.NoUsage() }

// Join needs a cgroup: the keeper is not the parent of what it has not launched.
func (x *bare) Join(context.Context, string, *os.File, func(string) error, func(containment.Started) error) error {
	return x.needsCgroup("taking in a process that runs")
}

// Rejoin finds nothing, since nothing joins.
func (x *bare) Rejoin(string, api.Identity) (api.Verdict, error) {
	return api.VerdictUnverifiable, x.needsCgroup("taking in a process that runs")
}

// keeperSays asks the keeper one thing.
func (x *bare) keeperSays(ctx context.Context, m wire.Message) (wire.Message, error) {
	x.mu.Lock()
	k := x.link
	x.mu.Unlock()
	if k == nil {
		return wire.Message{}, x.noKeeper()
	}
	a, fds, err := k.call(ctx, m, nil)
	closeFDs(fds)
	return a, err
}

// below is the keeper's word on who is below it.
func (x *bare) below(ctx context.Context) (*wire.Census, error) {
	m, err := x.keeperSays(ctx, wire.Message{Op: wire.OpCensus})
	if err != nil || m.Census == nil {
		return nil, fmt.Errorf("ask the keeper: %w", errors.Join(err, errIf(err == nil, "an empty answer")))
	}
	return m.Census, nil
}

// ownNamespace has a keeper made as init of a PID namespace, in a mount namespace
// for the /proc of that. Who is not root needs a user namespace for both, in which
// the keeper is whom it is outside, and may mount until it has (the capability is
// dropped then, see sys.EnterPIDNamespace).
func ownNamespace(attr *syscall.SysProcAttr) {
	attr.Cloneflags |= syscall.CLONE_NEWPID | syscall.CLONE_NEWNS
	if uid, gid := os.Geteuid(), os.Getegid(); uid != 0 {
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
		attr.AmbientCaps = []uintptr{capSysAdmin}
	}
}

const capSysAdmin = 21 // capabilities(7)

func join(why []string) string { return strings.Join(why, "; ") }
