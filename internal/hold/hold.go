package hold

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/cgroup"
	"pinfold.dev/containment"
	"pinfold.dev/fallback"
	"pinfold.dev/internal/fault"
	"pinfold.dev/internal/wire"
	"pinfold.dev/pidfd"
)

// keeping is what every hold does with its keeper, whatever else it holds the
// turn in: launches, their ends and streams, handles, what the keeper wrote.
type keeping struct {
	host   *Host
	hooks  containment.Hooks
	turn   string
	facts  containment.Facts // whole once Begin or Recover has returned
	keeper leader            // nil: it was gone before we came
	reaper sync.WaitGroup    // the goroutine that reaps it, when it is our child
	body   body
	told   wire.Hold // what the keeper is told of where launches live

	quitting  atomic.Bool // the keeper may go now
	closed    atomic.Bool // the hold was let go; set below mu
	unreached atomic.Bool // the keeper lives, and does not answer

	launching sync.RWMutex // held for reading by a Launch, for writing while the turn is being stopped

	mu    sync.Mutex
	link  *link
	procs map[string]*proc
	order []string
	early map[string]wire.Exit // ends told before their launch was answered

	losing sync.Once // of the keeper
}

// body is what holds a turn's processes, as far as its keeping has to know.
type body interface {
	// isJob tells whether a launch is none of the turn's work any more; the
	// hold's lock is not held.
	isJob(process string) bool
	// livesIn is the id of the cgroup that a launch is in now, where that is not
	// the one that it was born in; 0: it is.
	livesIn(process string) uint64
	// leafOOM and jobOOM are how many of a launch's, and of a job's, processes the
	// kernel has ended for want of memory; 0 where nobody counts.
	leafOOM(process string) int64
	jobOOM(process string) int64
	// vouched is nil for a process, named by a file only, that the kernel, too, says
	// is the turn's.
	vouched(h *pidfd.Handle) error
	// left is told that a process which had joined has ended.
	left(process string)
	// alone is told that the keeper is gone, and what it had written was read.
	alone()
}

// hold is one turn held in a cgroup, at grade scope or cgroup. It implements
// containment.Hold.
type hold struct {
	keeping
	dir     *cgroup.Dir // the turn's
	home    *cgroup.Dir // the keeper's; closed once it is there
	work    *cgroup.Dir // what launches live in
	jobs    jobs
	escaped []api.Outside // launches that were seen outside, and ended
}

// proc is one launch, below the hold's lock.
type proc struct {
	started wire.Started
	handle  *pidfd.Handle     // nil once the end is known
	known   *fallback.Process // what it is held by at a bare grade, where no handle can be opened
	unsure  *api.Refused      // why it is not held, where that does not mean that it is gone
	exit    *wire.Exit
	lost    string        // why the end will never be known
	joined  bool          // it is somebody else's child, and no keeper tells of it
	told    chan struct{} // for one of whose end no keeper tells: closed once it was told
}

// Facts are what is recorded.
func (x *keeping) Facts() containment.Facts { return x.facts }

// Launch has the keeper start a process.
func (x *keeping) Launch(ctx context.Context, l containment.Launch, fds []*os.File) (containment.Started, error) {
	r, err := x.newRequest(l, fds)
	if err != nil {
		return containment.Started{}, err
	}
	defer r.close()
	x.mu.Lock()
	k := x.link
	x.mu.Unlock()
	if k == nil {
		return containment.Started{}, x.noKeeper()
	}
	if need := r.launch.NeedsVersion2(); need != "" && k.version < version2 {
		return containment.Started{}, x.unsupported(need)
	}
	if r.launch.SpoolOut > 0 || r.launch.SpoolErr > 0 {
		if err := x.makeSpool(); err != nil {
			return containment.Started{}, err
		}
	}
	x.launching.RLock()
	if k.version >= version3 {
		r.launch.Key = l.Key
	}
	m, got, err := k.call(ctx, wire.Message{Op: wire.OpLaunch, Launch: &r.launch}, r.fds)
	x.launching.RUnlock()
	if err != nil {
		return containment.Started{}, x.launchError(l, err)
	}
	if m.Started == nil {
		closeFDs(got)
		return containment.Started{}, api.Errorf(api.CodeInternal, "the keeper answered a launch with nothing")
	}
	st := x.started(x.enter(*m.Started, got))
	st.Cwd = m.Started.Cwd
	return st, nil
}

func (x *keeping) started(s wire.Started) containment.Started {
	return containment.Started{Process: s.Process, PID: s.PID, Placement: s.Placement, At: time.Unix(0, s.StartedNS),
		Identity: api.Identity{PID: s.PID, Boot: x.facts.Keeper.Boot, PIDNS: x.facts.Keeper.PIDNS, TimeNS: x.facts.Keeper.TimeNS,
			StartTicks: s.StartTicks, Ino: s.Ino, CgroupID: s.CgroupID}}
}

// enter takes a launch that runs, or ran, and its handle, and returns what is
// known of it.
func (x *keeping) enter(s wire.Started, fds []int) wire.Started {
	x.mu.Lock()
	defer x.mu.Unlock()
	if p := x.procs[s.Process]; p != nil {
		closeFDs(fds)
		return p.started
	}
	p := &proc{started: s}
	if x.facts.Grade == api.GradePIDNS {
		p.started.PID = 0 // the keeper says what it is in the turn's namespace
	}
	if len(fds) > 0 {
		p.handle = x.received(fds[0], s.PID)
		p.started.PID = p.handle.PID()
		closeFDs(fds[1:])
		x.keepHandle(s.Process, p.handle)
	}
	x.procs[s.Process] = p
	x.order = append(x.order, s.Process)
	if e, ok := x.early[s.Process]; ok {
		delete(x.early, s.Process)
		p.end(e)
		x.forgetHandle(s.Process)
	}
	return p.started
}

// received is a keeper's handle of a launch. The number of a turn's own PID
// namespace is not ours: ours is read from the handle, and 0 once it has ended.
func (x *keeping) received(fd, pid int) *pidfd.Handle {
	if x.facts.Grade != api.GradePIDNS {
		return pidfd.FromFD(fd, pid)
	}
	h := pidfd.FromFD(fd, 0)
	d, err := h.Dup()
	if err != nil {
		return h
	}
	ours, err := pidfd.FromPeer(d)
	if err != nil {
		return h
	}
	h.Close()
	return ours
}

// end enters the end of a launch; the lock is held.
func (p *proc) end(e wire.Exit) {
	if p.exit == nil {
		p.exit = &e
	}
	if p.handle != nil {
		p.handle.Close()
		p.handle = nil
	}
}

// event takes what the keeper announces, in order.
func (x *keeping) event(m wire.Message, fds []int) {
	switch {
	case m.Event == wire.EventOutputMax:
		closeFDs(fds)
		x.outputMaxed()
	case m.Exit != nil:
		closeFDs(fds)
		x.exited(*m.Exit)
	case m.Started != nil: // of a launch that nobody here waits for
		s := x.enter(*m.Started, fds)
		if x.hooks.Started != nil {
			x.hooks.Started(containment.Recovered{Started: x.started(s), Argv: s.Argv, Cwd: s.Cwd, UID: s.UID, Meta: s.Meta})
		}
	default:
		closeFDs(fds)
	}
}

func (x *keeping) exited(e wire.Exit) {
	if e.OOMKills == 0 && syscall.Signal(e.Signal) == syscall.SIGKILL {
		e.OOMKills = x.body.jobOOM(e.Process) // its keeper looks below work/
	}
	x.mu.Lock()
	p := x.procs[e.Process]
	told := p != nil && (p.exit != nil || p.lost != "")
	if p == nil {
		x.early[e.Process] = e
	} else {
		p.end(e)
	}
	x.mu.Unlock()
	x.forgetHandle(e.Process)
	fault.Point("exit.heard")
	if !told {
		x.hooks.Exit(exit(e))
	}
}

func (x *keeping) outputMaxed() {
	if x.hooks.OutputMax != nil {
		x.hooks.OutputMax()
	}
}

func exit(e wire.Exit) containment.Exit {
	st := api.Status{State: api.ProcessExited, Code: e.Code}
	if e.Signal != 0 {
		st = api.Status{State: api.ProcessSignaled, SignalNumber: e.Signal, Core: e.Core,
			Signal: containment.SignalName(syscall.Signal(e.Signal))}
		if e.OOMKills > 0 && syscall.Signal(e.Signal) == syscall.SIGKILL {
			st.State = api.ProcessOOM
		}
	}
	return containment.Exit{Process: e.Process, Status: st, At: time.Unix(0, e.EndedNS)}
}

// Processes are the launches that the hold knows of.
func (x *keeping) Processes() []containment.Recovered {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := make([]containment.Recovered, 0, len(x.order))
	for _, id := range x.order {
		p := x.procs[id]
		r := containment.Recovered{Started: x.started(p.started), Argv: p.started.Argv, Cwd: p.started.Cwd,
			UID: p.started.UID, Meta: p.started.Meta}
		switch {
		case p.exit != nil:
			e := exit(*p.exit)
			r.Exit = &e
		case p.lost != "":
			r.Exit = &containment.Exit{Process: id, At: time.Now(), Status: api.Status{State: api.ProcessLost, Why: p.lost}}
		}
		out = append(out, r)
	}
	return out
}

// Signal sends to a launched process through its handle.
func (x *keeping) Signal(ctx context.Context, process string, sig syscall.Signal) (api.Verdict, error) {
	v, err := x.signal(process, func(h *pidfd.Handle) error { return h.Signal(sig) })
	if sandboxed(err) {
		return x.signalByKeeper(ctx, process, sig)
	}
	return v, err
}

// signalByKeeper has the keeper signal its child, where we may not use handles.
func (x *keeping) signalByKeeper(ctx context.Context, process string, sig syscall.Signal) (api.Verdict, error) {
	x.mu.Lock()
	k := x.link
	x.mu.Unlock()
	if k == nil {
		return api.VerdictOwned, x.noKeeper()
	}
	_, _, err := k.call(ctx, wire.Message{Op: wire.OpSignal, Signal: &wire.Signal{Process: process, Number: int(sig)}}, nil)
	var r *refusal
	if errors.As(err, &r) && r.why.Kind == wire.ErrNotFound {
		return api.VerdictGone, nil
	}
	return api.VerdictOwned, err
}

// SignalGroup signals the group that a launched process leads: each is born into
// a session of its own.
func (x *keeping) SignalGroup(ctx context.Context, process string, sig syscall.Signal) (api.Verdict, error) {
	v, err := x.signal(process, func(h *pidfd.Handle) error {
		err := h.SignalGroup(sig)
		if errors.Is(err, errors.ErrUnsupported) {
			err = h.Signal(sig)
		}
		return err
	})
	if sandboxed(err) {
		return x.signalByKeeper(ctx, process, sig)
	}
	return v, err
}

func (x *keeping) signal(process string, send func(*pidfd.Handle) error) (api.Verdict, error) {
	x.mu.Lock()
	p := x.procs[process]
	var err error
	switch {
	case p == nil:
		err = api.Errorf(api.CodeNotFound, "no process %q in turn %s", process, x.turn)
	case p.handle != nil:
		err = send(p.handle)
	case p.exit != nil || p.lost != "":
		err = pidfd.ErrGone
	}
	unheld := p != nil && p.handle == nil && !errors.Is(err, pidfd.ErrGone)
	x.mu.Unlock()
	switch {
	case unheld:
		return api.VerdictUnverifiable, nil
	case errors.Is(err, pidfd.ErrGone):
		return api.VerdictGone, nil
	case err != nil:
		return api.VerdictOwned, err
	}
	return api.VerdictOwned, nil
}

// Members lists what is in the turn's cgroup, the keeper left out.
func (x *hold) Members() ([]api.Member, error) {
	ms, err := x.work.Members()
	if err != nil {
		return nil, fmt.Errorf("list members: %w", err)
	}
	for i := range ms {
		ms[i].Process = launchOf(ms[i].Cgroup)
	}
	return ms, nil
}

// launchOf is the launch whose leaf a cgroup below work/ is in.
func launchOf(rel string) string {
	for i := 0; i < len(rel); i++ {
		if rel[i] == '/' {
			return rel[:i]
		}
	}
	return rel
}

// Alive counts what is in the turn's cgroup, the keeper left out.
func (x *hold) Alive() (int, error) { return alive(x.work) }

// Usage reads the turn's counters.
func (x *hold) Usage() api.Usage { return x.work.Usage() }

// Close drops descriptors and leaves the turn running.
func (x *hold) Close() error {
	errs := []error{x.keeping.Close()}
	for _, d := range []*cgroup.Dir{x.home, x.work, x.jobsDir(), x.dir} {
		if d != nil {
			errs = append(errs, d.Close())
		}
	}
	return errors.Join(errs...)
}

// Close drops the connection and the handles.
func (x *keeping) Close() error {
	x.host.unmind(x.turn)
	x.mu.Lock()
	x.closed.Store(true)
	l := x.link
	x.link = nil
	for _, p := range x.procs {
		if p.handle != nil {
			p.handle.Close()
		}
		if p.known != nil {
			p.known.Close()
			p.known = nil
		}
	}
	x.mu.Unlock()
	if l != nil {
		l.close()
	}
	if x.keeper != nil {
		return x.keeper.Close()
	}
	return nil
}
