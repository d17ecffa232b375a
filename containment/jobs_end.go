package containment

import (
	"context"
	"slices"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/fault"
)

// followJob arms a job's clock, watches it until it has ended, and tells of it.
func (m *Manager) followJob(t *turn, j *job, what string) {
	t.mu.Lock()
	if j.Due > 0 && j.timer == nil {
		j.timer = time.AfterFunc(max(0, j.Due-t.clock()), func() { m.jobOver(t, j) })
	}
	if what != "" {
		t.tell(api.EventJob, j.Process+"/"+what, func(e *api.Event) { e.Job, e.Process, e.Message = jobID(t.id, j.Process), j.Process, what })
	}
	t.mu.Unlock()
	m.wg.Go(func() { m.watchJob(t, j) })
}

// jobOver ends a job that has lived for as long as it may.
func (m *Manager) jobOver(t *turn, j *job) {
	select {
	case <-m.stop:
		return // the next service goes on
	default:
	}
	m.log.Info("job's lifetime is over", "turn", t.id, "process", j.Process)
	m.endJob(t, j, api.ReasonWall, api.Actor{UID: m.cfg.UID, Name: "pinfold"}, nil)
}

// watchJob waits until a job is seen gone.
func (m *Manager) watchJob(t *turn, j *job) {
	for {
		h := t.held()
		if h == nil { // it is not held: what became of it is told elsewhere
			return
		}
		if m.jobGone(h, j, time.Minute) {
			break
		}
		select {
		case <-m.stop:
			return
		default:
		}
	}
	if j.Origin == api.JobStarted {
		m.finishJob(t)
		return
	}
	m.closeJob(t, j, "")
}

// jobGone waits for at most d.
func (m *Manager) jobGone(h Hold, j *job, d time.Duration) bool {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	ctx, done := m.whileOpen(ctx)
	defer done()
	if j.Origin == api.JobStarted {
		return waited(ctx, h.WaitEmpty(ctx))
	}
	return waited(ctx, h.WaitJob(ctx, j.Process))
}

// finishJob ends the hold of a started job of which nothing is left. An ending
// that is under way goes on.
func (m *Manager) finishJob(t *turn) {
	if err := m.startEnding(t, m.ownEnd(t, api.ReasonFinished)); err != nil {
		m.log.Warn("finish the hold of a job", "turn", t.id, "error", err)
	}
}

// jobEnded notes the end of a job; the lock is held.
func (t *turn) jobEnded(j *job, note string) {
	if j.EndedAt != nil {
		return
	}
	j.EndedAt, j.Survivors = stamp(), nil
	if note != "" {
		j.Notes = append(j.Notes, note)
	}
	if j.timer != nil {
		j.timer.Stop()
	}
	close(j.ended)
	t.tellJobEnded(j)
	t.touch()
}

// jobsEnded notes that the jobs of a turn that nobody holds any more have ended:
// one of a hold of its own for the reason that was given for that, unless it has
// ended by itself, which is a finish of our own. The lock is held.
func (t *turn) jobsEnded(note string) {
	for _, j := range t.jobs {
		if e := t.ending; e != nil && (e.Reason != api.ReasonFinished || e.Actor.Name == "") && j.Origin == api.JobStarted && j.Reason == "" {
			a := t.ending.Actor
			j.Reason, j.Actor = t.ending.Reason, &a
		}
		t.jobEnded(j, note)
	}
}

// closeJob notes the end of a promoted job, and lets go of a turn that was held
// for it only.
func (m *Manager) closeJob(t *turn, j *job, note string) {
	m.awaitExit(t, j.Process)
	t.mu.Lock()
	t.mergeHeld()
	p := t.byID[j.Process]
	untold := p != nil && p.view.Status.State == api.ProcessRunning && !m.stopped()
	t.mu.Unlock()
	if untold { // its cgroup is empty
		t.exited(Exit{Process: j.Process, At: time.Now(), Status: api.Status{State: api.ProcessLost, Why: "it is gone, and nobody has told how it ended"}})
	}
	t.mu.Lock()
	t.jobEnded(j, note)
	t.mu.Unlock()
	if err := m.save(t); err != nil {
		m.log.Warn("save the record of a turn whose job has ended", "turn", t.id, "error", err)
	}
	fault.Point("job.over")
	m.lastJob(t)
}

// awaitExit gives the keeper time to tell how the launch of an empty leaf ended: on a
// busy machine it may be long in coming to it.
func (m *Manager) awaitExit(t *turn, process string) {
	ctx, cancel := context.WithTimeout(context.Background(), m.cfg.Bound)
	defer cancel()
	_, _ = m.WaitProcess(ctx, t.id, process)
}

// lastJob lets go of a turn that is over once neither a job nor a leftover is
// held in it.
func (m *Manager) lastJob(t *turn) {
	t.mu.Lock()
	over := t.view.State.Terminal() && t.hold != nil && !t.liveJobs()
	t.mu.Unlock()
	if over {
		m.wg.Go(func() { m.watchLeftovers(t) })
	}
}

// StopJob ends a job and waits until it is seen gone.
func (m *Manager) StopJob(ctx context.Context, id string, c Caller, req api.StopJobRequest) (api.Job, error) {
	if req.Reason == "" {
		req.Reason = api.ReasonStop
	}
	if err := checkAbandon(api.AbandonRequest{Reason: req.Reason, GraceMS: req.GraceMS}); err != nil {
		return api.Job{}, err
	}
	t, j, ok := m.findJob(id)
	if !ok {
		return m.Job(ctx, id) // ended long ago, or never was
	}
	if !t.holds(j) {
		return api.Job{}, api.Errorf(api.CodeUnavailable, "job %s cannot be verified, so nothing of it is signalled", id).
			WithRemedy("see `pinfold why %s`", t.id)
	}
	m.endJob(t, j, req.Reason, api.Actor{UID: c.UID, PID: c.PID, Ino: c.Ino, Cgroup: c.Cgroup}, req.GraceMS)
	select {
	case <-j.ended:
		return m.Job(ctx, id)
	case <-ctx.Done():
		return api.Job{}, api.Errorf(api.CodeTimeout, "the ending of job %s goes on", id).WithRemedy("look at it with `pinfold jobs show %s`", id)
	}
}

// holds tells whether a job is held, or has ended.
func (t *turn) holds(j *job) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.hold != nil || j.EndedAt != nil
}

// endJob ends a job in the background; the first reason stands.
func (m *Manager) endJob(t *turn, j *job, why api.Reason, a api.Actor, graceMS *int64) {
	t.mu.Lock()
	h, first := t.hold, j.Reason == "" && j.EndedAt == nil
	if first {
		j.Reason, j.Actor = why, &a
		if j.Origin != api.JobStarted { // else the ending of its hold tells
			t.stopping(j.Process)
		}
	}
	grace := m.graceOf(t, graceMS)
	t.mu.Unlock()
	stop := t.stopSignal(j.Process)
	switch {
	case h == nil:
		return
	case j.Origin == api.JobStarted:
		ms := grace.Milliseconds()
		e := m.endRequest(t, Caller{}, why, &ms)
		e.Actor, e.Keep = a, false
		if err := m.startEnding(t, e); err != nil {
			m.log.Warn("end a job", "turn", t.id, "error", err)
		}
		if graceMS != nil {
			m.hurry(t, e)
		}
		return
	case !first && (graceMS == nil || *graceMS > 0):
		return
	case !first: // at once now: who ends it already sees that
		m.wg.Go(func() {
			if _, err := h.EndLaunch(context.Background(), j.Process, stop, grace, m.cfg.Bound, false); err != nil {
				m.log.Warn("end a job sooner", "turn", t.id, "process", j.Process, "error", err)
			}
		})
		return
	}
	m.log.Info("job ending", "turn", t.id, "process", j.Process, "reason", why, "uid", a.UID, "grace", grace)
	m.wg.Go(func() {
		if err := m.save(t); err != nil {
			m.log.Warn("save the record of a turn whose job ends", "turn", t.id, "error", err)
		}
		fault.Point("job.noted")
		m.killJob(t, h, j, func(ctx context.Context) (Killed, error) {
			return h.EndLaunch(ctx, j.Process, stop, grace, m.cfg.Bound, false)
		})
	})
}

// killJob ends a job's processes, again and again while some survive.
func (m *Manager) killJob(t *turn, h Hold, j *job, end func(context.Context) (Killed, error)) {
	ctx, cancel := m.whileOpen(context.Background())
	defer cancel()
	for wait := time.Second; ; wait = min(2*wait, time.Minute) {
		k, err := end(ctx)
		if ctx.Err() != nil {
			return // the next service goes on
		}
		t.mu.Lock()
		j.Survivors = slices.Clone(k.Survivors)
		if err != nil && !slices.Contains(j.Notes, "end: "+err.Error()) {
			j.Notes = append(j.Notes, "end: "+err.Error())
		}
		t.mu.Unlock()
		if err == nil && len(k.Survivors) == 0 {
			return // watchJob sees it
		}
		m.log.Warn("a job is not ended", "turn", t.id, "process", j.Process, "survivors", len(k.Survivors), "error", err)
		if m.jobGone(h, j, wait) || ctx.Err() != nil {
			return
		}
	}
}

// endJobs ends the jobs that are listed with a turn, as the turn itself is ended. The
// receipt lists those that were made in it, and notes the others.
func (m *Manager) endJobs(t *turn, e EndRequest, r *api.Receipt) {
	t.promoting.Wait()
	t.mu.Lock()
	ids := slices.Clone(t.view.Jobs)
	t.mu.Unlock()
	for _, id := range ids {
		if o, j, ok := m.findJob(id); ok {
			m.endJob(o, j, e.Reason, e.Actor, &e.GraceMS)
			if note := "job " + id + ", which was given to the turn, is ended with it"; o != t && !slices.Contains(r.Notes, note) {
				r.Notes = append(r.Notes, note)
			}
		}
	}
}

// claimJob notes who ends the job of a process, if it is one that nobody ends yet.
func (t *turn) claimJob(process string, c Caller) *job {
	t.mu.Lock()
	defer t.mu.Unlock()
	j := t.job(process)
	if j == nil || j.EndedAt != nil || j.Reason != "" {
		return nil
	}
	j.Reason, j.Actor = api.ReasonStop, &api.Actor{UID: c.UID, PID: c.PID, Ino: c.Ino, Cgroup: c.Cgroup}
	return j
}

// disclaimJob takes that back: it has not ended. A nil job is none.
func (t *turn) disclaimJob(j *job) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if j != nil && j.EndedAt == nil {
		j.Reason, j.Actor = "", nil
	}
}

// awaitEnd gives a job whose processes have gone time to be known as ended. A nil
// job is none; in a hold of its own something else may run on.
func (j *job) awaitEnd(ctx context.Context, bound time.Duration) {
	if j == nil {
		return
	}
	select {
	case <-j.ended:
	case <-ctx.Done():
	case <-time.After(bound):
	}
}

// awaitJobs waits until the jobs that end with a turn are seen gone, for as long
// as that may take, and says on the receipt which are not.
func (m *Manager) awaitJobs(t *turn, e EndRequest, r *api.Receipt) {
	if e.Jobs != api.FateEnd {
		return
	}
	t.mu.Lock()
	ids := slices.Clone(t.view.Jobs)
	t.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(e.GraceMS)*time.Millisecond+m.cfg.Bound)
	defer cancel()
	ctx, done := m.whileOpen(ctx)
	defer done()
	for _, id := range ids {
		o, j, ok := m.findJob(id)
		if !ok || o == t && j.Origin == api.JobStarted { // that is what is ending
			continue
		}
		select {
		case <-j.ended:
		case <-ctx.Done():
			r.Notes = append(r.Notes, "job "+id+" is not seen gone: its ending goes on")
		}
	}
}

// Transfer gives a job to another session, or to another turn of its owner.
func (m *Manager) Transfer(ctx context.Context, id string, c Caller, req api.TransferRequest) (api.Job, error) {
	t, j, ok := m.findJob(id)
	if !ok {
		if _, err := m.Job(ctx, id); err != nil {
			return api.Job{}, err
		}
		return api.Job{}, jobOver(id)
	}
	to, session, err := m.receiver(t, req)
	if err != nil {
		return api.Job{}, err
	}
	if err := to.enlist(id); err != nil {
		return api.Job{}, err
	}
	t.mu.Lock()
	if had := j.Listed; j.EndedAt != nil {
		t.mu.Unlock()
		to.strike(id, t, had)
		return api.Job{}, jobOver(id)
	}
	from, was := j.Listed, j.JobRecord
	if from == "" && j.Origin != api.JobStarted {
		from = t.id
	}
	j.Session = session
	if to != nil {
		j.Listed = to.id
	}
	t.mu.Unlock()
	if err := m.save(t); err != nil {
		t.mu.Lock()
		j.Session, j.Listed = was.Session, was.Listed
		t.mu.Unlock()
		to.strike(id, t, was.Listed)
		return api.Job{}, api.Errorf(api.CodeUnavailable, "the transfer cannot be recorded: %v", err)
	}
	if to != nil {
		m.relist(from, to, id)
	}
	t.mu.Lock()
	t.tell(api.EventJob, "", func(e *api.Event) {
		e.Job, e.Process, e.Session, e.Message, e.Stopped = id, j.Process, j.Session, "transferred", false
	})
	t.mu.Unlock()
	return m.lookJob(t, j), nil
}

// receiver is the turn that a job is given to, nil where none is named, and the
// session that it has then.
func (m *Manager) receiver(t *turn, req api.TransferRequest) (to *turn, session string, err error) {
	if req.Turn == "" && req.Session == nil {
		return nil, "", api.Errorf(api.CodeBadRequest, "neither session nor turn says who is to have the job")
	}
	if req.Turn != "" {
		var ok bool
		if to, ok = m.live(req.Turn); !ok || to.owner != t.owner {
			return nil, "", notFound(req.Turn)
		}
		to.mu.Lock()
		s := to.view.State
		session = to.view.Session
		to.mu.Unlock()
		if s != api.StateOpen {
			return nil, "", turnOver(to.id, s)
		}
	}
	if req.Session != nil {
		session = *req.Session
		err = checkBegin(api.BeginRequest{Session: session})
	}
	return to, session, err
}

func jobOver(id string) *api.Error { return api.Errorf(api.CodeTurnOver, "job %s has ended", id) }

// enlist lists a job with a turn that is open at that moment: an ending that ends
// jobs finds it there. Of no turn it does nothing.
func (t *turn) enlist(id string) error {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.view.State; s != api.StateOpen {
		return turnOver(t.id, s)
	}
	if !slices.Contains(t.view.Jobs, id) {
		t.view.Jobs = append(t.view.Jobs, id)
	}
	return nil
}

// strike takes that back, unless the job was made in it, or given to it before.
func (t *turn) strike(id string, home *turn, had string) {
	if t == nil || t == home || t.id == had {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.view.Jobs = without(t.view.Jobs, id)
}

// relist moves a job from one turn's list to another's.
func (m *Manager) relist(from string, to *turn, id string) {
	if old, ok := m.live(from); ok && old != to {
		old.mu.Lock()
		old.view.Jobs = without(old.view.Jobs, id)
		old.mu.Unlock()
		if err := m.save(old); err != nil {
			m.log.Warn("save the record of a turn that gave a job away", "turn", from, "error", err)
		}
	}
	if err := m.save(to); err != nil {
		m.log.Warn("save the record of a turn that was given a job", "turn", to.id, "error", err)
	}
}

// resumeJobs goes on with the jobs of a turn that was found again. A promotion
// that was cut short was taken back by the hold; one that was whole is a job.
func (m *Manager) resumeJobs(t *turn) {
	t.mu.Lock()
	h := t.hold
	jobs := slices.Clone(t.jobs)
	t.mu.Unlock()
	for _, j := range jobs {
		if j.EndedAt != nil {
			continue
		}
		if j.Moving {
			if n, err := h.JobAlive(j.Process); err == nil && n == 0 {
				m.dropJob(t, j)
				continue
			}
			t.mu.Lock()
			j.Moving = false
			t.mu.Unlock()
		}
		m.followJob(t, j, string(j.Origin))
		if j.Reason != "" && j.Origin != api.JobStarted { // its end was asked for
			m.endAgain(t, h, j)
		}
	}
}

// endAgain goes on with the end of a job that an earlier service was asked for.
func (m *Manager) endAgain(t *turn, h Hold, j *job) {
	stop := t.stopSignal(j.Process)
	m.wg.Go(func() {
		m.killJob(t, h, j, func(ctx context.Context) (Killed, error) {
			return h.EndLaunch(ctx, j.Process, stop, 0, m.cfg.Bound, false)
		})
	})
}
