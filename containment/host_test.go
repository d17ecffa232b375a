package containment

import (
	"cmp"
	"context"
	"errors"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"pinfold.dev/api"
)

// memHost and memHold are this package's own ports in memory, to bring about
// orders of events that a kernel gives only now and then. What the kernel does
// is tested in package integration, on real ones.
type memHost struct {
	mu      sync.Mutex
	holds   []*memHold
	err     error
	recover bool           // a later service finds the first hold again
	setUp   func(*memHold) // before the hold is handed out
	watch   memWatch
	asking  int // the process that asks
}

func (h *memHost) Grade() api.Grade                  { return api.GradeCgroup }
func (h *memHost) Info(ctx context.Context) api.Host { return api.Host{Grade: h.Grade()} }

func (h *memHost) Begin(ctx context.Context, s Spec, hooks Hooks) (Hold, error) {
	if h.err != nil {
		return nil, h.err
	}
	x := &memHold{hooks: hooks, facts: Facts{Grade: api.GradeCgroup, Cgroup: "/t/" + s.Turn, CgroupLine: "/t/" + s.Turn}, live: map[string]int{}}
	if err := hooks.Save(x.facts); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.holds = append(h.holds, x)
	if h.setUp != nil {
		h.setUp(x)
	}
	return x, nil
}

func (h *memHost) Recover(ctx context.Context, turn string, f Facts, hooks Hooks) (Hold, api.Verdict, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, x := range h.holds {
		if h.recover && x.facts.CgroupLine == f.CgroupLine {
			x.hooks, x.found = hooks, true
			if x.fenced {
				hooks.Fenced()
			}
			return x, api.VerdictOwned, nil
		}
	}
	return nil, api.VerdictUnverifiable, errors.New("not remembered")
}

func (h *memHost) Recall(string, Facts) Hold { return nil }

type memHold struct {
	memJobs
	memAdopts
	hooks Hooks
	facts Facts

	mu         sync.Mutex
	live       map[string]int // launch to pid
	launched   []string
	fenced     bool
	released   bool
	removed    bool
	keeperDead bool
	kills      int
	stuck      bool            // Kill leaves survivors
	used       map[string]bool // ids that are taken
	fenceStuck bool            // Fence is not acknowledged
	late       func()          // runs at the start of Launch, before the fence is looked at
	termEnds   bool            // processes go when asked
	found      bool            // again, by a later service
	asked      int             // launches
	lastMeta   string
	metas      map[string]string
	launchErr  error
	reader     chan string // what takes stdin; nil: it is closed
	ended      []string    // by EndProcess
	joinFrom   string      // the cgroup of who joins
	joinErr    error
	gone       chan struct{} // closed when stuck survivors may go; nil: never
	life       memLife
	slow       memSlow
}

func (x *memHold) Facts() Facts { return x.facts }

func (x *memHold) Launch(ctx context.Context, l Launch, _ []*os.File) (Started, error) {
	if x.late != nil {
		x.late()
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.asked++
	x.lastMeta = l.Meta
	if x.launchErr != nil {
		return Started{}, x.launchErr
	}
	if x.metas == nil {
		x.metas = map[string]string{}
	}
	x.metas[l.Process] = l.Meta
	if x.used[l.Process] {
		return Started{}, ErrUsed
	}
	if x.fenced {
		return Started{}, api.Errorf(api.CodeTurnOver, "fenced")
	}
	if x.released {
		panic("launched into a released hold")
	}
	pid := 1000 + len(x.launched)
	x.live[l.Process] = pid
	x.launched = append(x.launched, l.Process)
	return Started{Process: l.Process, PID: pid, At: time.Now()}, nil
}

func (x *memHold) exit(process string, code int) {
	x.mu.Lock()
	delete(x.live, process)
	delete(x.jobs, process)
	x.mu.Unlock()
	x.hooks.Exit(Exit{Process: process, At: time.Now(), Status: api.Status{State: api.ProcessExited, Code: code}})
}

func (x *memHold) Signal(ctx context.Context, p string, _ syscall.Signal) (api.Verdict, error) {
	return api.VerdictOwned, nil
}

func (x *memHold) Fence(ctx context.Context) error {
	if err := x.slow.pass(ctx, x.slow.fence); err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.fenceStuck && !x.keeperDead {
		return errors.New("no answer")
	}
	x.fenced = true
	return nil
}

func (x *memHold) EndKeeper(ctx context.Context) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.keeperDead, x.fenced = true, true
	if x.slow.endKeeper != nil {
		x.slow.endKeeper()
	}
	return nil
}

func (x *memHold) Members() ([]api.Member, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	var out []api.Member
	for id, pid := range x.live {
		out = append(out, api.Member{PID: pid, Process: id, State: cmp.Or(x.slow.state, "S")})
	}
	return out, nil
}

func (x *memHold) Alive() (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.slow.unreleased > 0 {
		return 0, errors.New("cannot be counted")
	}
	return len(x.live), nil
}

func (x *memHold) Ask(ctx context.Context, stop func(string) syscall.Signal) (int, error) {
	x.mu.Lock()
	n := len(x.live)
	ends := x.termEnds
	x.mu.Unlock()
	if ends {
		x.end(int(syscall.SIGTERM))
	}
	return n, nil
}

func (x *memHold) end(sig int) {
	x.mu.Lock()
	var ids []string
	for id := range x.live {
		ids = append(ids, id)
	}
	clear(x.live)
	if x.slow.quiet {
		x.slow.untold, ids = append(x.slow.untold, ids...), nil
	}
	x.mu.Unlock()
	for _, id := range ids {
		x.hooks.Exit(Exit{Process: id, At: time.Now(), Status: api.Status{State: api.ProcessSignaled, SignalNumber: sig,
			Signal: "SIG" + strconv.Itoa(sig)}})
	}
}

func (x *memHold) WaitEmpty(ctx context.Context) error {
	if x.slow.waitErr != nil {
		if err := x.slow.waitErr(); err != nil {
			return err
		}
	}
	for {
		x.mu.Lock()
		n := len(x.live)
		x.mu.Unlock()
		if n == 0 {
			return nil
		}
		x.mu.Lock()
		gone := x.gone
		x.mu.Unlock()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-gone:
			x.mu.Lock()
			x.stuck, x.gone = false, nil
			x.mu.Unlock()
			x.end(9)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (x *memHold) Kill(ctx context.Context, bound time.Duration) (Killed, error) {
	x.mu.Lock()
	x.kills++
	k := Killed{Mechanism: "memory", Rounds: 1, Seen: len(x.live), KilledAt: time.Now()}
	stuck := x.stuck && len(x.live) > 0
	for id, pid := range x.live {
		if stuck {
			k.Survivors = append(k.Survivors, api.Survivor{PID: pid, Comm: id, State: "D"})
		}
	}
	x.mu.Unlock()
	if stuck {
		time.Sleep(bound)
		return k, nil
	}
	if x.slow.hopeless {
		return Killed{Mechanism: "memory", Hopeless: true, Unconfirmed: "its keeper was gone"}, nil
	}
	x.end(9)
	k.EmptyAt = time.Now()
	return k, nil
}

func (x *memHold) Close() error { return nil }

func (x *memHold) Alone() bool { return true }

func (x *memHold) Release(ctx context.Context) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.live)+len(x.jobs) > 0 {
		return errors.New("populated")
	}
	if x.slow.unreleased > 0 {
		x.slow.unreleased--
		return errors.New("not now")
	}
	x.released = true
	return nil
}

func (x *memHold) Remove(ctx context.Context) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.released {
		return errors.New("not released")
	}
	x.removed = true
	return nil
}

// memRecords is the records port in memory.
type memRecords struct {
	mu    sync.Mutex
	live  map[string]Record
	ended map[string]Record
	full  bool          // every Save fails
	room  bool          // the history has room all the same
	hang  chan struct{} // and waits until this is closed; nil: it does not
}

func newMemRecords() *memRecords {
	return &memRecords{live: map[string]Record{}, ended: map[string]Record{}}
}

func (m *memRecords) Save(r Record) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.full {
		return syscall.ENOSPC
	}
	m.live[r.Turn.ID] = r
	return nil
}

func (m *memRecords) Discard(id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.live, id)
	return nil
}

func (m *memRecords) Archive(id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e, live := m.ended[id], m.live[id]; !e.Supersedes(&live) {
		m.ended[id] = live
	}
	delete(m.live, id)
	return nil
}

func (m *memRecords) PutEnded(r Record) error {
	if m.hang != nil {
		<-m.hang
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.full && !m.room {
		return syscall.ENOSPC
	}
	m.ended[r.Turn.ID] = r
	return nil
}

func (m *memRecords) Load() (out []Record, errs []error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.live {
		out = append(out, r)
	}
	return out, nil
}

func (m *memRecords) Ended(id string) (Record, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.ended[id]
	return r, ok, nil
}

func (m *memRecords) EndedTurns(owner *uint32, limit int) (out []Record, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.ended {
		out = append(out, r)
	}
	return out, nil
}

type memUsers struct{}

func (memUsers) ByUID(uid uint32) (User, error) {
	return User{UID: uid, GID: uid, Name: "u", Home: "/", Shell: "/bin/sh"}, nil
}

func (memUsers) ByName(name string) (User, error) {
	n, err := strconv.ParseUint(name, 10, 32)
	if err != nil {
		return User{}, errors.New("no such user")
	}
	return User{UID: uint32(n), GID: uint32(n), Name: name}, nil
}
