package model

import (
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"pgregory.net/rapid"

	"pinfold.dev/api"
)

const (
	mostTurns  = 6
	mostTokens = 40
)

func (w *scene) session() string {
	return []string{"", "s1", "s2"}[w.roll(3, "session")]
}

func (w *scene) labels() map[string]string {
	return rapid.SampledFrom([]map[string]string{nil, {"k": "a"}, {"k": "b", "l": "a"}}).Draw(w.rt, "labels")
}

// sometimes is a time of up to two seconds, mostly none.
func (w *scene) sometimes(what string) int64 {
	if !w.chance(5, what) {
		return 0
	}
	return rapid.Int64Range(300, 2500).Draw(w.rt, what+" ms")
}

// begin opens a turn.
func (w *scene) begin(*rapid.T) {
	if len(w.open()) >= mostTurns {
		w.rt.Skip("enough turns")
	}
	w.begin1()
}

func (w *scene) begin1() *turn {
	g := pick(w, "gateway", w.gateways)
	req := api.BeginRequest{Session: w.session(), Labels: w.labels(), WallMS: w.sometimes("wall"), LeaseMS: w.sometimes("lease"),
		IdleMS: w.sometimes("idle"), LeftoversMaxMS: w.sometimes("leftovers")}
	req.Supersede = req.Session != "" && w.chance(3, "supersede")
	if req.IdleMS > 0 {
		req.IdleBy = []api.Activity{api.ActivityTouch}
	}
	if w.chance(4, "reap") {
		req.Leftovers = api.LeftoversReap
	}
	if w.chance(3, "bind") {
		req.Client = api.Client{Bind: api.BindProcess, AfterMS: w.sometimes("after")}
		if w.chance(3, "detach") {
			req.Client.OnGone = api.OnGoneDetach
		}
	}
	if w.chance(4, "policy") {
		why := rapid.SampledFrom([]api.Reason{api.ReasonStop, api.ReasonWall, api.ReasonIdle, api.ReasonClientGone, api.ReasonSuperseded}).Draw(w.rt, "why")
		fate := rapid.SampledFrom([]api.Fate{api.FateEnd, api.FateKeep})
		req.Policy = api.EndPolicy{why: {Processes: fate.Draw(w.rt, "processes"), Jobs: fate.Draw(w.rt, "jobs")}}
	}
	return w.beginAs(g, req)
}

func (w *scene) beginAs(g *gateway, req api.BeginRequest) *turn {
	ctx, cancel := w.soon()
	defer cancel()
	asked := time.Now()
	v, err := g.Begin(ctx, req)
	if err != nil {
		w.fatal("begin: %v", err)
	}
	if v.Grade != run.grade || v.Owner != g.uid {
		w.fatal("the turn is held at grade %s, not %s, uid %d: %q", v.Grade, run.grade, v.Owner, v.Degraded)
	}
	if err := run.guard.Held(v.Cgroup); err != nil {
		w.fatal("%v", err)
	}
	t := &turn{Turn: v, by: g, policy: api.DefaultPolicy().With(req.Policy), clocks: map[api.Reason]*clock{}, asked: map[api.Reason]bool{}, keeper: true}
	if req.Leftovers == api.LeftoversReap {
		t.policy[api.ReasonFinished] = api.EndRule{Processes: api.FateEnd, Jobs: t.policy[api.ReasonFinished].Jobs}
	}
	for why, ms := range map[api.Reason]int64{api.ReasonWall: req.WallMS, api.ReasonLeaseExpired: req.LeaseMS, api.ReasonIdle: req.IdleMS} {
		if ms > 0 {
			t.clocks[why] = &clock{limit: time.Duration(ms) * time.Millisecond, from: asked.Add(time.Duration(ms) * time.Millisecond)}
		}
	}
	w.say("begin %s by uid %d: %s", v.ID, g.uid, sayIt(req))
	if req.Supersede && req.Session != "" {
		for _, o := range w.open() {
			if o.Owner == g.uid && o.Session == req.Session {
				o.asked[api.ReasonSuperseded], o.must = true, true
			}
		}
	}
	w.turns = append(w.turns, t)
	return t
}

// program draws what a launch is to be.
func (w *scene) program(how string, depth int) spec {
	s := spec{How: how, Deaf: w.chance(4, "deaf"), File: filepath.Join(w.svc.dir, "tokens", fmt.Sprintf("%d.%d", len(w.tokens), w.serial()))}
	for range rapid.IntRange(0, depth).Draw(w.rt, "kids") {
		s.Kids = append(s.Kids, w.program(rapid.SampledFrom([]string{"fork", "setsid", "twice"}).Draw(w.rt, "how"), depth-1))
	}
	return s
}

// serial numbers files.
func (w *scene) serial() int { w.files++; return w.files }

func (w *scene) request(s spec) api.LaunchRequest {
	k := token{spec: s}
	return api.LaunchRequest{Argv: []string{run.exe, k.json()}, Cwd: "/", Env: []string{playEnv + "=token", "GOMAXPROCS=1"},
		Labels: map[string]string{"token": filepath.Base(s.File)}}
}

func (w *scene) alive() (n int) {
	for _, k := range w.tokens {
		if !k.gone {
			n++
		}
	}
	return n
}

// prelude opens some turns with something in them.
func (w *scene) prelude() {
	for range rapid.IntRange(1, 4).Draw(w.rt, "turns") {
		t := w.begin1()
		for range rapid.IntRange(0, 2).Draw(w.rt, "launches") {
			if !t.over {
				w.launchIn(t)
			}
		}
	}
}

// launch starts a program in a turn.
func (w *scene) launch(*rapid.T) {
	t := pick(w, "turn", w.open())
	if w.alive() > mostTokens {
		w.rt.Skip("enough processes")
	}
	w.launchIn(t)
}

func (w *scene) launchIn(t *turn) {
	s := w.program("", 2)
	ctx, cancel := w.soon()
	defer cancel()
	asked := time.Now()
	p, err := w.as(t).Launch(ctx, t.ID, w.request(s))
	w.say("launch %s in %s: %v", s.File, t, err)
	switch {
	case err == nil && t.frozen:
		w.fatal("%s launched in a frozen turn", p.ID)
	case err != nil && (t.frozen || !t.keeper) && (api.ErrUnavailable.Is(err) || api.ErrKeeperLost.Is(err)):
	case err != nil:
		w.refused(t, "launch", err)
	default:
		t.touched(asked, api.ReasonIdle)
		w.enter(t, p, s)
	}
}

// enter makes the model know a launch, and waits until all of it is there.
func (w *scene) enter(t *turn, p api.Process, s spec) {
	l := &launch{turn: t, id: p.ID}
	l.tokens = plant(s, nil, l).all()
	t.launches = append(t.launches, l)
	w.tokens = append(w.tokens, l.tokens...)
	w.awaitUp(l.tokens, func() {
		if !t.over && t.bound() {
			w.settleTurn(t)
		}
		w.settleLeftovers(t)
	})
}

// awaitUp waits for tokens to beat, but for those that have been ended meanwhile.
func (w *scene) awaitUp(ks []*token, settle func()) {
	for end := time.Now().Add(patience(time.Minute)); ; time.Sleep(2 * time.Millisecond) {
		settle()
		if !slices.ContainsFunc(ks, func(k *token) bool { return !k.gone && !k.up() }) {
			return
		}
		if time.Now().After(end) {
			w.fatal("it does not start: %s", names(ks))
		}
	}
}

// exit has a process end by itself; what it has started lives on.
func (w *scene) exit(*rapid.T) {
	var all []*launch
	for _, t := range w.turns {
		for _, l := range t.launches {
			if !l.leader().gone && (!w.stands(l.leader())) {
				all = append(all, l)
			}
		}
	}
	for _, j := range w.jobs {
		if l := j.tokens[0].launch; l.turn == nil && !l.leader().gone {
			all = append(all, l)
		}
	}
	l := pick(w, "launch", all)
	id := ""
	if l.turn != nil {
		id = l.turn.ID
	} else {
		id = l.leader().job.Turn
	}
	ctx, cancel := w.soon()
	defer cancel()
	_, err := w.svc.Signal(ctx, id, l.id, api.SignalRequest{Signal: "USR1"})
	w.say("exit %s/%s: %v", id, l.id, err)
	if err != nil {
		w.settle()
		if !l.leader().gone {
			w.fatal("signal %s/%s: %v", id, l.id, err)
		}
		return
	}
	w.waitGone(l.leader(), "a process that was told to exit")
	l.leader().end()
	l.turn.amid()
}

// pass lets time pass.
func (w *scene) pass(*rapid.T) {
	d := time.Duration(rapid.IntRange(10, 800).Draw(w.rt, "ms")) * time.Millisecond
	w.say("%v pass", d)
	time.Sleep(d)
}

// touch renews lease and idle.
func (w *scene) touch(*rapid.T) {
	t := pick(w, "turn", w.open())
	at := t.at()
	ctx, cancel := w.soon()
	defer cancel()
	_, err := w.as(t).Touch(ctx, t.ID, 0)
	w.say("touch %s: %v", t.ID, err)
	if err != nil {
		w.refused(t, "touch", err)
		return
	}
	t.touched(at, api.ReasonLeaseExpired, api.ReasonIdle)
}

// freeze stops a turn.
func (w *scene) freeze(*rapid.T) {
	t := pick(w, "turn", w.open())
	ctx, cancel := w.soon()
	defer cancel()
	asked, was := time.Now(), t.frozen
	_, err := w.as(t).Freeze(ctx, t.ID, 0)
	w.say("freeze %s: %v", t, err)
	switch {
	case err != nil:
		w.refused(t, "freeze", err)
	case !was:
		t.frozen, t.stoodLo, t.stoodHi = true, asked, time.Now()
	}
}

// thaw lets it go on.
func (w *scene) thaw(*rapid.T) {
	var all []*turn
	for _, t := range w.open() {
		if t.frozen {
			all = append(all, t)
		}
	}
	t := pick(w, "turn", all)
	ctx, cancel := w.soon()
	defer cancel()
	asked := time.Now()
	_, err := w.as(t).Thaw(ctx, t.ID, 0)
	w.say("thaw %s: %v", t, err)
	if err != nil {
		w.refused(t, "thaw", err)
		return
	}
	t.thawed(asked)
}
