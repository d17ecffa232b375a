package server

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/client"
	"pinfold.dev/containment"
)

// memory is an engine that holds turns in memory and launches nothing: a
// launch writes its argv to each descriptor that came with it.
type memory struct {
	Happenings
	Targets
	JobEngine
	UpkeepEngine
	mu      sync.Mutex
	turns   map[string]*api.Turn
	changed chan struct{}
	cgroups map[string]string // 0:: path of a turn's cgroup → turn
	callers []containment.Caller
	slow    time.Duration // what Abandon takes
	panics  atomic.Bool
	streams map[api.StreamName]*stream
	stdin   chan string
	writers atomic.Int32 // to stdin, just now
	holders atomic.Int32 // of turns, just now
	waiters atomic.Int32 // for the ends of turns, just now
	whys    []error      // why holding ended
}

func newMemory() *memory {
	return &memory{turns: map[string]*api.Turn{}, changed: make(chan struct{}), cgroups: map[string]string{}}
}

// add makes a turn by the back door.
func (m *memory) add(id string, owner uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.turns[id] = &api.Turn{ID: id, Owner: owner, Epoch: 1, State: api.StateOpen, Grade: api.GradeScope, CreatedAt: time.Now(),
		Processes: []api.Process{{ID: "p1", Turn: id, Argv: []string{"sleep"}, Status: api.Status{State: api.ProcessRunning}, Grade: api.GradeScope}}}
}

// change does something to a turn and wakes those who wait.
func (m *memory) change(id string, f func(*api.Turn)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(m.turns[id])
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *memory) until(ctx context.Context, id string, done func(*api.Turn) bool) (api.Turn, error) {
	for {
		m.mu.Lock()
		t, ch := m.turns[id], m.changed
		if t == nil {
			m.mu.Unlock()
			return api.Turn{}, noTurn(id)
		}
		v, ok := *t, done(t)
		m.mu.Unlock()
		if ok {
			return v, nil
		}
		select {
		case <-ch:
		case <-ctx.Done():
			return v, ctx.Err()
		}
	}
}

func (m *memory) get(id string) (api.Turn, error) {
	return m.until(context.Background(), id, func(*api.Turn) bool { return true })
}

func (m *memory) Host(context.Context) (api.Host, error) {
	if m.panics.Load() {
		panic("engine trouble")
	}
	return api.Host{Version: "test", Grade: api.GradeCgroup, Controllers: []string{}, Checks: []api.HostCheck{}}, nil
}

func (m *memory) Grade() api.Grade { return api.GradeCgroup }

func (m *memory) Begin(_ context.Context, c containment.Caller, req api.BeginRequest) (api.Turn, error) {
	id := fmt.Sprintf("t%d", time.Now().UnixNano())
	m.add(id, c.UID)
	m.change(id, func(t *api.Turn) { t.Label, t.Session = req.Label, req.Session })
	return m.get(id)
}

func (m *memory) Turns(_ context.Context, f containment.TurnFilter) ([]api.Turn, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []api.Turn
	for _, t := range m.turns {
		if (f.Owner == nil || *f.Owner == t.Owner) && (f.Session == "" || f.Session == t.Session) &&
			(f.State == "" || f.State == t.State) && (!f.Live || !t.State.Terminal()) {
			out = append(out, *t)
		}
	}
	slices.SortFunc(out, func(a, b api.Turn) int { return strings.Compare(a.ID, b.ID) })
	return out, nil
}

func (m *memory) Turn(_ context.Context, id string) (api.Turn, error) { return m.get(id) }

func (m *memory) TurnOfCgroup(path string) (string, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for cg, id := range m.cgroups {
		if path == cg || strings.HasPrefix(path, cg+"/") {
			return id, true
		}
	}
	return "", false
}

func (m *memory) Launch(_ context.Context, id string, c containment.Caller, req api.LaunchRequest, fds []*os.File) (api.Process, error) {
	if len(req.Argv) == 0 {
		return api.Process{}, api.Errorf(api.CodeBadRequest, "argv is empty")
	}
	for _, s := range []api.Stream{req.Stdio.Stdin, req.Stdio.Stdout, req.Stdio.Stderr} {
		if s.Mode == api.StdioPass && s.FD >= len(fds) {
			return api.Process{}, api.Errorf(api.CodeBadRequest, "descriptor %d, but %d came", s.FD, len(fds))
		}
	}
	for i, f := range fds {
		if _, err := fmt.Fprintf(f, "%s %d\n", strings.Join(req.Argv, " "), i); err != nil {
			return api.Process{}, err
		}
	}
	m.mu.Lock()
	m.callers = append(m.callers, c)
	m.mu.Unlock()
	p := api.Process{ID: "p2", Turn: id, Argv: req.Argv, UID: c.UID, Status: api.Status{State: api.ProcessRunning}, Grade: api.GradeScope,
		Labels: map[string]string{"fds": fmt.Sprint(len(fds))}}
	m.change(id, func(t *api.Turn) { t.Processes = append(t.Processes[:1:1], p) })
	return p, nil
}

func (m *memory) Process(_ context.Context, turn, proc string) (api.Process, error) {
	t, err := m.get(turn)
	if err != nil {
		return api.Process{}, err
	}
	for _, p := range t.Processes {
		if p.ID == proc {
			return p, nil
		}
	}
	return api.Process{}, api.Errorf(api.CodeNotFound, "no process %q", proc)
}

func (m *memory) WaitProcess(ctx context.Context, turn, proc string) (api.Process, error) {
	if _, err := m.Process(ctx, turn, proc); err != nil {
		return api.Process{}, err
	}
	_, err := m.until(ctx, turn, func(t *api.Turn) bool {
		return slices.ContainsFunc(t.Processes, func(p api.Process) bool {
			return p.ID == proc && p.Status.State != api.ProcessRunning
		})
	})
	if err != nil {
		return api.Process{}, err
	}
	return m.Process(ctx, turn, proc)
}

func (m *memory) WaitTurn(ctx context.Context, id string) (api.Turn, error) {
	m.waiters.Add(1)
	defer m.waiters.Add(-1)
	return m.until(ctx, id, func(t *api.Turn) bool { return t.State.Terminal() })
}

func (m *memory) Signal(ctx context.Context, turn, proc string, req api.SignalRequest) (api.SignalAnswer, error) {
	_, err := m.Process(ctx, turn, proc)
	return api.SignalAnswer{Process: proc, Signal: req.Signal, Verdict: api.VerdictOwned, Grade: api.GradeScope}, err
}

func (m *memory) Tree(_ context.Context, id string) (api.Tree, error) {
	_, err := m.get(id)
	return api.Tree{Turn: id, Grade: api.GradeScope, Members: []api.Member{}}, err
}

func (m *memory) Finish(ctx context.Context, id string, _ containment.Caller, _ api.FinishRequest) (api.Receipt, error) {
	m.change(id, func(t *api.Turn) { t.State = api.StateFinished })
	return m.Receipt(ctx, id)
}

func (m *memory) Abandon(ctx context.Context, id string, _ containment.Caller, req api.AbandonRequest) (api.Receipt, error) {
	t, err := m.get(id)
	if err != nil {
		return api.Receipt{}, err
	}
	if req.Epoch != 0 && req.Epoch != t.Epoch {
		return api.Receipt{}, api.Errorf(api.CodeStaleEpoch, "stale")
	}
	m.change(id, func(t *api.Turn) { t.State = api.StateEnding })
	time.AfterFunc(m.slow, func() {
		m.change(id, func(t *api.Turn) {
			t.State, t.Processes = api.StateAbandoned, slices.Clone(t.Processes) // others read the old ones
			for i := range t.Processes {
				t.Processes[i].Status = api.Status{State: api.ProcessSignaled, Signal: "SIGKILL", SignalNumber: 9}
			}
		})
	})
	if _, err := m.WaitTurn(ctx, id); err != nil {
		return api.Receipt{}, api.Errorf(api.CodeTimeout, "goes on")
	}
	return m.Receipt(ctx, id)
}

func (m *memory) Receipt(_ context.Context, id string) (api.Receipt, error) {
	t, err := m.get(id)
	if err == nil && !t.State.Terminal() {
		err = api.Errorf(api.CodeNotFound, "no receipt yet")
	}
	return api.Receipt{Turn: id, State: t.State, Grade: t.Grade, Complete: true}, err
}

func (m *memory) Receipts(ctx context.Context, owner *uint32, limit int) ([]api.Receipt, error) {
	ts, err := m.Turns(ctx, containment.TurnFilter{Owner: owner})
	var out []api.Receipt
	for _, t := range ts {
		if r, err := m.Receipt(ctx, t.ID); err == nil && len(out) < limit {
			out = append(out, r)
		}
	}
	return out, err
}

func (m *memory) Owner(_ context.Context, id string) (uint32, error) {
	t, err := m.get(id)
	return t.Owner, err
}

// service is a server on a real socket, everybody's to connect to.
type service struct {
	*Server
	engine *memory
	socket string
	stop   func() error
}

func (s *service) client(t *testing.T) *client.Client {
	c := &client.Client{Socket: s.socket}
	t.Cleanup(func() { c.Close() })
	return c
}

// start serves until the test ends.
func start(t testing.TB, cfg Config) *service {
	t.Helper()
	m := newMemory()
	cfg.Engine = m
	for _, d := range []*time.Duration{&cfg.HeaderTimeout, &cfg.StopTimeout} { // a busy machine is no slow client
		*d = cmp.Or(*d, 2*time.Minute)
	}
	s := &service{Server: New(cfg), engine: m, socket: filepath.Join(shortDir(t), "s")}
	l, err := Listen(s.socket, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	s.stop = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return s
}

// shortDir is a directory that others may search; test names are too long for
// a socket's path.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pf")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}
