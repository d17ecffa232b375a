package containment

import (
	"context"

	"pinfold.dev/api"
)

func frozen(id string) *api.Error {
	return api.Errorf(api.CodeUnavailable, "turn %s is frozen: what is launched in it would not start", id).
		WithRemedy("let it go on with `pinfold thaw %s`", id)
}

// Freeze stops every process of the turn, its clocks and its processes'
// deadlines. It is written down first: a later service freezes again what it
// finds recorded so.
func (m *Manager) Freeze(ctx context.Context, id string, c Caller, req api.FreezeRequest) (api.Turn, error) {
	t, err := m.findOpen(id)
	if err != nil {
		return api.Turn{}, err
	}
	t.freezing.Lock()
	defer t.freezing.Unlock()
	t.mu.Lock()
	if err := t.mayChange(req.Epoch); err != nil {
		t.mu.Unlock()
		return api.Turn{}, err
	}
	h, already := t.hold, t.view.Frozen
	t.setFrozen(true)
	t.mu.Unlock()
	if already {
		return t.show(), nil
	}
	err = m.save(t)
	t.inflight.Wait() // a launch that is frozen halfway would not be answered
	if err == nil {
		err = m.setFreezer(h, true)
	}
	if err != nil {
		_ = m.setFreezer(h, false)
		m.thawed(t)
	}
	t.mu.Lock()
	s := t.view.State
	if err != nil && s == api.StateOpen {
		t.mu.Unlock()
		return api.Turn{}, asAPI(err, api.CodeUnavailable, "freeze turn "+id)
	}
	if s == api.StateOpen {
		t.tell(api.EventFrozen, "", nil)
	}
	t.mu.Unlock()
	if s != api.StateOpen { // its ending came meanwhile, and may be asking it to stop
		_ = m.setFreezer(h, false)
		return api.Turn{}, isOver(id, s)
	}
	m.log.Info("turn frozen", "turn", id, "uid", c.UID)
	return t.show(), nil
}

// Thaw lets them go on.
func (m *Manager) Thaw(ctx context.Context, id string, c Caller, req api.FreezeRequest) (api.Turn, error) {
	t, err := m.findOpen(id)
	if err != nil {
		return api.Turn{}, err
	}
	t.freezing.Lock()
	defer t.freezing.Unlock()
	t.mu.Lock()
	if err := t.mayChange(req.Epoch); err != nil {
		t.mu.Unlock()
		return api.Turn{}, err
	}
	h, is := t.hold, t.view.Frozen
	t.mu.Unlock()
	if !is {
		return t.show(), nil
	}
	if err := m.setFreezer(h, false); err != nil {
		return api.Turn{}, asAPI(err, api.CodeUnavailable, "thaw turn "+id)
	}
	m.thawed(t)
	t.mu.Lock()
	t.tell(api.EventThawed, "", nil)
	t.mu.Unlock()
	m.log.Info("turn thawed", "turn", id, "uid", c.UID)
	return t.show(), nil
}

// thawed enters that the turn goes on.
func (m *Manager) thawed(t *turn) {
	t.mu.Lock()
	t.setFrozen(false)
	t.mu.Unlock()
	if err := m.save(t); err != nil {
		m.log.Warn("save the record of a turn", "turn", t.id, "error", err)
	}
}

// setFrozen stops the turn's clocks and deadlines, or lets them go on; the lock
// is held.
func (t *turn) setFrozen(on bool) {
	if t.view.Frozen == on {
		return
	}
	t.view.Frozen = on
	if on {
		t.clocks.freeze(t.clock())
	} else {
		t.clocks.thaw(t.clock())
	}
	for _, p := range t.procs {
		p.disarm()
		t.arm(p)
	}
	t.rearm()
	t.touch()
}

// setFreezer has the kernel stop the processes, or let them go on. It is bounded
// by its own time: whoever asked may have gone.
func (m *Manager) setFreezer(h Hold, on bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), m.cfg.Bound)
	defer cancel()
	if on {
		return h.Freeze(ctx)
	}
	return h.Thaw(ctx)
}

// thawToEnd lets a frozen turn go on whose processes are asked to stop, or kept:
// frozen, they could do neither. What is killed need not be thawed.
func (m *Manager) thawToEnd(t *turn, h Hold, r *api.Receipt) {
	t.mu.Lock()
	is := t.view.Frozen
	t.setFrozen(false)
	t.mu.Unlock()
	if !is || !t.keepsOrAsks() {
		return
	}
	if err := m.setFreezer(h, false); err != nil {
		r.Notes = append(r.Notes, "thaw: "+err.Error())
	}
}

// keepsOrAsks tells whether the turn's ending leaves processes to run, for a
// while or for good.
func (t *turn) keepsOrAsks() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ending != nil && (t.ending.Keep || t.ending.GraceMS > 0)
}

// resumeFrozen freezes a turn again that was to be frozen when an earlier service
// ended.
func (m *Manager) resumeFrozen(t *turn) {
	t.mu.Lock()
	h, is := t.hold, t.view.Frozen
	t.mu.Unlock()
	if !is || h == nil {
		return
	}
	m.wg.Go(func() {
		t.freezing.Lock()
		defer t.freezing.Unlock()
		t.mu.Lock()
		is := t.view.Frozen && t.view.State == api.StateOpen
		t.mu.Unlock()
		if !is {
			return
		}
		if err := m.setFreezer(h, true); err != nil {
			m.log.Warn("freeze a turn again", "turn", t.id, "error", err)
			m.thawed(t)
		}
	})
}
