package containment

import (
	"context"
	"slices"
	"syscall"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/fault"
)

// Bounds of an ending's small steps; the kill itself has Config.Bound.
const (
	fenceSoon = 250 * time.Millisecond // the usual answer takes 0.05 ms
	emptySoon = time.Millisecond
	tidyTime  = 2 * time.Second
	pauseTime = time.Second // before what cannot be looked at is looked at again

	releaseTime = 100 * time.Millisecond // before what cannot be let go of is tried again
)

// note writes down that the turn is ending, so that a later service goes on.
// The disk may hang; the ending does not wait for it.
func (m *Manager) note(t *turn) {
	go t.noting.Do(func() {
		defer close(t.noted)
		if err := m.save(t); err != nil {
			m.log.Warn("save the record of an ending turn", "turn", t.id, "error", err)
		}
		fault.Point("end.noted")
	})
}

// end is the kill path: fence, ask, kill, see, account. It needs nothing but the
// kernel; whatever else fails becomes a note on the receipt. The keeper goes and
// the empty cgroup is removed when the receipt is stored and announced: that
// takes longer than all the rest, and nobody has to wait for it.
func (m *Manager) end(t *turn, e EndRequest, r *api.Receipt) {
	h := t.held()
	t.promoting.Wait()
	m.thawToEnd(t, h, r)
	fence := make(chan *time.Time, 1)
	go func() {
		at := m.fence(h, fenceSoon, r.Turn)
		m.note(t)
		fence <- at
	}()
	if e.GraceMS > 0 {
		served := m.lookServed(h, r.Turn)
		r.FencedAt = <-fence
		ask(t, h, time.Duration(e.GraceMS)*time.Millisecond, r)
		served.enter(r, 0)
	}
	killed := m.kill(t, h, r) // without a grace, not even the fence is waited for
	if e.GraceMS == 0 {
		r.FencedAt = <-fence
	}
	if r.FencedAt == nil { // the last look at emptiness comes after the fence holds
		if r.FencedAt = m.fence(h, tidyTime, r.Turn); r.FencedAt == nil {
			m.dropKeeper(h, r)
		}
		killed = m.kill(t, h, r)
	}
	fault.Point("end.fenced")
	t.inflight.Wait() // the keeper has answered, or is gone
	if killed && !emptyNow(h) {
		killed = m.kill(t, h, r)
	}
	m.awaitJobs(t, e, r)
	usage := make(chan api.Usage, 1)
	go func() { usage <- h.Usage() }()
	m.outsideAgain(h, r) // an earlier service may have come that far
	r.Usage = <-usage
	fault.Point("end.counted")
	if killed && !t.keepsJobs() && !h.Alone() {
		saved := m.saveDraft(t, r)
		killed = m.release(h, r)
		awaitSaved(saved)
	}
	m.account(t, r, killed)
}

// fence closes the turn to launches in the keeper, too, and tells since when; nil
// means that it does not hold.
func (m *Manager) fence(h Hold, within time.Duration, turn string) *time.Time {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if err := h.Fence(ctx); err != nil {
		m.log.Warn("fence not acknowledged", "turn", turn, "error", err)
		return nil
	}
	return stamp()
}

func (m *Manager) dropKeeper(h Hold, r *api.Receipt) {
	ctx, cancel := context.WithTimeout(context.Background(), tidyTime)
	defer cancel()
	r.Notes = append(r.Notes, "the keeper did not acknowledge the fence and was killed")
	if err := h.EndKeeper(ctx); err != nil {
		r.Notes = append(r.Notes, "end the keeper: "+err.Error())
		return
	}
	r.FencedAt = stamp() // the dead launch nothing
}

// saveDraft writes down what was seen while the keeper, who saw it too, goes:
// a service that is killed before there is a receipt loses nothing of it.
func (m *Manager) saveDraft(t *turn, r *api.Receipt) (saved <-chan struct{}) {
	t.mu.Lock()
	draft := *r
	draft.Notes = slices.Clone(r.Notes)
	t.draft = &draft
	t.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := m.save(t); err != nil {
			m.log.Warn("save the draft of a receipt", "turn", t.id, "error", err)
		}
		fault.Point("draft.saved")
	}()
	return done
}

// awaitSaved waits for a disk, but not for one that hangs.
func awaitSaved(saved <-chan struct{}) {
	select {
	case <-saved:
	case <-time.After(tidyTime):
	}
}

// ask sends every process its stop signal and waits out the grace, or less
// when all have gone.
func ask(t *turn, h Hold, grace time.Duration, r *api.Receipt) {
	now := time.Now().UTC()
	r.TermAt = &now
	n, err := h.Ask(context.Background(), t.stopSignal)
	if err != nil {
		r.Notes = append(r.Notes, "ask to stop: "+err.Error())
	}
	r.Counts.Ended = max(r.Counts.Ended, n)
	fault.Point("end.termed")
	over, done := t.wait(grace)
	_ = h.WaitEmpty(over) // what the grace leaves, the kill sees
	if note := done(); note != "" {
		r.Notes = append(r.Notes, note)
	}
}

// emptyNow tells whether the turn is seen empty at once.
func emptyNow(h Hold) bool {
	ctx, cancel := context.WithTimeout(context.Background(), emptySoon)
	defer cancel()
	return h.WaitEmpty(ctx) == nil
}

// stopSignal is the stop signal of a launch.
func (t *turn) stopSignal(process string) syscall.Signal {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.byID[process]; p != nil {
		return p.stopSignal()
	}
	return syscall.SIGTERM
}

// kill ends everything and tells whether the turn was seen empty.
func (m *Manager) kill(t *turn, h Hold, r *api.Receipt) bool {
	k, err := h.Kill(context.Background(), m.cfg.Bound)
	if err != nil {
		r.Notes = append(r.Notes, "kill: "+err.Error())
	}
	at := k.KilledAt.UTC()
	if r.KilledAt == nil && !k.KilledAt.IsZero() {
		r.KilledAt = &at
	}
	r.Mechanism = mechanism(r.Mechanism, k.Mechanism)
	r.Rounds += k.Rounds
	r.Notes = append(r.Notes, k.Notes...)
	r.Counts.Ended = max(r.Counts.Ended, k.Seen)
	r.Survivors, r.Unconfirmed = k.Survivors, k.Unconfirmed
	r.Refused = refused(r.Refused, k.Refused)
	t.markEscaped(k.Escaped)
	t.markEvidence(k.Evidence)
	t.mu.Lock()
	t.hopeless = k.Hopeless
	t.mu.Unlock()
	empty := err == nil && !k.EmptyAt.IsZero() && len(k.Survivors) == 0
	if empty {
		at := k.EmptyAt.UTC()
		r.SeenEmptyAt = &at
	} else {
		r.SeenEmptyAt = nil // if it was, somebody has come since
	}
	return empty
}

// mechanism keeps the stronger of two: a later look at an empty cgroup must
// not hide that the first needed more than one write.
func mechanism(was, now string) string {
	if was == "" || was == "none" || (now != "" && now != "none" && len(now) > len(was)) {
		return now
	}
	return was
}

// outside asks the keeper what had left the turn's cgroup. One that is slow is waited
// for as long as for the end itself: with its answer come the statuses that it has not
// told yet. One that is dead is not waited for.
func (m *Manager) outside(h Hold, r *api.Receipt) {
	ctx, cancel := context.WithTimeout(context.Background(), m.cfg.Bound)
	defer cancel()
	out, err := h.Census(ctx)
	if err != nil {
		r.Notes = append(r.Notes, "nobody can say whether something had left the turn's cgroup: "+err.Error())
	}
	r.Outside = append(r.Outside, out...)
}

// outsideAgain asks at a later end, and keeps what was told before. The keeper
// tells of every exit before it answers, so each status is known afterwards.
func (m *Manager) outsideAgain(h Hold, r *api.Receipt) {
	before := r.Outside
	r.Outside = []api.Outside{}
	m.outside(h, r)
	for _, o := range before {
		same := func(n api.Outside) bool { return n.PID == o.PID && n.Cgroup == o.Cgroup }
		if !slices.ContainsFunc(r.Outside, same) {
			r.Outside = append(r.Outside, o)
		}
	}
}

// release lets the keeper go; false means that something in the turn's cgroup
// could not be ended. On a busy machine that is not for sure at once: it is tried again.
func (m *Manager) release(h Hold, r *api.Receipt) bool {
	for end := time.Now().Add(m.cfg.Bound); ; time.Sleep(releaseTime) {
		ctx, cancel := context.WithTimeout(context.Background(), tidyTime)
		err := h.Release(ctx)
		cancel()
		if err == nil {
			return true
		}
		n, aerr := h.Alive()
		if empty := aerr == nil && n == 0; empty || !time.Now().Before(end) {
			if note := "release: " + err.Error(); !slices.Contains(r.Notes, note) {
				r.Notes = append(r.Notes, note)
			}
			return empty
		}
	}
}

// account settles the receipt, stores it, then announces it.
func (m *Manager) account(t *turn, r *api.Receipt, empty bool) {
	t.mu.Lock()
	ev := evEmpty
	if !empty {
		ev = evBoundOut
	}
	if !empty && t.hopeless {
		ev = evLost
	}
	t.mergeHeld()
	t.fill(r, empty)
	st := t.apply(ev)
	r.State = st.state
	t.view.Reason, t.view.Survivors = r.Reason, slices.Clone(r.Survivors)
	if t.view.Kind == api.KindJob && (empty || ev == evLost) { // nobody holds it any more
		t.jobsEnded(r.Unconfirmed)
	}
	t.receipt = r
	if ev != evBoundOut && !t.liveJobs() {
		t.hold, t.over = nil, t.hold
	}
	t.mu.Unlock()
	fault.Point("end.accounted")
	m.announce(t)
	if st.effect == doWatch {
		m.wg.Go(func() { m.watchSurvivors(t) })
	}
}

// announce stores the receipt, then wakes who waits for it. Where no disk takes it,
// that is told on the receipt and in the log, and keeps the turn in memory.
func (m *Manager) announce(t *turn) {
	err := m.keep(t)
	fault.Point("receipt.stored")
	t.mu.Lock()
	if err != nil {
		note := *t.receipt
		note.Notes = append(slices.Clone(note.Notes), "the receipt could not be stored: "+err.Error())
		t.receipt = &note
	}
	select {
	case <-t.settled:
	default:
		close(t.settled)
	}
	r, over := t.receipt, t.view.State.Terminal() && t.hold == nil
	t.tellReceipt()
	t.touch()
	t.mu.Unlock()
	fault.Point("receipt.announced")
	m.log.Info("turn ended", "turn", t.id, "state", r.State, "reason", r.Reason, "complete", r.Complete,
		"ended", r.Counts.Ended, "survivors", r.Counts.Survivors, "stored", err == nil)
	if over {
		m.wg.Go(func() { m.putAway(t, err == nil) })
	}
}

// awaitReceipt waits for the first receipt.
func (t *turn) awaitReceipt(ctx context.Context) (api.Receipt, error) {
	select {
	case <-t.settled:
		r, _ := t.receiptNow()
		return r, nil
	case <-ctx.Done():
		t.awaitNoted()
		return api.Receipt{}, api.Errorf(api.CodeTimeout, "the ending of turn %s goes on", t.id).
			WithRemedy("ask for its receipt later: `pinfold receipt %s`", t.id)
	}
}

// awaitNoted waits until a service that is killed now would go on with the
// ending: whoever is told that it goes on may rely on that. A disk that hangs
// is not waited for.
func (t *turn) awaitNoted() {
	select {
	case <-t.noted:
	case <-t.settled:
	case <-time.After(tidyTime):
	}
}

// watchSurvivors waits for an unkillable turn's survivors to go, and kills
// again now and then in case something new came in.
func (m *Manager) watchSurvivors(t *turn) {
	h := t.held()
	for wait := time.Second; ; wait = min(2*wait, time.Minute) {
		if !m.waitEmpty(h, wait) {
			select {
			case <-m.stop:
				return
			default:
			}
		}
		r, _ := t.receiptNow()
		r.Notes = slices.Clone(r.Notes)
		if m.kill(t, h, &r) {
			m.outsideAgain(h, &r)
			if t.keepsJobs() || m.release(h, &r) {
				r.Notes = append(r.Notes, survivorsWent+time.Since(r.AskedAt).Round(time.Millisecond).String()+" after the ending was asked for")
				m.account(t, &r, true)
				return
			}
		}
		t.mu.Lock()
		t.view.Survivors = r.Survivors
		hopeless := t.hopeless
		t.mu.Unlock()
		if hopeless {
			m.account(t, &r, false)
			return
		}
	}
}

// refused adds to those that were not signalled the ones that are new.
func refused(was, now []api.Refused) []api.Refused {
	for _, n := range now {
		same := func(o api.Refused) bool { return o.PID == n.PID && o.Verdict == n.Verdict }
		if !slices.ContainsFunc(was, same) {
			was = append(was, n)
		}
	}
	return was
}

// waitEmpty waits at most d, and no longer than the Manager lives.
func (m *Manager) waitEmpty(h Hold, d time.Duration) bool {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	go func() {
		select {
		case <-m.stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	return waited(ctx, h.WaitEmpty(ctx))
}

// waited tells whether a wait has seen what it waited for. Where it could not look, it
// is not begun anew at once.
func waited(ctx context.Context, err error) bool {
	if err == nil {
		return true
	}
	select {
	case <-ctx.Done():
	case <-time.After(pauseTime):
	}
	return false
}
