package model

import (
	"encoding/json"
	"slices"

	"pgregory.net/rapid"

	"pinfold.dev/api"
)

func sayIt(v any) string {
	b, _ := json.Marshal(v)
	return string(b)
}

func (w *scene) grace() *int64 {
	if w.chance(3, "grace") {
		return new(int64(60))
	}
	return new(int64(0))
}

// finish says that a turn's work is done.
func (w *scene) finish(*rapid.T) {
	t := pick(w, "turn", w.open())
	req := api.FinishRequest{GraceMS: w.grace()}
	if w.chance(3, "leftovers") {
		req.Leftovers = rapid.SampledFrom([]api.LeftoverPolicy{api.LeftoversKeep, api.LeftoversReap}).Draw(w.rt, "policy")
		t.reap = &req.Leftovers
	}
	ctx, cancel := w.soon()
	defer cancel()
	t.asked[api.ReasonFinished], t.must = true, true
	_, err := w.as(t).Finish(ctx, t.ID, req)
	w.say("finish %s, %q: %v", t, req.Leftovers, err)
	if err != nil {
		w.refused(t, "finish", err)
	}
}

// abandon ends a turn, or what it has left.
func (w *scene) abandon(*rapid.T) {
	t := pick(w, "turn", w.turns)
	req := api.AbandonRequest{GraceMS: w.grace(), Jobs: w.chance(4, "jobs"), Leftovers: w.chance(3, "leftovers"),
		Reason: rapid.SampledFrom([]api.Reason{"", api.ReasonIdle, api.ReasonOperator}).Draw(w.rt, "why")}
	ctx, cancel := w.soon()
	defer cancel()
	w.settle()
	over := t.over
	if !over {
		t.asked[orStop(req.Reason)], t.must = true, true
		if len(t.clocks) == 0 { // else a clock's ending may be the first, and its rule stands
			t.jobsToo = req.Jobs
		} else {
			req.Jobs = false
		}
	}
	_, err := w.as(t).Abandon(ctx, t.ID, req)
	w.say("abandon %s %s: %v", t, sayIt(req), err)
	if err != nil {
		w.fatal("abandon %s: %v", t, err)
	}
	if over && req.Leftovers {
		for _, k := range t.work() {
			k.end()
		}
	}
	if over && req.Jobs {
		for _, j := range t.jobs {
			for _, k := range j.alive() {
				k.end()
			}
		}
	}
}

func orStop(r api.Reason) api.Reason {
	if r == "" {
		return api.ReasonStop
	}
	return r
}

// abandonMany ends what a selector names, of those that the caller may end.
func (w *scene) abandonMany(*rapid.T) {
	g := pick(w, "gateway", w.gateways)
	req := api.AbandonManyRequest{GraceMS: w.grace(), DryRun: w.chance(4, "dry run")}
	var chosen func(owner uint32, session string, labels map[string]string) bool
	switch rapid.SampledFrom([]string{"session", "labels", "owner", "turns"}).Draw(w.rt, "by") {
	case "session":
		req.Session = rapid.SampledFrom([]string{"s1", "s2", "s", "s1 "}).Draw(w.rt, "session")
		chosen = func(_ uint32, s string, _ map[string]string) bool { return s == req.Session }
	case "labels":
		req.Labels = rapid.SampledFrom([]map[string]string{{"k": "a"}, {"l": "a"}, {"k": "b", "l": "a"}, {"k": ""}, {"k": "a", "l": "a"}}).Draw(w.rt, "labels")
		chosen = func(_ uint32, _ string, have map[string]string) bool {
			for k, v := range req.Labels {
				if got, ok := have[k]; !ok || got != v {
					return false
				}
			}
			return true
		}
	case "owner":
		uid := rapid.SampledFrom(uids()).Draw(w.rt, "owner")
		req.Owner = &uid
		chosen = func(o uint32, _ string, _ map[string]string) bool { return o == uid }
	case "turns":
		chosen = func(uint32, string, map[string]string) bool { return false }
		for range rapid.IntRange(1, 3).Draw(w.rt, "how many") {
			req.Turns = append(req.Turns, pick(w, "turn", w.turns).ID)
		}
	}
	w.settle()
	sees := func(owner uint32) bool { return g.uid == 0 || g.uid == owner }
	var doomed []*turn
	for _, t := range w.open() {
		if sees(t.Owner) && (slices.Contains(req.Turns, t.ID) || chosen(t.Owner, t.Session, t.Labels)) {
			doomed = append(doomed, t)
		}
	}
	req.Jobs = req.Turns == nil && !slices.ContainsFunc(doomed, func(t *turn) bool { return len(t.clocks) > 0 }) && w.chance(2, "jobs")
	for _, t := range doomed {
		if !req.DryRun {
			t.asked[api.ReasonStop], t.must, t.jobsToo = true, true, req.Jobs
		}
	}
	ctx, cancel := w.soon()
	defer cancel()
	a, err := g.AbandonMany(ctx, req)
	w.say("abandon many by uid %d %s: %d receipts, %d refused (%v)", g.uid, sayIt(req), len(a.Receipts), len(a.Refused), err)
	if forbidden := req.Owner != nil && !sees(*req.Owner); forbidden || err != nil {
		if !forbidden || !api.ErrForbidden.Is(err) {
			w.fatal("abandon many: %v", err)
		}
		return
	}
	if req.Jobs && !req.DryRun {
		for _, j := range w.jobs {
			if sees(j.Owner) && chosen(j.Owner, j.Session, j.Labels) {
				for _, k := range j.alive() {
					k.end()
				}
			}
		}
	}
}

// stranger asks for a turn of somebody else's, or for none: refused, and nothing
// is touched.
func (w *scene) stranger(*rapid.T) {
	t := pick(w, "turn", w.turns)
	g := pick(w, "gateway", w.gateways[1:])
	if g.uid == t.Owner {
		w.rt.Skip("his own")
	}
	id := rapid.SampledFrom([]string{t.ID, t.ID[:len(t.ID)-1], "*", "%", "..", "", " "}).Draw(w.rt, "id")
	ctx, cancel := w.soon()
	defer cancel()
	_, ferr := g.Finish(ctx, id, api.FinishRequest{})
	_, aerr := g.Abandon(ctx, id, api.AbandonRequest{Jobs: true, Leftovers: true})
	_, zerr := g.Freeze(ctx, id, 0)
	_, perr := g.Promote(ctx, id, "p1", api.PromoteRequest{})
	_, eerr := g.EndProcess(ctx, id, "p1", api.EndProcessRequest{})
	many, merr := g.AbandonMany(ctx, api.AbandonManyRequest{Turns: []string{id}, Jobs: true})
	w.say("a stranger, uid %d, asks for %q of %s", g.uid, id, t)
	if ferr == nil || aerr == nil || zerr == nil || perr == nil || eerr == nil || (merr == nil && (len(many.Receipts) > 0 || len(many.Refused) != 1)) {
		w.fatal("a stranger was not refused %q: %v, %v, %v, %v, %v, %+v %v", id, ferr, aerr, zerr, perr, eerr, many, merr)
	}
}

// endProcess ends a launch with its descendants, or only those.
func (w *scene) endProcess(*rapid.T) {
	var all []*launch
	for _, t := range w.turns {
		all = append(all, t.launches...)
	}
	l := pick(w, "launch", all)
	req := api.EndProcessRequest{DescendantsOnly: w.chance(2, "descendants"), GraceMS: w.grace(), DryRun: w.chance(5, "dry run")}
	w.settle()
	of := l.job
	var doomed []*token
	for _, k := range l.tokens {
		if !k.gone && k.job == of && (k != l.leader() || !req.DescendantsOnly) {
			doomed = append(doomed, k)
		}
	}
	ctx, cancel := w.soon()
	defer cancel()
	a, err := w.svc.EndProcess(ctx, l.turn.ID, l.id, req)
	w.say("end %s/%s %s: %+v (%v)", l.turn.ID, l.id, sayIt(req), a.Status, err)
	if err != nil {
		w.refused(l.turn, "end "+l.id, err)
	}
	for _, k := range doomed {
		if !req.DryRun && err == nil {
			k.end()
		}
	}
	l.turn.amid()
	if !a.Complete && !req.DryRun {
		w.fatal("end %s/%s: %+v", l.turn.ID, l.id, a)
	}
}

// rehearse asks what an ending would do; nothing happens.
func (w *scene) rehearse(*rapid.T) {
	t := pick(w, "turn", w.open())
	ctx, cancel := w.soon()
	defer cancel()
	p, perr := w.as(t).Plan(ctx, t.ID, api.AbandonRequest{Jobs: w.chance(2, "jobs")})
	y, yerr := w.as(t).Why(ctx, t.ID)
	w.say("rehearse %s: %d targets (%v, %v)", t, len(p.Targets), perr, yerr)
	if perr != nil || yerr != nil {
		w.fatal("rehearse %s: %v, %v", t, perr, yerr)
	}
	if p.State != api.StateOpen || y.State != api.StateOpen {
		return
	}
	for _, k := range t.work() {
		if pid := k.pid(); !slices.ContainsFunc(p.Targets, func(g api.Target) bool { return g.PID == pid && g.Job == "" }) && k.locked() && len(t.may()) == 0 {
			w.fatal("the plan for %s does not have %s: %+v", t, names([]*token{k}), p.Targets)
		}
	}
}
