package containment

import (
	"errors"
	"fmt"
	"slices"

	"pinfold.dev/api"
)

// Mend writes the records again of turns that have none any more: somebody has
// removed them under the running service, which alone knows what was in them. It
// returns whose, oldest first. Turns that are on their way to the history, or to
// nowhere, are none of them.
func (m *Manager) Mend() (mended []string, err error) {
	if m.cfg.Recorded == nil {
		return nil, nil
	}
	m.mu.RLock()
	all := make([]*turn, 0, len(m.turns))
	for _, t := range m.turns {
		all = append(all, t)
	}
	m.mu.RUnlock()
	slices.SortFunc(all, func(a, b *turn) int { return int(a.seq) - int(b.seq) })
	for _, t := range all {
		done, merr := m.mend(t)
		if merr != nil {
			err = errors.Join(err, fmt.Errorf("turn %s: %w", t.id, merr))
		} else if done {
			m.log.Warn("the record of a live turn was removed; it is written again", "turn", t.id)
			mended = append(mended, t.id)
		}
	}
	return mended, err
}

// lostDir is what it means for a turn that its record is gone, alone or with all
// that was in its runtime directory.
const lostDir = "its record was removed under the running service, and is written again; where its keeper's socket went with it, " +
	"a later service cannot speak to the keeper: what it has not heard by then of how processes ended may be lost"

func (m *Manager) mend(t *turn) (bool, error) {
	t.saveMu.Lock()
	defer t.saveMu.Unlock()
	if t.archived || m.cfg.Recorded(t.id) {
		return false, nil
	}
	t.mu.Lock()
	if !t.view.State.Terminal() && !slices.Contains(t.view.Degraded, lostDir) {
		t.view.Degraded = append(t.view.Degraded, lostDir)
		t.tell(api.EventDegraded, "", func(e *api.Event) { e.Message = lostDir })
		t.touch()
	}
	r := t.record(m.cfg.Boot)
	t.mu.Unlock()
	return true, m.cfg.Records.Save(r)
}

// Live tells whether there is a turn that has, or ought to have, a record.
func (m *Manager) Live(id string) bool {
	t, ok := m.live(id)
	if !ok {
		return false
	}
	t.saveMu.Lock()
	defer t.saveMu.Unlock()
	return !t.archived
}

// Claims tells whether what bears a turn's name may still be that turn's. Of one
// that was closed as lost, or whose cgroup was found gone, nothing is: what bears
// its name and our mark all the same is a stray.
func (m *Manager) Claims(id string) bool {
	t, ok := m.live(id)
	if !ok {
		return m.Knows(id)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.hold != nil || t.over != nil || t.found.Do != DeedLose && t.found.Do != DeedClose
}
