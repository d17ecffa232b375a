package containment

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"

	"pinfold.dev/api"
)

// keyed is a launch with an idempotency key: under way, done, or of unknown
// outcome.
type keyed struct {
	hash    string
	done    chan struct{} // closed when it is decided
	process string        // set when it runs, or ran
	err     error         // of the launch that was waited for
}

// requestHash tells requests apart. Descriptors count by number: nobody can
// compare what they are. The epoch does not count: it says who asks, and whoever
// takes a turn over asks for its launches again.
func requestHash(c Caller, req api.LaunchRequest, fds int) string {
	req.Epoch = 0
	b, _ := json.Marshal(struct { // the types of package api all can be
		UID uint32
		FDs int
		Req api.LaunchRequest
	}{c.UID, fds, req})
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}

// once launches, unless a launch with the key was made or is being made: that
// one answers all. A launch that was refused uses no key up; one that nobody
// knows the outcome of does.
func (t *turn) once(ctx context.Context, mt meta, launch func() (api.Process, error)) (api.Process, error) {
	t.mu.Lock()
	k := t.keys[mt.Key]
	if k != nil {
		t.mu.Unlock()
		return t.again(ctx, k, mt)
	}
	k = &keyed{hash: mt.Hash, done: make(chan struct{})}
	t.keys[mt.Key] = k
	t.mu.Unlock()
	v, err := launch()
	t.mu.Lock()
	defer t.mu.Unlock()
	k.process, k.err = v.ID, err
	if err != nil && !errors.Is(err, api.ErrTimeout) && t.keys[mt.Key] == k {
		delete(t.keys, mt.Key)
		for _, p := range t.procs { // its keeper died, and the journal told of it
			if p.meta.Key == mt.Key {
				t.enterKey(p)
			}
		}
	}
	close(k.done)
	return v, err
}

// again answers a launch whose key is known.
func (t *turn) again(ctx context.Context, k *keyed, mt meta) (api.Process, error) {
	if k.hash != mt.Hash {
		return api.Process{}, keyConflict(t.id, mt.Key)
	}
	select {
	case <-k.done:
	case <-ctx.Done():
		return api.Process{}, api.Errorf(api.CodeTimeout, "the first launch with idempotency key %q is under way", mt.Key)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if known := t.keys[mt.Key]; known != nil {
		k = known // its process may have come to be known since
	}
	if p := t.byID[k.process]; p != nil {
		v := p.view
		v.Repeated = true
		return v, nil
	}
	return api.Process{}, k.err
}

func keyConflict(turn, key string) *api.Error {
	return api.Errorf(api.CodeConflict, "idempotency key %q was used in turn %s for another launch", key, turn).
		WithRemedy("use a new key for each launch, and the very same request to repeat one")
}

// answered enters a launch that the keeper has answered, unless it is known by
// now: the keeper's journal told of it when it died, or it is an earlier one with
// the same key, which a service had sent just before it ended.
func (t *turn) answered(k Recovered, mt meta, earlier bool) (api.Process, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.byID[k.Started.Process]
	if p == nil {
		p = t.newProcess(k, mt)
		t.addProcess(p)
		t.passNumber(k.Started.Process)
	}
	if p.meta.Hash != mt.Hash {
		return api.Process{}, keyConflict(t.id, mt.Key)
	}
	v := p.view
	v.Repeated = earlier
	return v, nil
}

// enterKey remembers the key of a launch that runs, or ran; the lock is held.
func (t *turn) enterKey(p *process) {
	if p.meta.Key == "" {
		return
	}
	if k := t.keys[p.meta.Key]; k != nil && k.process == "" {
		select {
		case <-k.done: // of unknown outcome, until now
		default:
			return // under way: whoever launches it enters it
		}
	}
	done := make(chan struct{})
	close(done)
	t.keys[p.meta.Key] = &keyed{hash: p.meta.Hash, done: done, process: p.view.ID}
}
