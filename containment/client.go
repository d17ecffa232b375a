package containment

import (
	"context"
	"errors"
	"fmt"

	"pinfold.dev/api"
)

// presence is of one client of a turn: a process that is watched, or connections
// that hold the turn. A turn that is taken over has a new one, and what comes
// late of the old one counts for nothing. It is below its turn's lock.
type presence struct {
	gone  bool
	holds int    // connections
	stop  func() // ends the watch of its process
}

// leave ends the watch; the turn's lock is held.
func (p *presence) leave() {
	if p.stop != nil {
		go p.stop() // it may wait for the watch's own call, which wants the lock
		p.stop = nil
	}
}

// watch begins to watch a process as the turn's client, which it becomes by
// meet. The lock is not held.
func (m *Manager) watch(t *turn, c Client) (p *presence, id api.Identity, v api.Verdict, err error) {
	p = &presence{}
	id, stop, v, err := m.cfg.Host.Watch(c, func() { m.processGone(t, p) })
	if v == api.VerdictOwned && err == nil {
		p.stop = stop
	}
	return p, id, v, err
}

// watchCaller watches who asks.
func (m *Manager) watchCaller(t *turn, c Caller) (*presence, api.Identity, error) {
	if c.Process == nil {
		return nil, api.Identity{}, api.Errorf(api.CodeUnsupported, "the process that asks cannot be told").WithRemedy("bind the turn to a connection instead")
	}
	f, err := c.Process()
	if err != nil {
		return nil, api.Identity{}, asAPI(err, api.CodePeerUnverifiable, "open a handle on the process that asks")
	}
	defer f.Close()
	p, id, v, err := m.watch(t, Client{FD: int(f.Fd())})
	if v != api.VerdictOwned || err != nil {
		return nil, id, api.Errorf(api.CodePeerUnverifiable, "the process that asks cannot be watched: it is %s (%v)", v, err).
			WithRemedy("ask from a process that stays alive")
	}
	return p, id, nil
}

// processGone is told that a watched process has exited.
func (m *Manager) processGone(t *turn, p *presence) {
	select {
	case <-m.stop:
		return // the next service looks for it
	default:
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	p.gone = true
	if t.client == p && t.hold != nil { // else met tells, once the turn is held
		m.clientGone(t)
	}
}

// clientGone starts what is to happen when the client has gone; the lock is
// held.
func (m *Manager) clientGone(t *turn) {
	if t.view.State != api.StateOpen || t.clocks.Client.On {
		return
	}
	m.log.Info("client gone", "turn", t.id, "bind", t.view.Client.Bind, "on_gone", t.view.Client.OnGone)
	key := "" // a connection may go again and again
	if t.view.Client.Bind == api.BindProcess {
		key = fmt.Sprint(t.view.Epoch)
	}
	t.tell(api.EventClientGone, key, nil)
	m.awaitClient(t)
}

// awaitClient gives the client, or another one, its time to come; the lock is
// held.
func (m *Manager) awaitClient(t *turn) {
	if t.view.State != api.StateOpen || t.clocks.Client.On || t.view.Client.OnGone == api.OnGoneDetach {
		return
	}
	t.clocks.clientGone(t.clock())
	t.rearm()
	t.touch()
	m.saveSoon(t)
}

// bindClient makes the caller the client of a turn that begins.
func (m *Manager) bindClient(t *turn, c Caller) (err error) {
	switch t.view.Client.Bind {
	case api.BindProcess:
		t.client, t.clientID, err = m.watchCaller(t, c)
	case api.BindConnection:
		if t.view.Client.OnGone != api.OnGoneDetach { // until it is held
			t.clocks.clientGone(t.clock())
		}
	}
	return err
}

// met notes, once the turn is held, that its client has gone meanwhile.
func (m *Manager) met(t *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.client.gone {
		m.clientGone(t)
	}
	t.rearm()
}

// Take makes the caller the turn's client, under a new epoch, which is on disk
// before it is told.
func (m *Manager) Take(ctx context.Context, id string, c Caller, req api.TakeRequest) (api.Turn, error) {
	t, err := m.findOpen(id)
	if err != nil {
		return api.Turn{}, err
	}
	p, pid := &presence{}, api.Identity{}
	if t.bind() == api.BindProcess {
		if p, pid, err = m.watchCaller(t, c); err != nil {
			return api.Turn{}, err
		}
	}
	t.mu.Lock()
	if err = t.mayChange(req.Epoch); err != nil {
		p.leave()
		t.mu.Unlock()
		return api.Turn{}, err
	}
	was, wasID, wasClocks := t.client, t.clientID, t.clocks
	t.view.Epoch++
	epoch := t.view.Epoch
	t.client, t.clientID = p, pid
	t.meet()
	t.touch()
	t.mu.Unlock()
	if err := m.save(t); err != nil {
		t.mu.Lock()
		if t.view.Epoch == epoch && t.view.State == api.StateOpen {
			t.view.Epoch, t.client, t.clientID, t.clocks = epoch-1, was, wasID, wasClocks
		}
		p.leave()
		t.mu.Unlock()
		m.met(t)
		return api.Turn{}, api.Errorf(api.CodeUnavailable, "write down that turn %s has a new client: %v", id, err).
			WithRemedy("nothing was changed: try again")
	}
	t.mu.Lock()
	was.leave()
	t.tell(api.EventTaken, fmt.Sprint(epoch), func(e *api.Event) { e.Epoch = epoch })
	t.mu.Unlock()
	m.met(t)
	m.log.Info("turn taken", "turn", id, "epoch", epoch, "uid", c.UID, "pid", c.PID)
	v := t.show()
	v.Epoch = epoch
	return v, nil
}

// meet is the clocks' part of having a new client: a watched process is there; a
// connection has its time to come. The lock is held.
func (t *turn) meet() {
	t.clocks.clientBack()
	t.clocks.touch(t.clock())
	if t.view.Client.Bind == api.BindConnection && t.view.Client.OnGone != api.OnGoneDetach {
		t.clocks.clientGone(t.clock())
	}
}

func (t *turn) bind() api.ClientBind {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.view.Client.Bind
}

// mayChange refuses what is for an open turn, and stale epochs; the lock is held.
func (t *turn) mayChange(epoch int64) error {
	if err := t.atEpoch(epoch)(); err != nil {
		return err
	}
	switch {
	case t.view.State != api.StateOpen:
		return isOver(t.id, t.view.State)
	case t.hold == nil:
		return api.Errorf(api.CodeUnavailable, "turn %s cannot be verified, so nothing in it is changed", t.id).
			WithRemedy("see `pinfold show %s`", t.id)
	}
	return nil
}

// isOver tells that a turn is not open any more.
func isOver(id string, s api.State) *api.Error {
	return api.Errorf(api.CodeTurnOver, "turn %s is %s", id, s).WithRemedy("begin another turn").With("state", string(s))
}

// findOpen is find, for what an ended turn cannot take.
func (m *Manager) findOpen(id string) (*turn, error) {
	t, err := m.find(id)
	if err == nil {
		return t, nil
	}
	if r, herr := m.ended(id); herr == nil {
		return nil, isOver(id, r.Turn.State)
	}
	return nil, err
}

// Touch says that the turn is wanted.
func (m *Manager) Touch(ctx context.Context, id string, req api.TouchRequest) (api.TouchAnswer, error) {
	t, err := m.findOpen(id)
	if err != nil {
		return api.TouchAnswer{}, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.mayChange(req.Epoch); err != nil {
		return api.TouchAnswer{}, err
	}
	t.clocks.touch(t.clock())
	m.noteClocks(t)
	clocks := t.shownClocks()
	if clocks == nil {
		clocks = []api.Clock{}
	}
	return api.TouchAnswer{Turn: id, Epoch: t.view.Epoch, Clocks: clocks, Grade: t.view.Grade}, nil
}

// Hold says that the client is there until ctx ends, and returns when the turn is
// over, or another has taken it. A turn that is not bound to a connection is
// only waited for.
func (m *Manager) Hold(ctx context.Context, id string, epoch int64, held func(api.Turn)) (api.Turn, error) {
	t, err := m.findOpen(id)
	if err != nil {
		return api.Turn{}, err
	}
	t.mu.Lock()
	if err := t.mayChange(epoch); err != nil {
		t.mu.Unlock()
		return api.Turn{}, err
	}
	p, at := t.client, t.view.Epoch
	p.holds++
	if t.view.Client.Bind == api.BindConnection && t.clocks.Client.On {
		t.clocks.clientBack()
		t.touch()
		m.saveSoon(t)
	}
	t.mu.Unlock()
	defer func() { m.countOut(t, p, context.Cause(ctx)) }()
	held(t.show())
	for {
		t.mu.Lock()
		s, changed, now := t.view.State, t.changed, t.view.Epoch
		taken := t.client != p
		t.mu.Unlock()
		switch {
		case s.Terminal():
			return t.show(), nil
		case taken:
			return t.show(), staleEpoch(id, at, now)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return t.show(), api.Errorf(api.CodeTimeout, "turn %s is still %s", id, s)
		}
	}
}

// countOut counts a connection out. A context that was cancelled with a cause of its
// own is not the client's doing: the service stops, and the next one waits for
// the client.
func (m *Manager) countOut(t *turn, p *presence, why error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p.holds--
	stops := why != nil && !errors.Is(why, context.Canceled) && !errors.Is(why, context.DeadlineExceeded)
	if p.holds == 0 && !stops && t.client == p && t.view.Client.Bind == api.BindConnection {
		m.clientGone(t)
	}
}

// resumeClient finds the client of a turn again after a restart. Connections are
// all gone; a process may be there.
func (m *Manager) resumeClient(t *turn) {
	t.mu.Lock()
	bind, id := t.view.Client.Bind, t.clientID
	t.mu.Unlock()
	switch bind {
	case api.BindConnection:
		t.mu.Lock()
		m.awaitClient(t)
		t.mu.Unlock()
	case api.BindProcess:
		p, _, v, err := m.watch(t, Client{FD: -1, Recorded: id})
		m.log.Info("client looked for", "turn", t.id, "pid", id.PID, "verdict", v, "error", err)
		t.mu.Lock()
		defer t.mu.Unlock()
		switch RuleFor(FoundClient, v).Do {
		case DeedAdopt:
			t.client = p
			if p.gone {
				m.clientGone(t)
			}
		case DeedGone:
			m.clientGone(t)
		default: // a turn is not ended for what cannot be known
			t.view.Degraded = append(t.view.Degraded, fmt.Sprintf("its client, process %d, cannot be verified after a restart and is not watched: %v", id.PID, err))
		}
	}
}
