package containment

import (
	"context"

	"pinfold.dev/api"
)

// Process returns one launched process.
func (m *Manager) Process(ctx context.Context, id, proc string) (api.Process, error) {
	v, _, err := m.look(id, proc)
	return m.withOutput(v), err
}

// noProcess is the answer to who names a process that is not known: it may be known to
// the keeper. The lock is held.
func (t *turn) noProcess(proc string) error {
	if t.hold != nil {
		if err := t.hold.Reached(); err != nil {
			return err
		}
	}
	return noProcess(t.id, proc)
}

func noProcess(id, proc string) *api.Error {
	return api.Errorf(api.CodeNotFound, "no process %q in turn %s", proc, id).
		WithRemedy("list its processes with `pinfold show %s`", id)
}

func (m *Manager) endedProcess(id, proc string) (api.Process, error) {
	r, err := m.ended(id)
	if err != nil {
		return api.Process{}, err
	}
	for _, p := range r.Turn.Processes {
		if p.ID == proc {
			return p, nil
		}
	}
	return api.Process{}, noProcess(id, proc)
}

// WaitProcess returns once the process has ended.
func (m *Manager) WaitProcess(ctx context.Context, id, proc string) (api.Process, error) {
	t, ok := m.live(id)
	if !ok {
		return m.endedProcess(id, proc)
	}
	for {
		t.mu.Lock()
		p, changed := t.byID[proc], t.changed
		var v api.Process
		var err error
		if p != nil {
			v = p.view
		} else {
			err = t.noProcess(proc)
		}
		t.mu.Unlock()
		if err != nil {
			return v, err
		}
		if v.Status.State != api.ProcessRunning {
			return m.withOutput(v), nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return v, api.Errorf(api.CodeTimeout, "process %s of turn %s is still running", proc, id)
		}
	}
}

// WaitTurn returns once the turn is terminal.
func (m *Manager) WaitTurn(ctx context.Context, id string) (api.Turn, error) {
	t, ok := m.live(id)
	if !ok {
		return m.Turn(ctx, id)
	}
	for {
		t.mu.Lock()
		s, changed := t.view.State, t.changed
		t.mu.Unlock()
		if s.Terminal() {
			return t.show(), nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return t.show(), api.Errorf(api.CodeTimeout, "turn %s is still %s", id, s)
		}
	}
}

// Signal sends to a launched process through its handle.
func (m *Manager) Signal(ctx context.Context, id, proc string, req api.SignalRequest) (api.SignalAnswer, error) {
	sig, err := ParseSignal(req.Signal)
	if err != nil {
		return api.SignalAnswer{}, err
	}
	t, ok := m.live(id)
	if !ok {
		p, err := m.endedProcess(id, proc)
		return api.SignalAnswer{Process: proc, Signal: SignalName(sig), Verdict: api.VerdictGone, Grade: p.Grade}, err
	}
	if err := t.checkEpoch(req.Epoch); err != nil {
		return api.SignalAnswer{}, err
	}
	t.mu.Lock()
	p, h := t.byID[proc], t.hold
	a := api.SignalAnswer{Process: proc, Signal: SignalName(sig), Verdict: api.VerdictGone, Grade: t.view.Grade}
	running := p != nil && p.view.Status.State == api.ProcessRunning
	if p == nil {
		err = t.noProcess(proc)
	}
	t.mu.Unlock()
	switch {
	case err != nil:
		return a, err
	case !running:
		return a, nil
	case h == nil:
		a.Verdict = api.VerdictUnverifiable
		return a, nil
	}
	send := h.Signal
	if req.Group && (p.view.InPlace || p.view.Adopted != nil) {
		return a, api.Errorf(api.CodeBadRequest, "process %s of turn %s joined, or was adopted, and is in somebody else's group: that is not the turn's to signal", proc, id).
			WithRemedy("signal the process itself")
	} else if req.Group {
		send = h.SignalGroup
	}
	a.Verdict, err = send(ctx, proc, sig)
	if err != nil {
		return a, asAPI(err, api.CodeInternal, "signal "+proc)
	}
	return a, nil
}

// Tree lists what the turn's cgroup holds.
func (m *Manager) Tree(ctx context.Context, id string) (api.Tree, error) {
	t, ok := m.live(id)
	if !ok {
		r, err := m.ended(id)
		return api.Tree{Turn: id, Grade: r.Turn.Grade, Members: []api.Member{}}, err
	}
	t.mu.Lock()
	h := t.hold
	tree := api.Tree{Turn: id, Grade: t.view.Grade, Members: []api.Member{}}
	t.mu.Unlock()
	if h == nil {
		return tree, nil
	}
	ms, err := h.Members()
	if err != nil {
		return tree, api.Errorf(api.CodeInternal, "list turn %s: %v", id, err)
	}
	tree.Members = append(tree.Members, ms...)
	return tree, nil
}
