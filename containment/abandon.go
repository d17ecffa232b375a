package containment

import (
	"context"
	"fmt"
	"slices"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/fault"
)

// Abandon ends the turn and waits for the receipt. When ctx ends first, the
// ending goes on regardless. A second call gets the first receipt; while the turn is
// being ended, one that names a shorter grace cuts that short.
func (m *Manager) Abandon(ctx context.Context, id string, c Caller, req api.AbandonRequest) (api.Receipt, error) {
	if req.Reason == "" {
		req.Reason = api.ReasonStop
	}
	if err := checkAbandon(req); err != nil {
		return api.Receipt{}, err
	}
	t, ok := m.live(id)
	if !ok {
		r, err := m.Receipt(ctx, id)
		return m.andJobs(ctx, r, err, c, req)
	}
	if err := t.checkEpoch(req.Epoch); err != nil {
		return api.Receipt{}, err
	}
	if req.Leftovers && t.leaves() {
		r, err := m.endLeftovers(t, fmt.Sprintf("on request of uid %d", c.UID))
		return m.andJobs(ctx, r, err, c, req)
	}
	e := m.endRequest(t, c, req.Reason, req.GraceMS)
	if req.Jobs {
		e.Jobs = api.FateEnd
	}
	over := t.state().Terminal() // then jobs may have been made of what it has left
	if err := m.startEndingIf(t, e, t.atEpoch(req.Epoch)); err != nil {
		return api.Receipt{}, err
	}
	if req.GraceMS != nil {
		m.hurry(t, e)
	}
	r, err := t.awaitReceipt(ctx)
	if !over && t.endsJobs() {
		return r, err // and has waited for them, as long as it may
	}
	return m.andJobs(ctx, r, err, c, req)
}

// endsJobs tells whether the ending that stands is one that ends jobs, too.
func (t *turn) endsJobs() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ending != nil && t.ending.Jobs == api.FateEnd
}

// andJobs ends the jobs, where that was asked for, of a turn that was ended: by
// somebody else, or before, who kept them. The answer tells how they are; the
// receipt that is kept, how they were.
func (m *Manager) andJobs(ctx context.Context, r api.Receipt, err error, c Caller, req api.AbandonRequest) (api.Receipt, error) {
	if err != nil || !req.Jobs || r.State == api.StateLost {
		return r, err
	}
	if req.Epoch != 0 && req.Epoch != r.Epoch {
		return api.Receipt{}, staleEpoch(r.Turn, req.Epoch, r.Epoch)
	}
	jobs, refused := m.stopJobs(ctx, c, JobFilter{Turn: r.Turn}, api.StopJobRequest{GraceMS: req.GraceMS, Reason: req.Reason}, false)
	r.Jobs = slices.Clone(r.Jobs)
	for _, j := range jobs {
		if i := slices.IndexFunc(r.Jobs, func(x api.Job) bool { return x.ID == j.ID }); i >= 0 {
			r.Jobs[i] = j
		} else {
			r.Jobs = append(r.Jobs, j)
		}
	}
	if len(refused) > 0 {
		return r, refused[0].Error
	}
	return r, nil
}

func checkAbandon(req api.AbandonRequest) error {
	if req.GraceMS != nil && (*req.GraceMS < 0 || *req.GraceMS > maxGraceMS) {
		return api.Errorf(api.CodeBadRequest, "grace_ms is %d, not between 0 and %d", *req.GraceMS, maxGraceMS)
	}
	switch req.Reason {
	case api.ReasonStop, api.ReasonSuperseded, api.ReasonIdle, api.ReasonWall, api.ReasonClientGone,
		api.ReasonLeaseExpired, api.ReasonLimit, api.ReasonOperator:
		return nil
	}
	return api.Errorf(api.CodeBadRequest, "reason %q is none to abandon a turn for", req.Reason)
}

// leaves tells whether the turn is over and what it left running is still held.
func (t *turn) leaves() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.view.State.Terminal() && t.hold != nil
}

func (t *turn) checkEpoch(epoch int64) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.atEpoch(epoch)()
}

// atEpoch is a check that an epoch, when it is not 0, is the turn's; it is made
// with the lock held.
func (t *turn) atEpoch(epoch int64) func() error {
	return func() error {
		if epoch != 0 && epoch != t.view.Epoch {
			return staleEpoch(t.id, epoch, t.view.Epoch)
		}
		return nil
	}
}

// endRequest settles who ends the turn, why, with what grace and by what rule.
func (m *Manager) endRequest(t *turn, c Caller, why api.Reason, graceMS *int64) EndRequest {
	e := EndRequest{Reason: why, AskedAt: time.Now().UTC(), GraceMS: m.cfg.Grace.Milliseconds(),
		Actor: api.Actor{UID: c.UID, PID: c.PID, Ino: c.Ino, Cgroup: c.Cgroup}}
	t.mu.Lock()
	defer t.mu.Unlock()
	rule := t.rule(why)
	e.Keep, e.Jobs = rule.Processes == api.FateKeep, rule.Jobs
	if t.graceMS != nil {
		e.GraceMS = *t.graceMS
	}
	if graceMS != nil {
		e.GraceMS = *graceMS
	}
	return e
}

// ownEnd is an ending that the service itself decides.
func (m *Manager) ownEnd(t *turn, why api.Reason) EndRequest {
	e := m.endRequest(t, Caller{UID: m.cfg.UID}, why, nil)
	e.Actor.Name = "pinfold"
	return e
}

// startEnding changes the state, once, and carries the ending out in the
// background. For a turn that is ending already it does nothing.
func (m *Manager) startEnding(t *turn, e EndRequest) error {
	return m.startEndingIf(t, e, func() error { return nil })
}

// startEndingIf does that if may, asked at the very moment, has no objection; it
// is called with the lock held.
func (m *Manager) startEndingIf(t *turn, e EndRequest, may func() error) error {
	t.mu.Lock()
	if err := may(); err != nil {
		t.mu.Unlock()
		return err
	}
	if t.hold == nil && !t.view.State.Terminal() {
		defer t.mu.Unlock()
		return api.Errorf(api.CodeUnavailable, "turn %s cannot be verified, so nothing in it is signalled", t.id).
			WithRemedy("see `pinfold show %s`", t.id)
	}
	st := t.apply(asked(e))
	if st.joined {
		t.mu.Unlock()
		return nil
	}
	t.ending = &e
	t.tellEnding()
	t.stopClocks()
	t.mu.Unlock()
	fault.Point("end.asked")
	m.log.Info("turn ending", "turn", t.id, "reason", e.Reason, "uid", e.Actor.UID, "grace_ms", e.GraceMS)
	m.wg.Go(func() { m.carryOut(t, st.effect, e) })
	return nil
}

func (m *Manager) carryOut(t *turn, eff effect, e EndRequest) {
	r := t.newReceipt(e)
	if t.draft != nil { // an earlier service had come that far
		r = *t.draft
	}
	if e.Jobs == api.FateEnd {
		m.endJobs(t, e, &r)
	}
	if eff == doFinish || eff == doLeave {
		m.finish(t, e, &r)
	} else {
		m.end(t, e, &r)
	}
}
