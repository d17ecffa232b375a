package hold

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/cgroup"
	"pinfold.dev/containment"
	"pinfold.dev/internal/sys"
	"pinfold.dev/internal/wire"
	"pinfold.dev/pidfd"
)

// Freeze stops what is in work/. A launch that the keeper has under way comes
// first: its child, born frozen, would keep the keeper waiting.
func (x *hold) Freeze(ctx context.Context) error {
	for !x.launching.TryLock() {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("freeze turn %s, in which a launch is under way: %w", x.turn, err)
		}
		time.Sleep(time.Millisecond)
	}
	err := x.work.Freeze(true)
	x.launching.Unlock()
	if err == nil {
		err = x.work.AwaitFrozen(ctx)
	}
	if errors.Is(err, os.ErrNotExist) {
		return keeperGone(x.turn)
	}
	if err != nil {
		return errors.Join(err, x.work.Freeze(false))
	}
	return nil
}

// Thaw lets it go on.
func (x *hold) Thaw(ctx context.Context) error {
	err := x.work.Freeze(false)
	if errors.Is(err, os.ErrNotExist) { // an empty scope goes with its keeper
		return keeperGone(x.turn)
	}
	return err
}

// EndLaunch ends a launch, wherever its leaf is.
func (x *hold) EndLaunch(ctx context.Context, process string, stop syscall.Signal, grace, bound time.Duration, spare bool) (containment.Killed, error) {
	var out containment.Killed
	if frozen, err := x.work.FreezeAsked(); err == nil && frozen && grace > 0 && !x.isJob(process) {
		grace = 0
		out.Notes = append(out.Notes, "the turn is frozen: nobody was asked to stop, since nobody could have")
	}
	if spare {
		err := x.endBelow(ctx, process, stop, grace, bound, &out)
		return out, err
	}
	deadline := time.Now().Add(grace + bound)
	asked := 0
	if grace > 0 {
		asked = x.askProcess(ctx, process, stop, grace)
	}
	out.KilledAt = time.Now()
	if err := x.killLeaf(ctx, process, bound, &out); err != nil {
		return out, err
	}
	out.Seen = max(out.Seen, asked)
	settled, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	if h := x.handleOf(process); h != nil && h.Wait(settled) != nil && x.running(process) {
		x.endEscaped(process, h, x.leafPath(process), deadline, &out)
	}
	if len(out.Survivors) == 0 {
		out.EmptyAt = time.Now()
	}
	return out, nil
}

// Targets lists what an ending would deal with.
func (x *hold) Targets(ctx context.Context) ([]api.Target, error) {
	l := x.newLooking()
	hidden, err := x.dir.Each(l.member)
	if err != nil {
		return nil, fmt.Errorf("look at the turn's processes: %w", err)
	}
	if hidden > 0 {
		l.out = append(l.out, api.Target{Verdict: api.VerdictUnverifiable, Would: wouldSignal,
			Evidence: fmt.Sprintf("the turn's cgroup lists %d processes of a PID namespace that the service cannot see", hidden),
			Why:      "cgroup.kill reaches them; nothing else does"})
	}
	l.escaped(x)
	if err := l.outside(ctx, x); err != nil {
		l.out = append(l.out, api.Target{Verdict: api.VerdictUnverifiable, Would: wouldRefuse,
			Evidence: fmt.Sprintf("the keeper does not say what has left the turn's cgroup: %v", err), Why: "nobody else can tell"})
	}
	return l.out, nil
}

// What Target.Would says.
const (
	wouldSignal = "signalled"
	wouldKeep   = "kept"
	wouldRefuse = "refused"
)

// looking is one Targets under way.
type looking struct {
	out    []api.Target
	seen   map[int]bool
	keeper int
	turn   uint64 // id of its cgroup
	now    uint64
	isJob  map[string]bool
}

func (x *hold) newLooking() *looking {
	l := &looking{seen: map[int]bool{}, turn: x.dir.ID(), now: sys.BootTicks(), isJob: map[string]bool{}}
	if x.keeper != nil {
		l.keeper = x.keeper.PID()
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for id := range x.jobs.of {
		l.isJob[id] = true
	}
	return l
}

// member takes one that is in the turn's cgroup.
func (l *looking) member(h *pidfd.Handle, f cgroup.Found) error {
	l.seen[f.PID] = true
	if f.PID == l.keeper {
		return nil
	}
	part, rest, _ := strings.Cut(f.Dir, "/")
	t := api.Target{PID: f.PID, Verdict: api.VerdictOwned, Would: wouldSignal,
		Evidence: fmt.Sprintf("opened by pidfd, which tells the cgroup %d: that is %s of the turn's cgroup %d", f.ID, f.Dir, l.turn)}
	if f.ID == 0 {
		t.Evidence = fmt.Sprintf("opened by pidfd, a thread of it in %s of the turn's cgroup %d; its main thread has exited", f.Dir, l.turn)
	}
	switch launch := launchOf(rest); {
	case part == workName:
		t.Process = launch
	case part == jobsName:
		t.Process = launch
		if l.isJob[launch] {
			t.Would, t.Why = wouldKeep, "it is of a job"
		} else {
			t.Why = "it is being made a job"
		}
	default:
		t.Why = "it has moved itself beside the launches"
	}
	if err := pidfd.RefusePID(f.PID, os.Getpid()); err != nil {
		t.Would, t.Why = wouldRefuse, err.Error()
	}
	if !l.describe(h, &t) {
		return nil // it is gone
	}
	l.out = append(l.out, t)
	return nil
}

// escaped adds the launched processes that have left the turn's cgroup.
func (l *looking) escaped(x *hold) {
	x.mu.Lock()
	handles := map[string]*pidfd.Handle{}
	for id, p := range x.procs {
		if p.handle != nil && !l.seen[p.started.PID] && p.started.Placement != tokenPlacement {
			handles[id] = p.handle
		}
	}
	x.mu.Unlock()
	for id, h := range handles {
		if over, err := h.Exited(); err != nil || over {
			continue
		}
		where, err := h.CgroupPath()
		in := err == nil && x.host.below(where, x.leafPath(id))
		if err != nil {
			where, in = "a cgroup that cannot be told", x.inLeaf(id, h)
		}
		if in { // it is exiting, or was launched only now
			continue
		}
		t := api.Target{PID: h.PID(), Process: id, Verdict: api.VerdictOwned, Would: wouldSignal,
			Evidence: "launched by Pinfold and held by its pidfd ever since; it has left the turn's cgroup for " + where,
			Why:      "it is ended through its handle; what it forked out there is not"}
		if l.isJob[id] {
			t.Would, t.Why = wouldKeep, "it is of a job"
		}
		if l.describe(h, &t) {
			l.seen[t.PID] = true
			l.out = append(l.out, t)
		}
	}
}

// outside adds what the keeper has below it and what is not in the turn's cgroup.
func (l *looking) outside(ctx context.Context, x *hold) error {
	x.mu.Lock()
	k := x.link
	x.mu.Unlock()
	if k == nil {
		return x.noKeeper()
	}
	m, _, err := k.call(ctx, wire.Message{Op: wire.OpCensus}, nil)
	if err != nil || m.Census == nil {
		return errors.Join(err, errIf(err == nil, "an empty answer"))
	}
	if why := m.Census.Unseen; why != "" {
		l.out = append(l.out, api.Target{Verdict: api.VerdictUnverifiable, Would: wouldRefuse,
			Evidence: "the keeper cannot look at all that is below it: " + why, Why: "what has left the turn's cgroup may not be shown"})
	}
	for _, o := range m.Census.Outside {
		if l.seen[o.PID] {
			continue
		}
		t := api.Target{PID: o.PID, Process: o.Process, Comm: o.Comm, Verdict: api.VerdictForeign, Would: wouldRefuse,
			Evidence: "the keeper sees it below itself, in the cgroup " + o.Cgroup + ", which is not the turn's",
			Why:      "that it descends from the turn is no proof that it is the turn's still"}
		h, err := pidfd.Open(o.PID)
		if errors.Is(err, pidfd.ErrGone) {
			continue
		}
		if err == nil {
			live := l.describe(h, &t)
			h.Close()
			if !live {
				continue
			}
		}
		l.out = append(l.out, t)
	}
	return nil
}

// argvMost bounds what is shown of a command line.
const argvMost = 4 << 10

// describe says what a process is, for people; false: it is gone.
func (l *looking) describe(h *pidfd.Handle, t *api.Target) bool {
	l.describeByNumber(t)
	over, err := h.Exited()
	return err == nil && !over
}

// describeByNumber says what has a number now.
func (l *looking) describeByNumber(t *api.Target) {
	b, err := sys.ProcFile(t.PID, "stat")
	s, perr := sys.ParseStat(b)
	if err == nil && perr == nil {
		t.Comm, t.RSS = s.Comm, s.RSSPages*int64(os.Getpagesize())
		if l.now > s.StartTicks {
			t.AgeMS = int64(l.now-s.StartTicks) * (1000 / sys.TicksPerSecond)
		}
	}
	if b, err := sys.ProcFile(t.PID, "cmdline"); err == nil && len(b) > 0 {
		for a := range bytes.SplitSeq(bytes.TrimSuffix(b[:min(len(b), argvMost)], []byte{0}), []byte{0}) {
			t.Argv = append(t.Argv, strings.ToValidUTF8(string(a), "�"))
		}
	}
}
