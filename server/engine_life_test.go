package server

import (
	"context"
	"errors"
	"slices"

	"pinfold.dev/api"
	"pinfold.dev/containment"
)

func (m *memory) Touch(_ context.Context, id string, req api.TouchRequest) (api.TouchAnswer, error) {
	t, err := m.get(id)
	if err == nil && req.Epoch != 0 && req.Epoch != t.Epoch {
		err = api.Errorf(api.CodeStaleEpoch, "stale")
	}
	return api.TouchAnswer{Turn: id, Epoch: t.Epoch, Clocks: []api.Clock{}, Grade: t.Grade}, err
}

func (m *memory) Take(_ context.Context, id string, c containment.Caller, _ api.TakeRequest) (api.Turn, error) {
	if _, err := m.get(id); err != nil {
		return api.Turn{}, err
	}
	m.mu.Lock()
	m.callers = append(m.callers, c)
	m.mu.Unlock()
	m.change(id, func(t *api.Turn) { t.Epoch++ })
	return m.get(id)
}

func (m *memory) Hold(ctx context.Context, id string, _ int64, held func(api.Turn)) (api.Turn, error) {
	t, err := m.get(id)
	if err != nil {
		return t, err
	}
	m.holders.Add(1)
	defer m.holders.Add(-1)
	held(t)
	t, err = m.WaitTurn(ctx, id)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.whys = append(m.whys, context.Cause(ctx))
	return t, err
}

func (m *memory) Freeze(_ context.Context, id string, _ containment.Caller, _ api.FreezeRequest) (api.Turn, error) {
	if _, err := m.get(id); err != nil {
		return api.Turn{}, err
	}
	m.change(id, func(t *api.Turn) { t.Frozen = true })
	return m.get(id)
}

func (m *memory) Thaw(_ context.Context, id string, _ containment.Caller, _ api.FreezeRequest) (api.Turn, error) {
	if _, err := m.get(id); err != nil {
		return api.Turn{}, err
	}
	m.change(id, func(t *api.Turn) { t.Frozen = false })
	return m.get(id)
}

func (m *memory) AbandonMany(ctx context.Context, c containment.Caller, owner *uint32, req api.AbandonManyRequest) (api.AbandonManyAnswer, error) {
	a := api.AbandonManyAnswer{Receipts: []api.Receipt{}, Refused: []api.RefusedEnd{}, Grade: m.Grade()}
	turns, err := m.Turns(ctx, containment.TurnFilter{Owner: owner, Session: req.Session})
	for _, t := range turns {
		if len(req.Turns) == 0 || slices.Contains(req.Turns, t.ID) {
			r, rerr := m.Abandon(ctx, t.ID, c, api.AbandonRequest{Reason: req.Reason})
			a.Receipts, err = append(a.Receipts, r), errors.Join(err, rerr)
		}
	}
	return a, err
}
