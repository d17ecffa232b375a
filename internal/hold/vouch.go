package hold

import (
	"errors"
	"fmt"
	"strings"

	"pinfold.dev/api"
	"pinfold.dev/cgroup"
	"pinfold.dev/containment"
	"pinfold.dev/internal/sys"
	"pinfold.dev/internal/wire"
	"pinfold.dev/pidfd"
	"pinfold.dev/systemd"
)

// A record and a journal are words of a file. They say which process is meant, by
// what identifies it; that it is the turn's they do not prove, since whoever can
// forge them can read all that of any process. So before something is signalled that
// only a file names, the kernel is asked: it must be in the turn's cgroup, which was
// proved by its mark, or be a child of the turn's keeper, which was.

// errOutside tells that a process is not where the turn's processes are.
var errOutside = errors.New("it is outside the turn")

// vouched is nil for a process that the kernel, too, says is the turn's, or that has
// exited. Of turns without a cgroup it says nothing: see docs/restart.md.
func (x *hold) vouched(h *pidfd.Handle) error {
	if over, err := h.Exited(); x.dir == nil || err == nil && over {
		return nil // nothing of it is ever signalled
	}
	line, err := h.CgroupPath()
	if err == nil && x.within(line) || err != nil && x.lists(h) {
		return nil
	}
	if parent, perr := h.Parent(); perr == nil && parent != nil {
		defer parent.Close()
		if x.isKeeper(parent) {
			return nil
		}
	}
	return fmt.Errorf("it is in %s, and no child of the turn's keeper (%v): %w", line, err, errOutside)
}

// lists tells whether a process is among those that the turn's cgroup lists: where
// the host does not tell of a process what cgroup it is in.
func (x *hold) lists(h *pidfd.Handle) (in bool) {
	_, _ = x.dir.Each(func(_ *pidfd.Handle, f cgroup.Found) error {
		in = in || f.PID == h.PID()
		return nil
	})
	over, err := h.Exited() // while it lives its number is its own
	return in && err == nil && !over
}

// likeLaunched is nil for a process that looks, to the kernel, as the keeper makes
// each: leader of a session of its own, started at the recorded tick, by the recorded
// user. It is asked of one that has left its turn's cgroup and whose keeper is dead:
// nobody is left who could vouch for it, and the turn's end has to reach it.
func likeLaunched(s wire.Started, h *pidfd.Handle) error {
	b, err := sys.ProcFile(h.PID(), "stat")
	if err != nil {
		return err
	}
	st, err := sys.ParseStat(b)
	if err != nil {
		return err
	}
	ids, err := h.UIDs()
	if err != nil {
		return err
	}
	if over, err := h.Exited(); err != nil || over { // the number was its own all along
		return errors.Join(err, errIf(over, "it has exited"))
	}
	switch {
	case st.Session != h.PID():
		return errors.New("it leads no session")
	case s.StartTicks == 0 || st.StartTicks != s.StartTicks:
		return fmt.Errorf("it was started at tick %d, recorded %d", st.StartTicks, s.StartTicks)
	case ids[0] != s.UID:
		return fmt.Errorf("it is uid %d's, recorded %d", ids[0], s.UID)
	}
	return nil
}

// isKeeper tells whether a process is the turn's keeper, which lives.
func (x *keeping) isKeeper(p *pidfd.Handle) bool {
	if x.keeper == nil || x.keeperDead() || p.PID() != x.keeper.PID() {
		return false
	}
	own, err := x.keeper.Identity()
	now, nerr := p.Identity()
	return err == nil && nerr == nil && own.Ino == now.Ino && own.StartTicks == now.StartTicks && !x.keeperDead()
}

// within tells whether a cgroup, as on a 0:: line, is the turn's, or below it.
func (x *hold) within(line string) bool {
	return x.dir != nil && x.host.below(line, x.dir.Path())
}

// below tells whether a cgroup, as on a 0:: line, is that at a path, or below it.
func (h *Host) below(line, path string) bool {
	at, err := h.mount.Dir(strings.TrimSuffix(line, " (deleted)"))
	return err == nil && (at == path || strings.HasPrefix(at, path+"/"))
}

// misplaced says why a process that was opened as a turn's keeper cannot be it; nil:
// it may. A keeper of a turn that has begun is in the turn's cgroup; before that it
// is in one of the turn's name, or still in the service's own.
func (x *hold) misplaced(k leader) error {
	line, err := k.CgroupPath()
	if err != nil {
		return nil // this host does not tell
	}
	if x.dir != nil {
		if x.within(line) {
			return nil
		}
		return fmt.Errorf("it is in %s: %w", line, errOutside)
	}
	if own, err := x.host.mount.Own(); err == nil && x.host.below(line, own) {
		return nil
	}
	for part := range strings.SplitSeq(line, "/") {
		if part == x.turn || part == systemd.UnitName(x.turn) {
			return nil
		}
	}
	return fmt.Errorf("it is in %s, where no keeper of this turn was started: %w", line, errOutside)
}

// doubt lets go of a keeper that is not where it would be.
func (x *hold) doubt(v api.Verdict, why []string) (api.Verdict, []string) {
	if x.keeper == nil {
		return v, why
	}
	if err := x.misplaced(x.keeper); err != nil {
		_ = x.keeper.Close()
		x.keeper = nil
		return api.VerdictForeign, append(why, err.Error())
	}
	return v, why
}

// disown notes that a launch which only a file knows of is not proved the turn's:
// nothing of it is signalled, and how it ends is nobody's to tell.
func (x *keeping) disown(s string, h *pidfd.Handle, why error) {
	x.host.log.Warn("a process that only the journal names is not proved the turn's, and is not touched", "turn", x.turn, "process", s, "pid", h.PID(), "why", why)
	x.mu.Lock()
	defer x.mu.Unlock()
	if p := x.procs[s]; p != nil && p.exit == nil && p.lost == "" {
		p.lost = fmt.Sprintf("only its keeper's journal names it, and that it is the turn's is not proved: %v; it was not touched", why)
	}
	_ = h.Close()
}

// settle puts right what need not be believed of a record's facts.
func (h *Host) settle(turn string, f *containment.Facts) {
	f.Dir = h.turnDir(turn) // it may have been moved
	if f.Unit != "" {
		f.Unit = systemd.UnitName(turn) // it is stopped in the end
	}
}

// vouched says nothing where there is no cgroup: a launch is known by its identity,
// and, while the keeper lives, by its word.
func (x *bare) vouched(h *pidfd.Handle) error { return nil }
