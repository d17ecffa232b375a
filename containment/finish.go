package containment

import (
	"context"
	"slices"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/fault"
)

// Finish closes the turn: its work is done. What it left running is kept and
// listed, or ended, by the turn's policy. A second call gets the first receipt.
func (m *Manager) Finish(ctx context.Context, id string, c Caller, req api.FinishRequest) (api.Receipt, error) {
	if req.Leftovers != "" && req.Leftovers != api.LeftoversKeep && req.Leftovers != api.LeftoversReap {
		return api.Receipt{}, api.Errorf(api.CodeBadRequest, "leftovers is %q, not keep or reap", req.Leftovers)
	}
	if err := checkAbandon(api.AbandonRequest{Reason: api.ReasonStop, GraceMS: req.GraceMS}); err != nil {
		return api.Receipt{}, err
	}
	t, ok := m.live(id)
	if !ok {
		return m.Receipt(ctx, id)
	}
	e := m.endRequest(t, c, api.ReasonFinished, req.GraceMS)
	if req.Leftovers != "" {
		e.Keep = req.Leftovers == api.LeftoversKeep
	}
	if err := m.startEndingIf(t, e, t.atEpoch(req.Epoch)); err != nil {
		return api.Receipt{}, err
	}
	return t.awaitReceipt(ctx)
}

// finish fences the turn and deals with what it left running, also where the
// turn is abandoned by a rule that keeps its processes.
func (m *Manager) finish(t *turn, e EndRequest, r *api.Receipt) {
	h := t.held()
	m.note(t)
	t.promoting.Wait()
	m.thawToEnd(t, h, r)
	t.awaitNoted()                                                       // a fence without a note is taken for an ending that spares nothing, see endIfFenced
	if r.FencedAt = m.fence(h, m.cfg.Bound, r.Turn); r.FencedAt == nil { // what runs on is to have one
		m.dropKeeper(h, r)
	}
	fault.Point("finish.fenced")
	t.inflight.Wait()
	members, err := h.Members()
	if err != nil {
		r.Notes = append(r.Notes, "list leftovers: "+err.Error())
	}
	left := leftovers(stillThere(h, members, e.Keep))
	if !e.Keep {
		t.reaps(r, members)
	}
	if !e.Keep || (len(left) == 0 && err == nil) {
		m.end(t, e, r) // kills what is left, or finds that nothing is
		return
	}
	r.Leftovers = left
	served := m.lookServed(h, r.Turn)
	m.awaitJobs(t, e, r)
	m.outsideAgain(h, r)
	r.Usage = h.Usage()
	served.enter(r, servedSoon)
	fault.Point("finish.counted")
	m.keepLeftovers(t, r)
}

// keepLeftovers announces a turn that is over and whose leftovers run on, held.
func (m *Manager) keepLeftovers(t *turn, r *api.Receipt) {
	t.mu.Lock()
	t.mergeHeld()
	t.fill(r, false)
	r.Complete = true // the finish is: what is left was meant to stay
	r.State = t.apply(evSettled).state
	t.view.Reason = r.Reason
	t.receipt = r
	t.clocks.left(t.clock())
	t.rearm()
	t.mu.Unlock()
	m.announce(t)
	fault.Point("leftovers.kept")
	m.wg.Go(func() { m.watchLeftovers(t) })
}

// watchLeftovers lets go of a finished turn once its leftovers have gone; what cannot
// be let go of now is tried again.
func (m *Manager) watchLeftovers(t *turn) {
	was, _ := t.receiptNow()
	for wait := time.Second; ; wait = min(2*wait, time.Minute) {
		h := t.held()
		for h != nil && !m.waitEmpty(h, time.Minute) {
			if m.stopped() {
				return
			}
			h = t.held() // nil: they were ended, and nobody will ever tell whether all of them
		}
		m.settleLeftovers(t, func(r *api.Receipt, _ Hold) bool {
			r.Complete = was.Complete // whatever has failed since
			return true
		})
		if t.held() == nil || t.keepsJobs() { // for a job, its end comes here again
			return
		}
		select {
		case <-m.stop:
			return
		case <-time.After(wait):
		}
	}
}

// endLeftovers ends what a turn that is over left running; why says why, in words.
func (m *Manager) endLeftovers(t *turn, why string) (api.Receipt, error) {
	m.settleLeftovers(t, func(r *api.Receipt, h Hold) bool {
		if r.LeftoversEndedAt != nil && emptyNow(h) { // what is still held for is jobs
			return true
		}
		r.Notes = append(r.Notes, "the leftovers were ended "+why)
		return m.kill(t, h, r)
	})
	r, _ := t.receiptNow()
	return r, nil
}

// settleLeftovers amends the receipt and lets go of the hold, once.
func (m *Manager) settleLeftovers(t *turn, end func(*api.Receipt, Hold) bool) {
	t.leftMu.Lock()
	defer t.leftMu.Unlock()
	h := t.held()
	if h == nil {
		return
	}
	r, _ := t.receiptNow()
	r.Notes = slices.Clone(r.Notes)
	empty := end(&r, h)
	if empty {
		m.outsideAgain(h, &r)
		r.Usage = h.Usage()
		empty = t.keepsJobs() || m.release(h, &r)
	}
	fault.Point("leftovers.settled")
	t.mu.Lock()
	t.mergeHeld()
	if empty {
		if len(r.Leftovers) > 0 && r.LeftoversEndedAt == nil {
			r.LeftoversEndedAt = stamp()
		}
	}
	if (empty || t.hopeless) && !t.liveJobs() {
		t.hold, t.over = nil, h
	}
	complete := r.Complete && empty
	t.fill(&r, empty)
	r.Complete = complete
	t.receipt = &r
	t.mu.Unlock()
	m.announce(t)
}
