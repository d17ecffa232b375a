package containment

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"pinfold.dev/api"
)

// Config is what a Manager needs.
type Config struct {
	Host    Host
	Records Records
	Users   Users
	Log     *slog.Logger           // nil: nothing is logged
	Boot    string                 // this boot's id
	UID     uint32                 // the service's own
	Grace   time.Duration          // between TERM and KILL where nobody says otherwise
	Clock   func() time.Duration   // the host's monotonic clock, the same after a restart; nil: this process's
	Own     Own                    // the service's own attributes
	Outputs Outputs                // nil: no output is kept
	Events  Events                 // nil: nobody is told what happens
	Upkeep  Upkeep                 // nil: nothing is looked for
	History func() api.HistoryInfo // nil: there is nothing to tell
	// Recorded tells whether there is a record of a turn on disk; nil: nobody looks.
	// Tend is called before anybody is told of records: it sees to it that they are
	// there.
	Recorded func(turn string) bool
	Tend     func()
	// Spare keeps, until free is called, what the service cannot do without while a
	// turn is found again; ok tells whether all of it was there. Nil: nothing is kept.
	Spare func() (free func(), ok bool)
	// Retention is how long the output of a turn that is over is kept when
	// nobody acknowledges it, and OutputRoom what all of it may take on disk; 0
	// of the latter: 4 GiB.
	Retention  time.Duration
	OutputRoom int64
	Bound      time.Duration // how long an ending may take before survivors are named; 0: 10 s
}

// Manager holds the turns of one service. Its methods may be called at the
// same time. Its errors are *api.Error.
type Manager struct {
	cfg   Config
	log   *slog.Logger
	mu    sync.RWMutex
	turns map[string]*turn
	seq   uint64 // of the turn that was entered last
	// beginning are the begins under way that have an idempotency key.
	beginning map[ownedKey]chan struct{}
	// unread are turns whose record cannot be used; partial tells that there
	// may be more. moved are names that the only record of another turn has.
	unread  map[string]error
	moved   map[string]bool
	partial bool
	// unborn are turns whose begin is under way.
	unborn  map[string]bool
	outputs retention
	// moving is held by an adoption, and for reading by those that move
	// themselves: of two the later one sees where the process is.
	moving sync.RWMutex
	// unshelved are turns that wait for the history.
	unshelved shelf
	relook    relook
	wg        sync.WaitGroup // endings, watches and archiving under way
	stop      chan struct{}  // closed by Close: watches stop, turns stay
}

// New returns a Manager without turns; call Recover before serving.
func New(cfg Config) *Manager {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Clock == nil {
		start := time.Now()
		cfg.Clock = func() time.Duration { return time.Since(start) }
	}
	if cfg.Outputs == nil {
		cfg.Outputs = noOutputs{}
	}
	if cfg.Events == nil {
		cfg.Events = noEvents{}
	}
	if cfg.OutputRoom <= 0 {
		cfg.OutputRoom = defaultRoom
	}
	if cfg.Bound <= 0 {
		cfg.Bound = 10 * time.Second
	}
	return &Manager{cfg: cfg, log: cfg.Log, turns: map[string]*turn{}, beginning: map[ownedKey]chan struct{}{}, unread: map[string]error{}, moved: map[string]bool{}, unborn: map[string]bool{}, stop: make(chan struct{})}
}

// Close lets go of every turn and leaves all of them running. It waits for
// endings that are under way until ctx is over.
func (m *Manager) Close(ctx context.Context) error {
	close(m.stop)
	m.unshelved.stop()
	m.relook.close()
	done := make(chan struct{})
	go func() { m.wg.Wait(); close(done) }()
	var err error
	select {
	case <-done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, t := range m.turns {
		t.unwatch()
		if h := t.held(); h != nil {
			err = errors.Join(err, h.Close())
		}
	}
	return err
}

// Grade is what new turns get.
func (m *Manager) Grade() api.Grade { return m.cfg.Host.Grade() }

// Host tells what this host can do and how many turns are not over.
func (m *Manager) Host(ctx context.Context) (api.Host, error) {
	h := m.cfg.Host.Info(ctx)
	h.Boot, h.UID = m.cfg.Boot, m.cfg.UID
	if err := m.cfg.Events.Trouble(); err != nil {
		h.Checks = append(h.Checks, api.HostCheck{Name: "events", Detail: "degraded: events are kept in memory, a few thousand of them, and lost with the service: " + err.Error(),
			Remedy: "make room in the state directory, and have it writable"})
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, t := range m.turns {
		if !t.state().Terminal() {
			h.Turns++
		}
	}
	return h, nil
}

// newID makes an unguessable turn id: 16 lower-case hex digits.
func newID() string {
	var b [8]byte
	rand.Read(b[:]) // never fails, see crypto/rand
	return hex.EncodeToString(b[:])
}

// live finds a turn that this Manager holds in memory.
func (m *Manager) live(id string) (*turn, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	t, ok := m.turns[id]
	return t, ok
}

// Knows tells whether there is, or may be, a record of a turn, good or bad.
func (m *Manager) Knows(id string) bool {
	if _, ok := m.live(id); ok {
		return true
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.partial || m.unread[id] != nil
}

// find is live, with the error to answer when there is none.
func (m *Manager) find(id string) (*turn, error) {
	if t, ok := m.live(id); ok {
		return t, nil
	}
	return nil, notFound(id)
}

func notFound(id string) *api.Error {
	return api.Errorf(api.CodeNotFound, "no turn %q", id).
		WithRemedy("list turns with `pinfold ps -a`")
}

// drop forgets a turn that is over and in the history.
func (m *Manager) drop(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.turns, id)
}

// Turn returns one turn, from memory or from the history.
func (m *Manager) Turn(ctx context.Context, id string) (api.Turn, error) {
	if t, ok := m.live(id); ok {
		v := t.showUnread()
		for i := range v.Processes {
			v.Processes[i] = m.withOutput(v.Processes[i])
		}
		return v, nil
	}
	r, err := m.ended(id)
	if err != nil {
		return api.Turn{}, err
	}
	return r.Turn, nil
}

// ended finds a turn in the history.
func (m *Manager) ended(id string) (Record, error) {
	r, ok, err := m.cfg.Records.Ended(id)
	switch {
	case err != nil:
		return Record{}, api.Errorf(api.CodeInternal, "read history of turn %s: %v", id, err)
	case !ok:
		return Record{}, notFound(id)
	}
	return r, nil
}

// Owner tells whose turn it is, also of turns long ended.
func (m *Manager) Owner(ctx context.Context, id string) (uint32, error) {
	if t, ok := m.live(id); ok {
		return t.owner, nil
	}
	r, err := m.ended(id)
	return r.Turn.Owner, err
}

// historyShown bounds what a list takes from the history.
const historyShown = 1000

// Turns lists turns, oldest first. Ended ones come from the history.
func (m *Manager) Turns(ctx context.Context, f TurnFilter) ([]api.Turn, error) {
	m.mu.RLock()
	held := make([]*turn, 0, len(m.turns))
	for _, t := range m.turns {
		held = append(held, t)
	}
	m.mu.RUnlock()
	var out []api.Turn
	seen := make(map[string]bool, len(held))
	add := func(v api.Turn) {
		if !seen[v.ID] && f.match(v) {
			out = append(out, v)
		}
		seen[v.ID] = true
	}
	for _, t := range held {
		if f.Owner == nil || *f.Owner == t.owner {
			add(t.show())
		}
	}
	if !f.Live {
		old, err := m.cfg.Records.EndedTurns(f.Owner, historyShown)
		if err != nil {
			return nil, api.Errorf(api.CodeInternal, "read history: %v", err)
		}
		for _, r := range old {
			add(r.Turn)
		}
	}
	slices.SortFunc(out, func(a, b api.Turn) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), strings.Compare(a.ID, b.ID))
	})
	return out, nil
}

func (f TurnFilter) match(t api.Turn) bool {
	return t.Kind == "" && (f.Owner == nil || *f.Owner == t.Owner) &&
		(f.Session == "" || f.Session == t.Session) &&
		(f.State == "" || f.State == t.State) &&
		(!f.Live || !t.State.Terminal() || t.Alive != 0) // -1: what it has alive is not known
}

// TurnOfCgroup tells which turn's cgroup contains the cgroup path, given as
// the 0:: line of /proc/PID/cgroup.
func (m *Manager) TurnOfCgroup(path string) (string, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for id, t := range m.turns {
		line := t.cgroupLine()
		if line != "" && (path == line || strings.HasPrefix(path, line+"/")) {
			return id, true
		}
	}
	return "", false
}

// Receipt returns the receipt of an ended turn; not_found while there is none.
func (m *Manager) Receipt(ctx context.Context, id string) (api.Receipt, error) {
	if t, ok := m.live(id); ok {
		if r, ok := t.receiptNow(); ok {
			return r, nil
		}
		st := t.state()
		err := api.Errorf(api.CodeNotFound, "turn %s is %s and has no receipt yet", id, st)
		if st == api.StateOpen {
			return api.Receipt{}, err.WithRemedy("end it with `pinfold finish %s` or `pinfold abandon %s`", id, id)
		}
		return api.Receipt{}, err.WithRemedy("wait for it with `pinfold wait %s`", id)
	}
	r, err := m.ended(id)
	if err != nil {
		return api.Receipt{}, err
	}
	if r.Receipt == nil {
		return api.Receipt{}, api.Errorf(api.CodeNotFound, "turn %s ended without a receipt", id)
	}
	return *r.Receipt, nil
}

// Receipts lists receipts, newest first; owner nil means everybody's.
func (m *Manager) Receipts(ctx context.Context, owner *uint32, limit int) ([]api.Receipt, error) {
	if limit <= 0 || limit > historyShown {
		limit = historyShown
	}
	var out []api.Receipt
	seen := map[string]bool{}
	m.mu.RLock()
	for id, t := range m.turns {
		if owner != nil && *owner != t.owner {
			continue
		}
		if r, ok := t.receiptNow(); ok {
			out, seen[id] = append(out, r), true
		}
	}
	m.mu.RUnlock()
	old, err := m.cfg.Records.EndedTurns(owner, limit)
	if err != nil {
		return nil, api.Errorf(api.CodeInternal, "read history: %v", err)
	}
	for _, r := range old {
		if r.Receipt != nil && !seen[r.Turn.ID] {
			out = append(out, *r.Receipt)
		}
	}
	slices.SortFunc(out, func(a, b api.Receipt) int { return b.AskedAt.Compare(a.AskedAt) })
	return out[:min(len(out), limit)], nil
}
