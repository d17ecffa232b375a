package model

import (
	"slices"
	"time"

	"pgregory.net/rapid"

	"pinfold.dev/api"
)

// promotable are launches whose leaf has something.
func (w *scene) promotable() (out []*launch) {
	for _, t := range w.turns {
		for _, l := range t.launches {
			if len(l.leaf()) > 0 {
				out = append(out, l)
			}
		}
	}
	return out
}

// promote makes a job of a launch.
func (w *scene) promote(*rapid.T) {
	l := pick(w, "launch", w.promotable())
	req := api.PromoteRequest{MaxMS: w.sometimes("max"), Labels: w.labels()}
	w.settle()
	if len(l.leaf()) == 0 {
		w.rt.Skip("it went")
	}
	asked := time.Now()
	ctx, cancel := w.soon()
	defer cancel()
	j, err := w.svc.Promote(ctx, l.turn.ID, l.id, req)
	w.say("promote %s/%s: %s (%v)", l.turn.ID, l.id, j.ID, err)
	if err != nil {
		w.refused(l.turn, "promote "+l.id, err)
		return
	}
	of := l.leaf()
	if l.turn.leftOver() {
		j = w.madeLate(of, j)
	}
	w.made(l, of, j, asked)
	l.job = w.jobs[len(w.jobs)-1]
}

// made enters a new job.
func (w *scene) made(l *launch, of []*token, v api.Job, asked time.Time) {
	j := &job{Job: v, tokens: of, listed: l.turn}
	if v.MaxMS > 0 {
		j.due = asked.Add(time.Duration(v.MaxMS) * time.Millisecond)
	}
	if v.State == api.JobEnded && !j.late() {
		w.fatal("a new job has ended: %+v", v)
	}
	for _, k := range of {
		k.job = j
	}
	l.turn.amid()
	w.jobs = append(w.jobs, j)
	if l.turn != nil {
		l.turn.jobs = append(l.turn.jobs, j)
	}
}

// eject makes a job of a descendant.
func (w *scene) eject(*rapid.T) {
	var all []*token
	for _, l := range w.promotable() {
		for _, k := range l.leaf() {
			if k != l.leader() {
				all = append(all, k)
			}
		}
	}
	k := pick(w, "descendant", all)
	req := api.PromoteRequest{PID: k.pid(), MaxMS: w.sometimes("max")}
	w.settle()
	if k.gone {
		w.rt.Skip("it went")
	}
	asked := time.Now()
	ctx, cancel := w.soon()
	defer cancel()
	l := k.launch
	j, err := w.svc.Promote(ctx, l.turn.ID, l.id, req)
	w.say("eject %s of %s/%s: %s (%v)", names([]*token{k}), l.turn.ID, l.id, j.ID, err)
	if err != nil {
		w.refused(l.turn, "eject", err)
		return
	}
	of := []*token{k}
	for _, o := range l.leaf() {
		if o != k && o.below(k) {
			of = append(of, o)
		}
	}
	if l.turn.leftOver() {
		j = w.madeLate(of, j)
	}
	w.made(l, of, j, asked)
}

// madeLate looks who is still there of a new job that was a leftover whose time came
// amid that: who was killed before it was taken out is gone, and if all were, so is
// the job.
func (w *scene) madeLate(of []*token, v api.Job) api.Job {
	alive := 0
	for _, k := range of {
		for end := time.Now().Add(patience(time.Second)); k.locked() && time.Now().Before(end); {
			time.Sleep(2 * time.Millisecond)
		}
		if k.locked() {
			alive++
		} else {
			k.end()
		}
	}
	if alive == 0 {
		v.MaxMS = 1 // it may have ended
	}
	return v
}

// startJob starts one in a hold of its own.
func (w *scene) startJob(*rapid.T) {
	if w.alive() > mostTokens {
		w.rt.Skip("enough processes")
	}
	g := pick(w, "gateway", w.gateways)
	s := w.program("", 1)
	req := api.JobRequest{Launch: w.request(s), Session: w.session(), Labels: w.labels(), MaxMS: w.sometimes("max")}
	asked := time.Now()
	ctx, cancel := w.soon()
	defer cancel()
	v, err := g.StartJob(ctx, req)
	w.say("start job %s of uid %d: %v", v.ID, g.uid, err)
	if err != nil {
		if req.MaxMS > 0 && time.Since(asked) >= time.Duration(req.MaxMS)*time.Millisecond && api.ErrTurnOver.Is(err) {
			return // its time was over before it was launched
		}
		w.fatal("start a job: %v", err)
	}
	l := &launch{id: v.Process}
	l.tokens = plant(s, nil, l).all()
	w.tokens = append(w.tokens, l.tokens...)
	w.made(l, l.tokens, v, asked)
	j := l.leader().job
	w.awaitUp(l.tokens, func() {
		if !j.ended && j.late() {
			w.settleJob(j)
		}
	})
}

func (w *scene) liveJobs() (out []*job) {
	for _, j := range w.jobs {
		if !j.ended && len(j.alive()) > 0 {
			out = append(out, j)
		}
	}
	return out
}

// stopJob ends one.
func (w *scene) stopJob(*rapid.T) {
	j := pick(w, "job", w.liveJobs())
	ctx, cancel := w.soon()
	defer cancel()
	v, err := w.svc.StopJob(ctx, j.ID, api.StopJobRequest{GraceMS: w.grace()})
	w.say("stop job %s: %s (%v)", j.ID, v.State, err)
	if err != nil || v.State != api.JobEnded {
		w.fatal("stop job %s: %s (%v)", j.ID, v.State, err)
	}
	for _, k := range j.alive() {
		k.end()
	}
}

// transfer gives a job to another turn of the same owner, or to another session.
func (w *scene) transfer(*rapid.T) {
	j := pick(w, "job", w.liveJobs())
	var req api.TransferRequest
	var to *turn
	if w.chance(2, "session") {
		req.Session = new(w.session())
	} else {
		to = pick(w, "turn", w.open())
		req.Turn = to.ID
	}
	w.settle()
	ctx, cancel := w.soon()
	defer cancel()
	v, err := w.svc.Transfer(ctx, j.ID, req)
	w.say("transfer job %s %s: %v", j.ID, sayIt(req), err)
	switch {
	case to != nil && to.Owner != j.Owner:
		if !api.ErrNotFound.Is(err) {
			w.fatal("job %s of uid %d was given to uid %d: %v", j.ID, j.Owner, to.Owner, err)
		}
		return
	case err != nil && (api.ErrTurnOver.Is(err) || api.ErrNotFound.Is(err) && to != nil): // it may be in the history by now
		w.settle()
		if (!j.ended || !api.ErrTurnOver.Is(err)) && (to == nil || !to.over) {
			w.fatal("transfer job %s: %v", j.ID, err)
		}
		return
	case err != nil:
		w.fatal("transfer job %s: %v", j.ID, err)
	}
	j.Session = v.Session
	if to != nil {
		if j.listed != nil {
			j.listed.jobs = slices.DeleteFunc(j.listed.jobs, func(o *job) bool { return o == j })
		}
		j.listed = to
		to.jobs = append(to.jobs, j)
	}
}
