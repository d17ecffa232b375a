package containment

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"pinfold.dev/api"
)

// relook has turns looked at again that could not be verified when the service
// started: what stood in the way, such as a want of descriptors, may pass. Its
// timer runs only while there is such a turn.
type relook struct {
	mu    sync.Mutex
	timer *time.Timer
	wait  time.Duration
	stop  context.CancelFunc
	ctx   context.Context // of holds that are found; ends with the service
}

// How often.
const (
	relookFirst = time.Second
	relookMost  = 30 * time.Second
)

// relookSoon has them looked at; sooner when something has changed.
func (m *Manager) relookSoon(changed bool) {
	r := &m.relook
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ctx == nil {
		r.ctx, r.stop = context.WithCancel(context.Background())
	}
	if changed {
		r.wait = 0
	}
	if r.timer != nil && !changed || m.stopped() {
		return
	}
	if r.timer != nil {
		r.timer.Stop()
	}
	r.wait = min(max(2*r.wait, relookFirst), relookMost)
	r.timer = time.AfterFunc(r.wait, m.lookAgain)
}

// close stops the timer, and what waits for keepers.
func (r *relook) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.timer != nil {
		r.timer.Stop()
	}
	if r.stop != nil {
		r.stop()
	}
}

// lookAgain looks at each once more.
func (m *Manager) lookAgain() {
	m.relook.mu.Lock()
	m.relook.timer = nil
	ctx := m.relook.ctx
	m.relook.mu.Unlock()
	left, found := false, false
	for _, t := range m.shownTurns() {
		if m.stopped() {
			return
		}
		if m.lookAgainAt(ctx, t) {
			found = true
		} else {
			left = true
		}
	}
	if left {
		m.relookSoon(found)
	}
}

// shownTurns are those that were not verified, oldest first.
func (m *Manager) shownTurns() (out []*turn) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, t := range m.turns {
		t.mu.Lock()
		if t.isShown() {
			out = append(out, t)
		}
		t.mu.Unlock()
	}
	slices.SortFunc(out, func(a, b *turn) int { return int(a.seq) - int(b.seq) })
	return out
}

// isShown tells that it was not verified, in whatever state it is; the lock is held.
func (t *turn) isShown() bool {
	return t.hold == nil && t.over == nil && t.found.Do == DeedShow
}

// lookAgainAt looks at one, and does what the table says; false: nothing has
// changed.
func (m *Manager) lookAgainAt(ctx context.Context, t *turn) bool {
	if m.cfg.Spare != nil {
		free, ok := m.cfg.Spare()
		defer free()
		if !ok {
			return false // what is there is needed otherwise
		}
	}
	t.mu.Lock()
	r := t.record(m.cfg.Boot)
	t.mu.Unlock()
	h, v, err := m.cfg.Host.Recover(ctx, t.id, r.facts(), m.hooks(t))
	rule := ruleOf(r, v, err)
	if rule.Do == DeedShow {
		return false
	}
	m.log.Info("a turn that could not be verified was looked at again", "turn", t.id, "verdict", v, "error", err)
	t.mu.Lock()
	t.view.Degraded = slices.DeleteFunc(t.view.Degraded, func(s string) bool { return strings.HasPrefix(s, unverified) })
	t.touch()
	t.mu.Unlock()
	if cerr := m.carry(t, r, h, v, err); cerr != nil {
		m.log.Warn("carry on with a turn that was verified late", "turn", t.id, "error", cerr)
	}
	if rule.Do == DeedDiscard {
		m.drop(t.id)
	}
	return true
}

// unverified begins what is told of such a turn.
const unverified = "unverifiable after a restart"

// ruleOf is the cell of the table for a record.
func ruleOf(r Record, v api.Verdict, seen error) Rule {
	rule := RuleFor(r.found(), v)
	if rule.Do == DeedDiscard && seen != nil && v != OtherBoot {
		rule = RuleFor(FoundUnbegun, api.VerdictUnverifiable)
	}
	return rule
}
