package containment

import (
	"context"

	"pinfold.dev/api"
)

// startJobOnce starts a job, unless one of the same uid and key was started, also
// one that has ended since, as far as the history goes: that one answers.
func (m *Manager) startJobOnce(ctx context.Context, c Caller, req api.JobRequest, start func(*BeginKey) (api.Job, error)) (api.Job, error) {
	k := ownedKey{c.UID, hashed([]string{"job", req.IdempotencyKey})}
	begun := &BeginKey{Key: k.key, Request: hashed(req)}
	leave, err := m.alone(ctx, k, req.IdempotencyKey)
	if err != nil {
		return api.Job{}, err
	}
	defer leave()
	turn, was, err := m.startedWith(k)
	switch {
	case err != nil:
		return api.Job{}, err
	case was == nil:
		return start(begun)
	case was.Request != begun.Request:
		return api.Job{}, api.Errorf(api.CodeConflict, "idempotency key %q was used for another job, %s", req.IdempotencyKey, jobID(turn, "p1")).
			WithRemedy("use a new key for each job, and the very same request to repeat one")
	}
	v, err := m.Job(ctx, jobID(turn, "p1"))
	v.Repeated = true
	return v, err
}

// startedWith finds the job that was started with a key, unless it could not be
// launched; nil: there is none.
func (m *Manager) startedWith(k ownedKey) (turn string, was *BeginKey, err error) {
	for _, t := range m.all() {
		if t.begun == nil || t.begun.Key != k.key || t.owner != k.uid {
			continue
		}
		t.mu.Lock()
		launched := len(t.procs) > 0
		t.mu.Unlock()
		if launched {
			return t.id, t.begun, nil
		}
	}
	old, err := m.cfg.Records.EndedTurns(&k.uid, historyShown)
	if err != nil {
		return "", nil, api.Errorf(api.CodeInternal, "read history: %v", err)
	}
	for _, r := range old {
		if r.Begin != nil && r.Begin.Key == k.key && len(r.Turn.Processes) > 0 {
			return r.Turn.ID, r.Begin, nil
		}
	}
	return "", nil, nil
}
