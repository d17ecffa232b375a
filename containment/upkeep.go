package containment

import (
	"context"
	"errors"
	"slices"
	"strings"

	"pinfold.dev/api"
)

// Upkeep finds what is left over on the host: cgroups and directories that are
// ours and no turn's. It is implemented by package internal/hold.
type Upkeep interface {
	// LeftOver lists it, and removes what can go when it is told to. It signals
	// nobody. standing tells of a turn whether there is a record, and which.
	LeftOver(ctx context.Context, standing func(turn string) api.Standing, remove bool) []api.LeftOver
}

// standing tells how a turn's record stands; empty: there is none.
func (m *Manager) standing(id string) api.Standing {
	m.mu.RLock()
	defer m.mu.RUnlock()
	switch {
	case m.turns[id] != nil, m.unborn[id], m.partial, m.moved[id]:
		return api.StandingLive
	case errors.Is(m.unread[id], ErrNewer):
		return api.StandingNewer
	case m.unread[id] != nil:
		return api.StandingUnread
	}
	return ""
}

// GC removes what is left over and ours, or only tells of it.
func (m *Manager) GC(ctx context.Context, req api.GCRequest) (api.GCAnswer, error) {
	m.tend()
	a := api.GCAnswer{LeftOver: m.leftOver(ctx, !req.DryRun), Grade: m.Grade()}
	for _, l := range a.LeftOver {
		if !l.Removed {
			continue
		}
		m.log.Info("removed what was left over", "kind", l.Kind, "path", l.Path, "why", l.Why)
		if l.Kind == api.LeftOverRecord {
			m.mu.Lock()
			delete(m.unread, l.Turn)
			m.mu.Unlock()
		}
	}
	return a, nil
}

func (m *Manager) tend() {
	if m.cfg.Tend != nil {
		m.cfg.Tend()
	}
}

func (m *Manager) leftOver(ctx context.Context, remove bool) []api.LeftOver {
	out := []api.LeftOver{}
	if m.cfg.Upkeep != nil {
		out = append(out, m.cfg.Upkeep.LeftOver(ctx, m.standing, remove)...)
	}
	slices.SortFunc(out, func(a, b api.LeftOver) int { return strings.Compare(a.Path, b.Path) })
	return out
}

// RecordsOf tells what is on disk; owner nil means everybody's, with what is left
// over.
func (m *Manager) RecordsOf(ctx context.Context, owner *uint32) (api.RecordList, error) {
	if owner == nil {
		m.tend()
	}
	out := api.RecordList{Records: []api.TurnRecord{}, LeftOver: []api.LeftOver{}, Grade: m.Grade()}
	m.mu.RLock()
	all := make([]*turn, 0, len(m.turns))
	for _, t := range m.turns {
		if owner == nil || *owner == t.owner {
			all = append(all, t)
		}
	}
	slices.SortFunc(all, func(a, b *turn) int { return int(a.seq) - int(b.seq) })
	if owner == nil {
		for id, err := range m.unread {
			out.Records = append(out.Records, unreadRecord(id, err))
		}
	}
	m.mu.RUnlock()
	slices.SortFunc(out.Records, func(a, b api.TurnRecord) int { return strings.Compare(a.Turn, b.Turn) })
	for _, t := range all {
		out.Records = append(out.Records, t.recordInfo())
	}
	if owner != nil {
		return out, nil
	}
	out.LeftOver = m.leftOver(ctx, false)
	if m.cfg.History != nil {
		h := m.cfg.History()
		m.unshelved.mu.Lock()
		h.Waiting = len(m.unshelved.turns)
		m.unshelved.mu.Unlock()
		out.History = &h
	}
	return out, nil
}

func unreadRecord(id string, err error) api.TurnRecord {
	r := api.TurnRecord{Turn: id, Standing: api.StandingUnread, Why: err.Error(),
		Remedy: "nothing that it may name is touched; mend it and restart the service, or, to end its turn, move the turn's record.json away and restart: what bears our mark and has no record is ended then"}
	if errors.Is(err, ErrNewer) {
		r.Standing, r.Remedy = api.StandingNewer, "start the newer version again, or end its turns with that before you go back"
	}
	return r
}

func (t *turn) recordInfo() api.TurnRecord {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := api.TurnRecord{Turn: t.id, Standing: api.StandingLive, Owner: &t.owner, State: t.view.State, Job: t.ofJob(),
		Found: string(t.found.Found), Verdict: t.found.Verdict, Deed: string(t.found.Do), Why: t.found.Says}
	if t.seen != nil {
		r.Why = t.seen.Error()
	}
	switch {
	case t.isShown():
		r.Standing = api.StandingUnverified
		r.Remedy = "see why, and mend that: the service looks again within half a minute; nothing of it is signalled meanwhile"
	case t.view.State.Terminal() && t.hold == nil:
		r.Standing = api.StandingOver
	}
	return r
}
