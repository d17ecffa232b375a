package containment

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"pinfold.dev/api"
)

// EndProcess ends a launched process with its descendants, or only those.
func (m *Manager) EndProcess(ctx context.Context, id, proc string, c Caller, req api.EndProcessRequest) (api.EndProcessAnswer, error) {
	a := api.EndProcessAnswer{Turn: id, Process: proc, Complete: true, Survivors: []api.Survivor{}}
	if err := checkAbandon(api.AbandonRequest{Reason: api.ReasonStop, GraceMS: req.GraceMS}); err != nil {
		return a, err
	}
	t, ok := m.live(id)
	if !ok {
		p, err := m.endedProcess(id, proc)
		a.Status, a.Grade = p.Status, p.Grade
		return a, err
	}
	if err := t.checkEpoch(req.Epoch); err != nil {
		return a, err
	}
	t.mu.Lock()
	p, h := t.byID[proc], t.hold
	a.Grade = t.view.Grade
	if p == nil {
		err := t.noProcess(proc)
		t.mu.Unlock()
		return a, err
	}
	a.Status = p.view.Status
	grace, stop := m.graceOf(t, req.GraceMS), p.stopSignal()
	t.mu.Unlock()
	switch {
	case h == nil && a.Status.State == api.ProcessRunning:
		return a, api.Errorf(api.CodeUnavailable, "turn %s cannot be verified, so nothing in it is signalled", id).
			WithRemedy("see `pinfold why %s`", id)
	case h == nil:
		return a, nil
	case req.DryRun:
		return m.wouldEnd(ctx, t, h, proc, req, a)
	}
	m.log.Info("process ending", "turn", id, "process", proc, "uid", c.UID, "descendants_only", req.DescendantsOnly, "grace", grace)
	var j *job
	if !req.DescendantsOnly {
		j = t.claimJob(proc, c)
		t.mu.Lock()
		t.stopping(proc)
		t.mu.Unlock()
		defer awaitSaved(m.noteSoon(t)) // whoever is told that it ended may rely on that
	}
	k, err := h.EndLaunch(context.WithoutCancel(ctx), proc, stop, grace, m.cfg.Bound, req.DescendantsOnly)
	if err != nil || len(k.Survivors) > 0 || k.EmptyAt.IsZero() {
		t.disclaimJob(j)
	}
	if err != nil {
		t.mu.Lock()
		t.notStopping(proc)
		t.mu.Unlock()
		_ = m.noteSoon(t)
		return a, asAPI(err, api.CodeInternal, "end "+proc)
	}
	a.Ended = k.Seen
	if a.Survivors = append(a.Survivors, k.Survivors...); len(k.Survivors) > 0 || k.EmptyAt.IsZero() { // not seen gone
		a.Complete = false
	} else if !req.DescendantsOnly {
		m.awaitExit(t, proc)
		j.awaitEnd(ctx, m.cfg.Bound)
	}
	t.mu.Lock()
	a.Status = p.view.Status
	t.mu.Unlock()
	return a, nil
}

// wouldEnd lists what EndProcess would deal with.
func (m *Manager) wouldEnd(ctx context.Context, t *turn, h Hold, proc string, req api.EndProcessRequest, a api.EndProcessAnswer) (api.EndProcessAnswer, error) {
	all, err := h.Targets(ctx)
	if err != nil {
		return a, asAPI(err, api.CodeInternal, "list "+proc)
	}
	t.mu.Lock()
	pid := 0
	if p := t.byID[proc]; p != nil { // else its adoption was taken back meanwhile
		pid = p.view.PID
	}
	t.mu.Unlock()
	for _, g := range all {
		if g.Process != proc {
			continue
		}
		if req.DescendantsOnly && g.PID == pid {
			g.Would, g.Why = "kept", "the launched process itself is spared"
		}
		a.Targets = append(a.Targets, g)
	}
	a.Complete = false // nothing was done
	return a, nil
}

// graceOf is the time between TERM and KILL: of the request, the turn or the
// service; the turn's lock is held.
func (m *Manager) graceOf(t *turn, ms *int64) time.Duration {
	switch {
	case ms != nil:
		return time.Duration(*ms) * time.Millisecond
	case t.graceMS != nil:
		return time.Duration(*t.graceMS) * time.Millisecond
	}
	return m.cfg.Grace
}

// Plan tells what an abandon would do now. It touches nothing.
func (m *Manager) Plan(ctx context.Context, id string, req api.AbandonRequest) (api.Plan, error) {
	if req.Reason == "" {
		req.Reason = api.ReasonStop
	}
	if err := checkAbandon(req); err != nil {
		return api.Plan{}, err
	}
	t, ok := m.live(id)
	if !ok {
		r, err := m.ended(id)
		return api.Plan{Turn: id, State: r.Turn.State, Reason: req.Reason, Rule: api.DefaultPolicy()[req.Reason], Grade: r.Turn.Grade,
			Mechanism: "none", Targets: []api.Target{}, Servers: []api.Server{}, Notes: []string{"the turn is over: nothing would be touched"}}, err
	}
	if err := t.checkEpoch(req.Epoch); err != nil {
		return api.Plan{}, err
	}
	t.mu.Lock()
	rule := t.rule(req.Reason)
	if req.Jobs {
		rule.Jobs = api.FateEnd
	}
	grace := m.graceOf(t, req.GraceMS)
	kept := "the policy for " + string(req.Reason) + " keeps processes"
	if over := t.view.State.Terminal(); over && req.Leftovers { // no rule keeps them from who asks, and they are killed at once
		rule.Processes, grace = api.FateEnd, 0
	} else if over {
		rule.Processes, kept = api.FateKeep, "it was left running, and is ended by --leftovers only"
	}
	p := api.Plan{Turn: id, State: t.view.State, Reason: req.Reason, Rule: rule, GraceMS: grace.Milliseconds(),
		Mechanism: mechanismOf(t.view.Grade), Targets: []api.Target{}, Servers: []api.Server{}, Grade: t.view.Grade}
	h := t.hold
	t.mu.Unlock()
	switch {
	case p.State.Terminal() && (h == nil || !req.Leftovers && !req.Jobs):
		p.Mechanism, p.Notes = "none", append(p.Notes, "the turn is over: nothing would be touched")
		return p, nil
	case h == nil:
		p.Mechanism, p.Notes = "none", append(p.Notes, "the turn cannot be verified: nothing would be signalled")
		return p, nil
	case rule.Processes == api.FateKeep && !(p.State.Terminal() && req.Jobs):
		p.Mechanism = "none"
	}
	var err error
	p.Targets, p.Servers, p.ServedBy, err = m.lookAround(ctx, t, h)
	byRule(p.Targets, rule, kept)
	if err != nil {
		p.Notes = append(p.Notes, err.Error())
	}
	return p, nil
}

// byRule enters what a rule makes of what an ending would deal with; kept says why
// processes are.
func byRule(targets []api.Target, rule api.EndRule, kept string) {
	for i := range targets {
		g := &targets[i]
		switch {
		case g.Job != "" && rule.Jobs == api.FateEnd:
			g.Would, g.Why = "signalled", "it is a job, and jobs are ended, too"
		case g.Job == "" && rule.Processes == api.FateKeep && g.Would == "signalled":
			g.Would, g.Why = "kept", kept
		}
	}
}

// lookAround lists what an ending would deal with, jobs among it, servers that
// others use, and who uses others.
func (m *Manager) lookAround(ctx context.Context, t *turn, h Hold) ([]api.Target, []api.Server, []api.Served, error) {
	gs, err := h.Targets(ctx)
	t.mu.Lock()
	for i := range gs {
		if j := t.job(gs[i].Process); j != nil && t.view.Kind != api.KindJob && j.EndedAt == nil {
			gs[i].Job, gs[i].Would, gs[i].Why = jobID(t.id, j.Process), "kept", "it is a job, which outlives its turn"
		}
	}
	t.mu.Unlock()
	ss, served, serr := h.Servers(ctx)
	return append([]api.Target{}, gs...), append([]api.Server{}, ss...), served, errors.Join(err, serr)
}

// Bounds of ending many.
const (
	mostEnded = 1000
	atOnce    = 16
)

// AbandonMany ends the turns that exactly one selector names. Those of others
// answer as if there were none.
func (m *Manager) AbandonMany(ctx context.Context, c Caller, owner *uint32, req api.AbandonManyRequest) (api.AbandonManyAnswer, error) {
	a := api.AbandonManyAnswer{Receipts: []api.Receipt{}, Refused: []api.RefusedEnd{}, Grade: m.Grade()}
	if err := checkMany(req); err != nil {
		return a, err
	}
	ids, err := m.selectTurns(ctx, owner, req)
	if err != nil {
		return a, err
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for _, id := range ids {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			m.abandonOne(ctx, id, c, owner, req, &mu, &a)
		})
	}
	if req.Jobs && req.Turns == nil {
		m.endTheirJobs(ctx, c, owner, req, &mu, &a)
	}
	wg.Wait()
	slices.SortFunc(a.Receipts, func(x, y api.Receipt) int { return x.AskedAt.Compare(y.AskedAt) })
	return a, nil
}

func (m *Manager) abandonOne(ctx context.Context, id string, c Caller, owner *uint32, req api.AbandonManyRequest, mu *sync.Mutex, a *api.AbandonManyAnswer) {
	one := api.AbandonRequest{Reason: req.Reason, GraceMS: req.GraceMS, Jobs: req.Jobs}
	of, err := m.Owner(ctx, id)
	if err == nil && owner != nil && *owner != of {
		err = notFound(id)
	}
	var r api.Receipt
	var p api.Plan
	switch {
	case err != nil:
	case req.DryRun:
		p, err = m.Plan(ctx, id, one)
	default:
		r, err = m.Abandon(ctx, id, c, one)
	}
	mu.Lock()
	defer mu.Unlock()
	switch {
	case err != nil:
		var e *api.Error
		if !errors.As(err, &e) {
			e = api.Errorf(api.CodeInternal, "%v", err)
		}
		a.Refused = append(a.Refused, api.RefusedEnd{ID: id, Error: e})
	case req.DryRun:
		a.Plans = append(a.Plans, p)
	default:
		a.Receipts = append(a.Receipts, r)
	}
}

// endTheirJobs ends the jobs of a session, an owner, or with labels.
func (m *Manager) endTheirJobs(ctx context.Context, c Caller, owner *uint32, req api.AbandonManyRequest, mu *sync.Mutex, a *api.AbandonManyAnswer) {
	if req.Owner != nil {
		owner = req.Owner
	}
	stop := api.StopJobRequest{GraceMS: req.GraceMS, Reason: req.Reason}
	jobs, refused := m.stopJobs(ctx, c, JobFilter{Owner: owner, Session: req.Session, Labels: req.Labels}, stop, req.DryRun)
	mu.Lock()
	defer mu.Unlock()
	a.Jobs, a.Refused = append(a.Jobs, jobs...), append(a.Refused, refused...)
}

// stopJobs ends the jobs that a filter names, unless it is only to tell which.
func (m *Manager) stopJobs(ctx context.Context, c Caller, f JobFilter, req api.StopJobRequest, dry bool) (ended []api.Job, refused []api.RefusedEnd) {
	jobs, err := m.Jobs(ctx, f)
	if err != nil {
		refused = append(refused, api.RefusedEnd{Error: asAPI(err, api.CodeInternal, "list jobs").(*api.Error)})
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for _, j := range jobs {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			id := j.ID
			var err error
			if !dry {
				j, err = m.StopJob(ctx, id, c, req)
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				refused = append(refused, api.RefusedEnd{ID: id, Error: asAPI(err, api.CodeInternal, "end a job").(*api.Error)})
				return
			}
			ended = append(ended, j)
		})
	}
	wg.Wait()
	return ended, refused
}

// checkMany refuses a request that names nothing, or more than one thing: what
// is blank never means everything.
func checkMany(req api.AbandonManyRequest) error {
	said := 0
	for _, b := range []bool{len(req.Turns) > 0, req.Session != "", len(req.Labels) > 0, req.Owner != nil} {
		if b {
			said++
		}
	}
	bad := func(s string) bool { return s == "" || s == "*" || s == "%" }
	switch {
	case said != 1:
		return api.Errorf(api.CodeBadRequest, "%d of turns, session, labels and owner are given, not one", said).
			WithRemedy("say exactly which turns to end; nothing means none")
	case len(req.Turns) > mostEnded:
		return api.Errorf(api.CodeTooLarge, "%d turns, at most %d are ended by one request", len(req.Turns), mostEnded)
	case slices.ContainsFunc(req.Turns, bad), req.Session == "*":
		return api.Errorf(api.CodeBadRequest, "a blank id or a wildcard names no turn")
	}
	return checkAbandon(api.AbandonRequest{Reason: orStop(req.Reason), GraceMS: req.GraceMS})
}

func orStop(r api.Reason) api.Reason {
	if r == "" {
		return api.ReasonStop
	}
	return r
}

// selectTurns lists which turns a request names, as they are now.
func (m *Manager) selectTurns(ctx context.Context, owner *uint32, req api.AbandonManyRequest) ([]string, error) {
	if len(req.Turns) > 0 {
		ids := slices.Clone(req.Turns)
		slices.Sort(ids)
		return slices.Compact(ids), nil
	}
	if req.Owner != nil {
		if owner != nil && *owner != *req.Owner {
			return nil, api.Errorf(api.CodeForbidden, "uid %d may not end the turns of uid %d", *owner, *req.Owner)
		}
		owner = req.Owner
	}
	var ids []string
	for _, t := range m.all() {
		t.mu.Lock()
		v := t.view
		t.mu.Unlock()
		if v.Kind == "" && !v.State.Terminal() && (owner == nil || *owner == t.owner) &&
			(req.Session == "" || req.Session == v.Session) && hasLabels(v.Labels, req.Labels) {
			ids = append(ids, t.id)
		}
	}
	return ids, nil
}

// mechanismOf is how a turn at a grade would be ended.
func mechanismOf(g api.Grade) string {
	switch g {
	case api.GradePIDNS:
		return "kill -1"
	case api.GradeSubreaper:
		return "walk"
	case api.GradeToken:
		return "keeper"
	}
	return "cgroup.kill"
}
