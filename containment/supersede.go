package containment

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"pinfold.dev/api"
)

// ownedKey is an idempotency key of a uid, as its hash.
type ownedKey struct {
	uid uint32
	key string
}

func hashed(v any) string {
	b, _ := json.Marshal(v) // the types of package api all can be
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}

// beginOnce begins a turn, unless one with the same key is open, or being begun:
// that one answers all.
func (m *Manager) beginOnce(ctx context.Context, c Caller, req api.BeginRequest) (api.Turn, error) {
	k := ownedKey{c.UID, hashed(req.IdempotencyKey)}
	begun := &BeginKey{Key: k.key, Request: hashed(req)}
	leave, err := m.alone(ctx, k, req.IdempotencyKey)
	if err != nil {
		return api.Turn{}, err
	}
	defer leave()
	m.mu.Lock()
	t := m.openWith(k)
	m.mu.Unlock()
	if t != nil {
		return m.begunAgain(t, c, req, begun)
	}
	return m.beginNew(ctx, c, req, begun, "")
}

// alone waits until nobody else begins with a key, and keeps others waiting until
// leave is called.
func (m *Manager) alone(ctx context.Context, k ownedKey, key string) (leave func(), err error) {
	for {
		m.mu.Lock()
		wait := m.beginning[k]
		if wait == nil {
			m.beginning[k] = make(chan struct{})
		}
		m.mu.Unlock()
		if wait == nil {
			break
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, api.Errorf(api.CodeTimeout, "the first request with idempotency key %q is under way", key)
		}
	}
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		close(m.beginning[k])
		delete(m.beginning, k)
	}, nil
}

// openWith finds the open turn that was begun with a key; the Manager's lock is
// held.
func (m *Manager) openWith(k ownedKey) *turn {
	for _, t := range m.turns {
		if t.begun != nil && t.begun.Key == k.key && t.owner == k.uid && t.state() == api.StateOpen {
			return t
		}
	}
	return nil
}

// begunAgain answers a begin whose key is known.
func (m *Manager) begunAgain(t *turn, c Caller, req api.BeginRequest, asked *BeginKey) (api.Turn, error) {
	if t.begun.Request != asked.Request {
		return api.Turn{}, api.Errorf(api.CodeConflict, "idempotency key %q was used for another turn, %s, which is open", req.IdempotencyKey, t.id).
			WithRemedy("use a new key for each turn, and the very same request to repeat one")
	}
	if req.Supersede { // the first may have been cut short before that
		m.supersede(t, c)
	}
	v := t.show()
	v.Repeated = true
	return v, nil
}

// supersede ends the open turns of the same session and owner that were entered
// before t, and does not wait for that. Of two that supersede each other, the
// later one stays.
func (m *Manager) supersede(t *turn, c Caller) {
	var older []*turn
	m.mu.RLock()
	for _, o := range m.turns {
		if o.seq < t.seq && o.owner == t.owner && o.ofSession(t.view.Session) {
			older = append(older, o)
		}
	}
	m.mu.RUnlock()
	for _, o := range older {
		if err := m.startEnding(o, m.endRequest(o, c, api.ReasonSuperseded, nil)); err != nil {
			m.log.Warn("end a superseded turn", "turn", o.id, "by", t.id, "error", err)
		}
	}
}

// ofSession tells whether this is an open turn, and no job's hold, of a session.
func (t *turn) ofSession(session string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return session != "" && t.view.Session == session && t.view.State == api.StateOpen && t.view.Kind == ""
}

// add enters a turn; the Manager's lock is held.
func (m *Manager) add(t *turn) {
	if t.seq == 0 {
		m.seq++
		t.seq = m.seq
	}
	m.turns[t.id] = t
}
