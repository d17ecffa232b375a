package containment

import (
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"pinfold.dev/api"
)

// turn is one turn in memory. What is above mu never changes.
type turn struct {
	owner uint32
	id    string
	begun *BeginKey // nil: without a key
	seq   uint64    // rises from turn to turn; below the Manager's lock

	mu        sync.Mutex
	view      api.Turn // without Processes and Alive
	hold      Hold     // nil: nothing is held (unverifiable, or released)
	over      Hold     // of a turn that is over: to be let go
	facts     Facts
	graceMS   *int64
	procs     []*process
	byID      map[string]*process
	early     map[string]Exit // ends told before their launch was answered
	next      int             // number of the next process
	inflight  sync.WaitGroup  // launches that the keeper has not answered
	jobs      []*job
	promoting sync.WaitGroup // moves of processes that become jobs
	lost      string         // why the keeper is gone; empty: it is there
	hopeless  bool           // what its hold knows will never tell that all has ended
	fenced    bool           // the keeper, found again, launches nothing more
	ending    *EndRequest
	patience  patience
	draft     *api.Receipt  // what the receipt will say, while the cgroup is removed
	noting    sync.Once     // the ending is written down
	noted     chan struct{} // closed when the ending was written down, or could not be
	receipt   *api.Receipt
	settled   chan struct{} // closed when the first receipt is announced
	changed   chan struct{} // closed and replaced at every change
	keys      map[string]*keyed
	events    Events               // nil: nobody is told
	clock     func() time.Duration // monotonic
	expire    func(process string) // told when a deadline is over
	finish    func(uid uint32)     // told when a process has ended that finishes the turn
	clocks    clocks
	alarm     *time.Timer   // runs when a clock has something to tell
	tick      func()        // looks at the clocks
	looking   bool          // somebody looks at output, CPU and I/O
	wrote     time.Duration // when the clocks were written down last
	client    *presence     // of who is the client; never nil
	clientID  api.Identity  // of the client's process, where that is watched
	freezing  sync.Mutex    // one freeze or thaw at a time
	leftMu    sync.Mutex    // one settling of leftovers at a time
	saveMu    sync.Mutex    // orders writes of the record
	archived  bool          // below saveMu: the record is in the history
	found     Rule          // what was done about it when it was found again; never changes
	seen      error         // and what was seen then
}

// process is one launched process in memory, below its turn's lock.
type process struct {
	view  api.Process
	meta  meta
	input chan struct{} // holds a token while bytes are on their way to stdin
	timer *time.Timer   // runs out at the deadline
	fired time.Time     // when what Status.EndedBy names began
	// escaped tells that it was seen outside its turn's cgroup.
	escaped bool
	spoke   []string // what spoke for it when the turn was ended
	joining bool     // it is not known yet whether it comes to be in the turn
	told    bool     // its end is
}

func newTurn(view api.Turn) *turn {
	return &turn{id: view.ID, owner: view.Owner, view: view, next: 1, byID: map[string]*process{}, early: map[string]Exit{},
		keys: map[string]*keyed{}, client: &presence{}, noted: make(chan struct{}), settled: make(chan struct{}), changed: make(chan struct{})}
}

// touch wakes everybody who waits for a change; the lock is held.
func (t *turn) touch() {
	close(t.changed)
	t.changed = make(chan struct{})
}

func (t *turn) state() api.State {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.view.State
}

func (t *turn) held() Hold {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.hold
}

func (t *turn) cgroupLine() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.hold == nil {
		return ""
	}
	return t.facts.CgroupLine
}

func (t *turn) receiptNow() (api.Receipt, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.receipt == nil {
		return api.Receipt{}, false
	}
	return *t.receipt, true
}

// show is the turn as callers see it who do not wait for a disk: without how far
// kept streams are, where that has yet to be read (see Manager.Turn).
func (t *turn) show() api.Turn {
	v := t.showUnread()
	for i, p := range v.Processes {
		for _, st := range p.Output {
			if !st.EOF && !p.Acknowledged {
				v.Processes[i].Output = nil
			}
		}
	}
	return v
}

// showUnread is the turn with a fresh count of what is alive, and with the streams
// that are kept, as far as they are known.
func (t *turn) showUnread() api.Turn {
	t.mu.Lock()
	v, h, unknown := t.snapshot(), t.hold, t.isShown()
	t.mu.Unlock()
	if h == nil {
		if unknown || !v.State.Terminal() {
			v.Alive = -1
		}
		return v
	}
	n, err := h.Alive()
	if err != nil {
		n = -1
	} else { // one that has left the cgroup is held, too
		n = max(n, running(v.Processes))
	}
	v.Alive = n
	return v
}

// running counts the launches whose end is not known.
func running(all []api.Process) (n int) {
	for _, p := range all {
		if p.Status.State == api.ProcessRunning {
			n++
		}
	}
	return n
}

// snapshot is the turn without what only the kernel knows; the lock is held.
func (t *turn) snapshot() api.Turn {
	v := t.view
	v.Degraded = slices.Clone(v.Degraded)
	v.Survivors = slices.Clone(v.Survivors)
	v.Jobs = slices.Clone(v.Jobs)
	v.Clocks = t.shownClocks()
	v.Processes = make([]api.Process, 0, len(t.procs))
	for _, p := range t.procs {
		v.Processes = append(v.Processes, p.view)
	}
	return v
}

// addProcess enters a process that runs, or ran; the lock is held.
func (t *turn) addProcess(p *process) {
	t.procs = append(t.procs, p)
	t.byID[p.view.ID] = p
	p.input = make(chan struct{}, 1)
	t.enterKey(p)
	if x, ok := t.early[p.view.ID]; ok {
		delete(t.early, p.view.ID)
		p.end(x)
	}
	t.tellProcess(p)
	t.arm(p)
	t.touch()
}

// removeProcess forgets a process that did not come to run; the lock is held.
func (t *turn) removeProcess(id string) {
	t.procs = slices.DeleteFunc(t.procs, func(p *process) bool { return p.view.ID == id })
	delete(t.byID, id)
	maps.DeleteFunc(t.keys, func(_ string, k *keyed) bool { return k.process == id })
	t.touch()
}

// end enters the end of a process; the first one stands. One that ended before
// its deadline, or a stop, was not ended by it, and one that we were ending did not die of
// want of memory.
func (p *process) end(x Exit) {
	if p.view.Status.State != api.ProcessRunning {
		return
	}
	p.disarm()
	at := x.At.UTC()
	by := p.view.Status.EndedBy
	if !p.fired.IsZero() && x.At.Before(p.fired) {
		by = ""
	}
	p.view.Status, p.view.EndedAt = x.Status, &at
	p.view.Status.EndedBy = by
	if by != "" && x.Status.State == api.ProcessOOM {
		p.view.Status.State = api.ProcessSignaled
	}
}

// stopSignal is what asks a process to stop.
func (p *process) stopSignal() syscall.Signal {
	if p.meta.Stop != 0 {
		return p.meta.Stop
	}
	return syscall.SIGTERM
}

// exited is the hold's Exit hook.
func (t *turn) exited(x Exit) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ending != nil && x.Status.State == api.ProcessOOM {
		x.Status.State = api.ProcessSignaled // killed, as likely as not, by us
	}
	if p := t.byID[x.Process]; p != nil {
		p.end(x)
		t.tellExit(p)
		t.finishIfDone(p)
	} else {
		t.early[x.Process] = x
	}
	t.touch()
}

// keeperLost is the hold's KeeperLost hook.
func (t *turn) keeperLost(why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lost != "" || t.view.State.Terminal() {
		return
	}
	t.lost = why
	t.view.Degraded = append(t.view.Degraded,
		"the keeper is gone ("+why+"): the turn is still held and can be ended, but nothing can be launched in it and some exit statuses are lost")
	t.tell(api.EventDegraded, "keeper", func(e *api.Event) { e.Message = "the keeper is gone: " + why })
	t.touch()
}

// record is what the disk should hold; the lock is held.
func (t *turn) record(boot string) Record {
	r := Record{Schema: RecordSchema, Boot: boot, Turn: t.snapshot(), Facts: t.facts, GraceMS: t.graceMS,
		Clocks: t.clocks, Client: t.clientID, Begin: t.begun, SavedAt: time.Now().UTC()}
	for _, j := range t.jobs {
		r.Jobs = append(r.Jobs, j.JobRecord)
	}
	r.Meta = t.ownMeta()
	if t.ending != nil {
		e := *t.ending
		r.Ending = &e
	}
	if t.receipt != nil {
		c := *t.receipt
		r.Receipt = &c
	} else if t.draft != nil {
		c := *t.draft
		r.Draft = &c
	}
	return r
}

// save writes the record as it is now.
func (m *Manager) save(t *turn) error { return t.write(m.cfg.Boot, m.cfg.Records.Save) }

// write hands on the record as it is now, in order, until it is in the history.
func (t *turn) write(boot string, to func(Record) error) error {
	t.saveMu.Lock()
	defer t.saveMu.Unlock()
	if t.archived {
		return nil
	}
	t.mu.Lock()
	r := t.record(boot)
	t.mu.Unlock()
	return to(r)
}

// apply moves the turn along; the lock is held.
func (t *turn) apply(ev event) step {
	st := next(t.view.State, ev)
	if st.state != t.view.State {
		t.view.State = st.state
		if st.state.Terminal() {
			now := time.Now().UTC()
			t.view.EndedAt = &now
			t.view.Survivors = nil
		}
		t.touch()
	}
	return st
}
