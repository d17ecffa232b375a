package containment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/fault"
)

// Recover finds the turns of an earlier service again. A record that cannot
// be read, or a turn that cannot be proved, is an error in the result and
// hides no other; nothing is signalled unless its hold is proved ours.
func (m *Manager) Recover(ctx context.Context) error {
	records, errs := m.cfg.Records.Load()
	fault.Point("recover.loaded")
	m.unreadable(records, errs)
	slices.SortStableFunc(records, func(a, b Record) int { return a.Turn.CreatedAt.Compare(b.Turn.CreatedAt) })
	errs = append(errs, m.recoverAll(ctx, records)...)
	fault.Point("recover.done")
	m.sweepIn(0)
	return errors.Join(errs...)
}

// unreadable notes the turns whose records cannot be used. One in a directory of
// another name, which was moved there, is two turns': that whose name it has, and,
// if that has no other record, the one that it is of.
func (m *Manager) unreadable(records []Record, errs []error) {
	for _, err := range errs {
		if bad, ok := errors.AsType[*BadRecord](err); ok {
			m.unread[bad.Turn] = bad.Err
		} else {
			m.partial = true
		}
	}
	for _, err := range errs {
		bad, ok := errors.AsType[*BadRecord](err)
		if !ok || bad.Of == "" || m.unread[bad.Of] != nil || slices.ContainsFunc(records, func(r Record) bool { return r.Turn.ID == bad.Of }) {
			continue
		}
		m.unread[bad.Of], m.moved[bad.Turn] = bad.Err, true
	}
}

// recoverers are how many turns are found again at a time: much of it is waiting
// for keepers.
const recoverers = 8

// recoverAll finds turns again. They are entered in whatever order they are
// found, and known to be as old as their place in the list says.
func (m *Manager) recoverAll(ctx context.Context, records []Record) []error {
	m.seq = uint64(len(records))
	errs := make([]error, len(records))
	todo := make(chan int)
	var wg sync.WaitGroup
	for range min(recoverers, len(records)) {
		wg.Go(func() {
			for i := range todo {
				if err := m.recoverOne(ctx, records[i], uint64(i+1)); err != nil {
					errs[i] = fmt.Errorf("turn %s: %w", records[i].Turn.ID, err)
				}
			}
		})
	}
	for i := range records {
		todo <- i
	}
	close(todo)
	wg.Wait()
	return errs
}

func (m *Manager) recoverOne(ctx context.Context, r Record, seq uint64) error {
	if r.Schema > RecordSchema {
		err := fmt.Errorf("its record has schema %d, this service knows %d: left alone: %w", r.Schema, RecordSchema, ErrNewer)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.unread[r.Turn.ID] = err
		return err
	}
	r = m.truest(r)
	t := m.reread(r)
	t.seq = seq
	if r.Boot != m.cfg.Boot {
		return m.carry(t, r, m.cfg.Host.Recall(t.id, r.Facts), OtherBoot, fmt.Errorf("the record is of boot %s", r.Boot))
	}
	h, verdict, err := m.cfg.Host.Recover(ctx, t.id, r.facts(), m.hooks(t))
	m.log.Info("turn found again", "turn", t.id, "state", r.Turn.State, "verdict", verdict, "error", err)
	fault.Point("recover.held")
	return m.carry(t, r, h, verdict, err)
}

// truest is the record of a turn that stands: the history has the end of one for
// whose live record there was no room any more.
func (m *Manager) truest(live Record) Record {
	r, ok, err := m.cfg.Records.Ended(live.Turn.ID)
	switch {
	case err != nil:
		m.log.Warn("look whether the history has the end of a turn", "turn", live.Turn.ID, "error", err)
	case ok && r.Supersedes(&live):
		m.log.Info("a turn is over, though its live record has it otherwise: the history has its end", "turn", r.Turn.ID, "was", live.Turn.State)
		fault.Point("recover.truer")
		return r
	}
	return live
}

// reread is the turn as its record has it.
func (m *Manager) reread(r Record) *turn {
	t := m.newTurn(r.Turn)
	t.facts, t.graceMS, t.ending, t.draft, t.receipt = r.Facts, r.GraceMS, r.Ending, r.Draft, r.Receipt
	t.clocks, t.clientID, t.begun = r.Clocks, r.Client, r.Begin
	for _, j := range r.Jobs {
		t.jobs = append(t.jobs, newJob(j))
	}
	if r.found() != FoundUnbegun { // else nobody was ever told of it
		t.tellBegun()
	}
	if r.Boot == m.cfg.Boot {
		t.mendClocks()
	}
	for _, v := range r.Turn.Processes {
		t.addProcess(&process{view: v, meta: decodeMeta(r.Meta[v.ID])})
	}
	for _, j := range t.jobs {
		if j.EndedAt != nil {
			t.tellJobEnded(j)
		}
	}
	t.tellEnding()
	t.tellReceipt()
	if r.Receipt != nil {
		close(t.settled)
	}
	return t
}

// carry does what the table says. The hold is usable where the verdict is owned;
// where it is gone, or of another boot, it tells of processes, if it is there.
func (m *Manager) carry(t *turn, r Record, h Hold, v api.Verdict, seen error) error {
	rule := ruleOf(r, v, seen)
	t.mu.Lock()
	t.found, t.seen = rule, seen
	t.mu.Unlock()
	switch rule.Do {
	case DeedAdopt, DeedResume:
		m.adopt(t, h)
		m.rejoin(t, h)
		m.readopt(t, h)
		m.enter(t)
		fault.Point("recover.adopted")
		m.resume(t, r.Turn.State)
		fault.Point("recover.resumed")
		return nil
	case DeedDiscard:
		fault.Point("recover.unbegun")
		return m.cfg.Records.Discard(t.id)
	case DeedClose, DeedLose:
		m.enter(t)
		if h == nil { // its journal is in a directory of ours, whatever is at its cgroup's place
			h = m.cfg.Host.Recall(t.id, r.Facts)
		}
		t.remember(h)
		t.hopeless = !r.Facts.GoneIsProof() && !r.seenEmpty()
		if rule.Do == DeedLose || t.hopeless || !m.closeEnded(t) {
			m.lose(t, lostBecause(r.Facts, v, seen))
		}
		return nil
	}
	if h == nil {
		t.remember(m.cfg.Host.Recall(t.id, r.Facts)) // what was written before is known all the same
	}
	m.show(t, seen)
	return seen
}

// seenEmpty tells that the turn was seen to be over, before.
func (r *Record) seenEmpty() bool {
	return r.Receipt != nil && r.Receipt.SeenEmptyAt != nil || r.Draft != nil && r.Draft.SeenEmptyAt != nil
}

// lostBecause says why a turn is lost.
func lostBecause(f Facts, v api.Verdict, seen error) string {
	switch {
	case f.Bare && v == api.VerdictGone && f.GoneIsProof():
		return fmt.Sprintf("init of its PID namespace is gone, and everything in it has ended: %v", seen)
	case f.Bare && v == api.VerdictGone:
		return fmt.Sprintf("what had lost its parents cannot be found any more: %v", seen)
	case v == OtherBoot:
		return fmt.Sprintf("the host was rebooted: %v", seen)
	case v == api.VerdictGone:
		return "its cgroup is gone: everything in it has ended"
	case seen != nil:
		return fmt.Sprintf("what is at its place now is not it: %v", seen)
	}
	return "what is at its place now is not it"
}

// show keeps a turn of which nobody knows whether it is there.
func (m *Manager) show(t *turn, seen error) {
	why := fmt.Sprintf(unverified+", nothing is signalled: %v", seen)
	t.mu.Lock()
	t.view.Degraded = append(t.view.Degraded, why)
	t.tell(api.EventDegraded, "", func(e *api.Event) { e.Message = why })
	for _, j := range t.jobs {
		if j.EndedAt == nil && RuleFor(FoundJob, api.VerdictUnverifiable).Do == DeedShow {
			j.Notes = append(j.Notes, why)
			t.tell(api.EventJob, j.Process+"/unverifiable", func(e *api.Event) {
				e.Job, e.Process, e.Message = jobID(t.id, j.Process), j.Process, "unverifiable"
			})
		}
	}
	t.mu.Unlock()
	m.enter(t)
	m.relookSoon(false)
}

// remember enters what a hold that is gone knows of its processes.
func (t *turn) remember(h Hold) {
	if h == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.hold = h
	t.mergeHeld()
	t.hold = nil
}

// closeEnded closes a turn whose cgroup is gone because it was being ended, or
// had ended: a cgroup can be removed only when it is empty, so that is proof.
// It tells whether this was such a turn.
func (m *Manager) closeEnded(t *turn) bool {
	t.mu.Lock()
	s, e, r := t.view.State, t.ending, cmp.Or(t.receipt, t.draft)
	t.mu.Unlock()
	var c api.Receipt
	switch {
	case r != nil:
		c = *r
	case s.Terminal():
		return false
	case e == nil:
		c = t.newReceipt(m.ownEnd(t, reasonIn(s)))
	default:
		c = t.newReceipt(*e)
	}
	t.mu.Lock()
	t.jobsEnded("its cgroup was found removed when the service came back, which only an empty one can be")
	t.mu.Unlock()
	found := "the turn's cgroup was found removed, which only an empty one can be"
	if t.facts.Bare {
		found = "the turn's keeper was found gone, and with it all that it held"
	}
	c.Notes = append(slices.Clone(c.Notes), "the service was restarted; "+found)
	c.Survivors = []api.Survivor{}
	if c.SeenEmptyAt == nil && len(c.Leftovers) == 0 {
		c.SeenEmptyAt = stamp()
	}
	fault.Point("recover.closed")
	if !s.Terminal() {
		m.account(t, &c, true)
		return true
	}
	t.mu.Lock()
	if len(c.Leftovers) > 0 && c.LeftoversEndedAt == nil {
		c.LeftoversEndedAt = stamp()
	}
	complete := c.Complete
	t.fill(&c, true)
	c.Complete = complete
	t.receipt = &c
	t.mu.Unlock()
	m.announce(t)
	return true
}

// enter makes a turn known, unless it is in the history by now.
func (m *Manager) enter(t *turn) {
	t.saveMu.Lock()
	defer t.saveMu.Unlock()
	if t.archived {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.add(t)
}

// adopt takes a hold that was proved ours.
func (m *Manager) adopt(t *turn, h Hold) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.hold = h
	t.setFacts(h.Facts())
	if t.lost != "" { // told while the hold was being found
		t.view.Degraded = append(t.view.Degraded, "the keeper is gone ("+t.lost+")")
	}
	t.tellBegun()
	t.mergeHeld()
	for _, k := range h.Processes() {
		t.learn(k)
	}
	for _, p := range t.procs {
		t.passNumber(p.view.ID)
	}
}

// learn takes from the keeper what the record does not have of a process; the
// lock is held.
func (t *turn) learn(k Recovered) {
	if p := t.byID[k.Started.Process]; p != nil && k.Meta != "" {
		p.meta = decodeMeta(k.Meta)
		t.enterKey(p)
		t.arm(p)
	}
}

// startedBefore is the hold's Started hook.
func (t *turn) startedBefore(k Recovered) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID[k.Started.Process] == nil {
		t.addProcess(t.recovered(k))
		t.passNumber(k.Started.Process)
		return
	}
	t.learn(k)
}

// passNumber sees to it that an id is not given again; the lock is held.
func (t *turn) passNumber(process string) {
	if n, err := strconv.Atoi(strings.TrimPrefix(process, "p")); err == nil && n >= t.next {
		t.next = n + 1
	}
}

// resume carries on what the earlier service had begun, of a turn that was found in
// a state. One that was found open may be ending by now, since its hold tells, and
// callers ask, as soon as it is known: who began that carries it out.
func (m *Manager) resume(t *turn, found api.State) {
	t.mu.Lock()
	s, e := found, t.ending
	left := t.receipt == nil || len(t.receipt.Leftovers) > 0 || slices.ContainsFunc(t.receipt.Processes, func(p api.ReceiptProcess) bool {
		return p.Status.State == api.ProcessRunning // a job's end had not got into it
	})
	t.mu.Unlock()
	if e == nil && (s == api.StateEnding || s == api.StateFinishing) {
		own := m.ownEnd(t, reasonIn(s))
		e = &own
	}
	m.resumeJobs(t)
	if t.startless() {
		m.giveUpJob(t)
	}
	switch s {
	case api.StateOpen:
		m.stopIfMaxed(t)
		m.followLast(t)
		if t.state() == api.StateOpen {
			m.resumeClocks(t)
		}
		m.endIfFenced(t)
	case api.StateEnding, api.StateFinishing:
		m.wg.Go(func() { m.carryOut(t, next(api.StateOpen, asked(*e)).effect, *e) })
	case api.StateUnkillable:
		m.wg.Go(func() { m.watchSurvivors(t) })
	case api.StateFinished, api.StateAbandoned:
		if left || t.keepsJobs() {
			t.wind()
			if left {
				m.wg.Go(func() { m.watchLeftovers(t) })
			}
			return
		}
		t.mu.Lock() // its receipt is stored
		h := t.hold
		if h != nil { // else somebody else puts it away by now
			t.hold, t.over = nil, h
		}
		t.mu.Unlock()
		if h != nil {
			m.wg.Go(func() { m.putAway(t, true) })
		}
	}
}

// reasonIn is why a turn is in a state, where nobody wrote it down.
func reasonIn(s api.State) api.Reason {
	if s == api.StateFinishing {
		return api.ReasonFinished
	}
	return api.ReasonOperator
}

// lose closes a turn that nobody can hold any more; nothing is signalled. The
// receipt of one that was over stands.
func (m *Manager) lose(t *turn, why string) {
	there := m.stillThere(t)
	t.mu.Lock()
	over := t.view.State.Terminal() && t.receipt != nil
	e := t.ending
	if e == nil {
		e = &EndRequest{Reason: api.ReasonKeeperLost, AskedAt: time.Now().UTC(), Actor: api.Actor{UID: m.cfg.UID, Name: "pinfold"}}
	}
	t.apply(evLost)
	for _, p := range t.procs {
		p.end(Exit{Status: api.Status{State: api.ProcessLost, Why: why}, At: time.Now()})
	}
	t.jobsEnded(why)
	t.mu.Unlock()
	var r api.Receipt
	if over {
		r = t.closing(why)
	} else {
		r = t.newReceipt(*e)
		r.Notes = append(r.Notes, why)
		if t.hopeless {
			r.Unconfirmed = why
		}
		t.mu.Lock()
		t.fill(&r, true)
		r.Complete = false // nobody saw it
		t.mu.Unlock()
	}
	tellStill(&r, there)
	t.mu.Lock()
	r.State, t.view.Reason, t.receipt = t.view.State, r.Reason, &r
	t.mu.Unlock()
	fault.Point("recover.lost")
	m.announce(t)
}

// closing is the receipt of a turn that was over, with what is known of what it
// had left.
func (t *turn) closing(why string) api.Receipt {
	t.mu.Lock()
	defer t.mu.Unlock()
	r, complete := *t.receipt, t.receipt.Complete
	if len(r.Leftovers) > 0 && r.LeftoversEndedAt == nil {
		if !t.hopeless { // else nobody knows
			r.LeftoversEndedAt = stamp()
		}
		r.Notes = append(slices.Clone(r.Notes), why)
	}
	t.fill(&r, true)
	r.Complete = complete
	return r
}

// fencedBefore is the hold's hook: the keeper launches nothing more.
func (m *Manager) fencedBefore(t *turn) {
	t.mu.Lock()
	t.fenced = true
	t.mu.Unlock()
	m.endIfFenced(t)
}

// endIfFenced goes on with an ending that an earlier service had begun to carry
// out, and of which it could write nothing down before it was killed. That was one
// that ends the processes: others are written down first. One that is just being
// found again is told of later.
func (m *Manager) endIfFenced(t *turn) {
	t.mu.Lock()
	end := t.fenced && t.hold != nil && t.view.State == api.StateOpen
	if end {
		t.view.Degraded = append(t.view.Degraded, "it was being ended when the service was killed: who asked for that, and why, is not known")
	}
	t.mu.Unlock()
	if !end {
		return
	}
	e := m.ownEnd(t, api.ReasonOperator)
	e.Keep = false
	if err := m.startEnding(t, e); err != nil {
		m.log.Warn("go on with the ending of a turn", "turn", t.id, "error", err)
	}
}
