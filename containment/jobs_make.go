package containment

import (
	"context"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/fault"
)

// promoteBound is how long the move of a process and its descendants may take.
// An ending of the turn waits for it.
const promoteBound = 5 * time.Second

// StartJob starts a job in a hold of its own, beside the turns.
func (m *Manager) StartJob(ctx context.Context, c Caller, req api.JobRequest) (api.Job, error) {
	begin := api.BeginRequest{Label: req.Name, Labels: req.Labels, Session: req.Session, MinGrade: req.MinGrade, Limits: req.Limits,
		Leftovers: api.LeftoversReap, GraceMS: req.GraceMS, WallMS: req.MaxMS}
	err := checkJob(req)
	if err == nil {
		err = m.checkedBegin(begin)
	}
	if err != nil {
		return api.Job{}, err
	}
	l, mt, err := m.settle(c, req.Launch, 0) // before anything is made
	if err != nil {
		return api.Job{}, err
	}
	start := func(key *BeginKey) (api.Job, error) { return m.startJob(ctx, c, req, begin, key, l, mt) }
	if req.IdempotencyKey != "" {
		return m.startJobOnce(ctx, c, req, start)
	}
	return start(nil)
}

// startJob starts a job as it is settled.
func (m *Manager) startJob(ctx context.Context, c Caller, req api.JobRequest, begin api.BeginRequest, key *BeginKey, l Launch, mt meta) (api.Job, error) {
	v, err := m.beginNew(ctx, c, begin, key, api.KindJob)
	if err != nil {
		return api.Job{}, err
	}
	t, err := m.find(v.ID)
	if err != nil {
		return api.Job{}, err
	}
	t.mu.Lock()
	j := newJob(JobRecord{Process: "p1", Origin: api.JobStarted, Name: req.Name, Labels: req.Labels, Session: req.Session,
		CreatedAt: time.Now().UTC(), MaxMS: req.MaxMS})
	t.jobs = append(t.jobs, j)
	t.mu.Unlock()
	err = m.save(t)
	if err == nil {
		_, err = m.launch(ctx, t, l, mt, req.Launch, nil)
	}
	if err != nil {
		m.giveUpJob(t)
		return api.Job{}, asAPI(err, api.CodeUnavailable, "start a job")
	}
	m.followJob(t, j, "started")
	return m.lookJob(t, j), nil
}

// startless tells whether this is the hold of a job that was never entered: the
// service was killed in between, and nobody was told of it.
func (t *turn) startless() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.view.Kind == api.KindJob && t.view.State == api.StateOpen && len(t.jobs) == 0 && len(t.procs) == 0
}

// giveUpJob ends the hold of a job that could not be launched.
func (m *Manager) giveUpJob(t *turn) {
	e := m.ownEnd(t, api.ReasonStop)
	e.GraceMS = 0
	if err := m.startEnding(t, e); err != nil {
		m.log.Warn("end the hold of a job that did not start", "turn", t.id, "error", err)
	}
}

func checkJob(req api.JobRequest) error {
	switch {
	case req.Launch.Stdio.Stdin.Mode == api.StdioPass, req.Launch.Stdio.Stdout.Mode == api.StdioPass,
		req.Launch.Stdio.Stderr.Mode == api.StdioPass, len(req.Launch.PassFDs) > 0:
		return api.Errorf(api.CodeBadRequest, "a job cannot be given descriptors: it outlives who passed them").
			WithRemedy("use spool, pty, pipe, data or null")
	case req.Launch.IdempotencyKey != "":
		return api.Errorf(api.CodeBadRequest, "the key of a job is its own, not its launch's").WithRemedy("say idempotency_key beside launch")
	case len(req.IdempotencyKey) > maxLabel:
		return api.Errorf(api.CodeBadRequest, "idempotency_key is %d bytes long, at most %d are taken", len(req.IdempotencyKey), maxLabel)
	}
	return checkMax("max_ms", req.MaxMS)
}

// maxLife bounds a maximum lifetime: ten years.
const maxLife = 10 * 365 * 24 * time.Hour

func checkMax(field string, ms int64) error {
	if ms < 0 || ms > maxLife.Milliseconds() {
		return api.Errorf(api.CodeBadRequest, "%s is %d, not between 0 and %d", field, ms, maxLife.Milliseconds())
	}
	return nil
}

// Promote makes a job of a launched process with its descendants, or of one
// descendant with its own.
func (m *Manager) Promote(ctx context.Context, id, proc string, c Caller, req api.PromoteRequest) (api.Job, error) {
	if err := checkPromote(req); err != nil {
		return api.Job{}, err
	}
	t, err := m.find(id)
	if err != nil {
		return api.Job{}, m.over(id, err)
	}
	j, h, err := t.admitJob(proc, req)
	if err != nil {
		return api.Job{}, err
	}
	if h == nil { // it is one already
		return m.lookJob(t, j), nil
	}
	defer t.promoting.Done()
	if err = m.save(t); err == nil {
		fault.Point("promote.recorded")
		err = m.moveJob(ctx, t, h, j, proc, req)
	}
	if err != nil {
		m.dropJob(t, j)
		m.lastJob(t) // what was moved back may be all that the turn is held for
		return api.Job{}, asAPI(err, api.CodeInternal, "make a job of "+proc)
	}
	fault.Point("promote.moved")
	t.mu.Lock()
	j.Moving = false
	if req.MaxMS > 0 {
		j.Due = t.clock() + time.Duration(req.MaxMS)*time.Millisecond
	}
	t.touch()
	t.mu.Unlock()
	if err := m.save(t); err != nil { // the move is seen in the cgroup, too
		m.log.Warn("save the record of a turn with a new job", "turn", t.id, "error", err)
	}
	fault.Point("promote.saved")
	m.log.Info("job made", "turn", t.id, "process", j.Process, "origin", j.Origin, "uid", c.UID)
	m.followJob(t, j, string(j.Origin))
	return m.lookJob(t, j), nil
}

func checkPromote(req api.PromoteRequest) error {
	if req.PID < 0 || req.PID == 1 {
		return api.Errorf(api.CodeBadRequest, "pid %d is none of a turn", req.PID)
	}
	if err := checkBegin(api.BeginRequest{Label: req.Name, Labels: req.Labels}); err != nil {
		return err
	}
	return checkMax("max_ms", req.MaxMS)
}

// admitJob enters a job that is about to be made. An ending that comes later
// waits for it; one that came before refuses it. What a turn that is over left
// running can be made a job, too. A nil Hold: the process is that job already.
func (t *turn) admitJob(proc string, req api.PromoteRequest) (*job, Hold, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.byID[proc]
	if err := t.mayPromote(proc, p, req); err != nil {
		return nil, nil, err
	}
	r := JobRecord{Process: proc, Origin: api.JobPromoted, Name: req.Name, Labels: req.Labels, Session: t.view.Session,
		Moving: true, CreatedAt: time.Now().UTC(), MaxMS: req.MaxMS}
	if req.Session != nil {
		r.Session = *req.Session
	}
	if req.PID != 0 && req.PID != p.view.PID {
		r.Origin, r.Process = api.JobEjected, t.number()
	} else if j := t.job(proc); j != nil {
		return j, nil, nil
	}
	j := newJob(r)
	t.jobs = append(t.jobs, j)
	t.view.Jobs = append(t.view.Jobs, jobID(t.id, j.Process))
	t.promoting.Add(1)
	if r.Origin == api.JobPromoted {
		t.arm(p) // lifts its deadline
	}
	return j, t.hold, nil
}

// mayPromote refuses what cannot be made a job; the lock is held.
func (t *turn) mayPromote(proc string, p *process, req api.PromoteRequest) error {
	switch s := t.view.State; {
	case req.Epoch != 0 && req.Epoch != t.view.Epoch:
		return staleEpoch(t.id, req.Epoch, t.view.Epoch)
	case p == nil:
		return t.noProcess(proc)
	case t.view.Kind == api.KindJob:
		return api.Errorf(api.CodeBadRequest, "%s is a job already", jobID(t.id, proc))
	case s != api.StateOpen && (!s.Terminal() || t.hold == nil):
		return api.Errorf(api.CodeTurnOver, "turn %s is %s: nothing in it can be made a job any more", t.id, s).With("state", string(s))
	case t.hold == nil:
		return api.Errorf(api.CodeUnavailable, "turn %s cannot be verified, so nothing in it is moved", t.id).
			WithRemedy("see `pinfold why %s`", t.id)
	case p.view.InPlace && t.lost != "":
		return api.Errorf(api.CodeKeeperLost, "the keeper of turn %s is gone: %s", t.id, t.lost)
	}
	return nil
}

// moveJob moves the job's processes.
func (m *Manager) moveJob(ctx context.Context, t *turn, h Hold, j *job, from string, req api.PromoteRequest) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), promoteBound)
	defer cancel()
	if j.Origin != api.JobEjected {
		n, err := h.Promote(ctx, j.Process, t.view.Limits)
		if err == nil && n == 0 {
			return api.Errorf(api.CodeNotFound, "nothing of process %s of turn %s runs any more", from, t.id)
		}
		return err
	}
	return h.Eject(ctx, from, j.Process, req.PID, t.view.Limits, func(s Started) error {
		t.mu.Lock()
		was := t.byID[from]
		if was == nil { // its adoption was taken back meanwhile
			t.mu.Unlock()
			return noProcess(t.id, from)
		}
		p := t.newProcess(Recovered{Started: s, Argv: []string{}, Cwd: was.view.Cwd, UID: was.view.UID}, meta{Labels: req.Labels})
		p.view.Placement = s.Placement
		t.addProcess(p)
		t.mu.Unlock()
		return m.save(t)
	})
}

// dropJob forgets a job that did not come to be.
func (m *Manager) dropJob(t *turn, j *job) {
	t.mu.Lock()
	t.jobs = without(t.jobs, j)
	t.view.Jobs = without(t.view.Jobs, jobID(t.id, j.Process))
	if j.Origin == api.JobEjected {
		t.removeProcess(j.Process)
	} else if p := t.byID[j.Process]; p != nil {
		t.arm(p)
	}
	t.mu.Unlock()
	if err := m.save(t); err != nil {
		m.log.Warn("save the record of a turn", "turn", t.id, "error", err)
	}
}

func without[T comparable](all []T, one T) []T {
	out := make([]T, 0, len(all))
	for _, v := range all {
		if v != one {
			out = append(out, v)
		}
	}
	return out
}
