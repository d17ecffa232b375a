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
// compare what they are.
func requestHash(c Caller, req api.LaunchRequest, fds int) string {
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
	}
	close(k.done)
	return v, err
}

// again answers a launch whose key is known.
func (t *turn) again(ctx context.Context, k *keyed, mt meta) (api.Process, error) {
	if k.hash != mt.Hash {
		return api.Process{}, api.Errorf(api.CodeConflict, "idempotency key %q was used in turn %s for another launch", mt.Key, t.id).
			WithRemedy("use a new key for each launch, and the very same request to repeat one")
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
