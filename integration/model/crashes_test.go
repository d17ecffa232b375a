package model

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pinfold.dev/api"
	"pinfold.dev/pidfd"
)

// killGateway ends a gateway with SIGKILL; the turns that are bound to it know
// what that means. Another one takes its place.
func (w *scene) killGateway(*rapid.T) {
	i := rapid.IntRange(0, len(w.gateways)-1).Draw(w.rt, "gateway")
	g := w.gateways[i]
	w.say("the gateway of uid %d is killed", g.uid)
	for _, t := range w.open() {
		if t.by == g && t.Client.Bind == api.BindProcess && t.Client.OnGone != api.OnGoneDetach {
			after := time.Duration(t.Client.AfterMS) * time.Millisecond
			t.clocks[api.ReasonClientGone] = &clock{limit: after, from: t.at().Add(after)}
		}
	}
	g.kill()
	var err error
	if w.gateways[i], err = newGateway(w.svc, g.uid); err != nil {
		w.fatal("start a gateway: %v", err)
	}
}

// killKeeper ends a turn's keeper with SIGKILL: nothing else changes, except
// that nothing more can be launched.
func (w *scene) killKeeper(*rapid.T) {
	var all []*turn
	for _, t := range w.open() {
		if t.keeper {
			all = append(all, t)
		}
	}
	t := pick(w, "turn", all)
	h, err := pidfd.Open(t.KeeperPID)
	if err != nil {
		w.settle()
		if !t.over {
			w.fatal("the keeper of %s: %v", t, err)
		}
		return
	}
	defer h.Close()
	if at, err := h.CgroupPath(); err != nil || !strings.HasSuffix(at, "/keeper") || !strings.Contains(at, filepath.Base(t.Cgroup)) {
		w.rt.Skip("it is going")
	}
	w.say("the keeper of %s is killed", t)
	t.keeper = false
	if err := h.Signal(syscall.SIGKILL); err != nil {
		w.say("%v", err)
	}
}

// restart kills the service, lets some time pass, and starts the next one.
func (w *scene) restart(*rapid.T) {
	d := time.Duration(rapid.IntRange(0, 500).Draw(w.rt, "ms")) * time.Millisecond
	w.say("the service is killed; the next one comes after %v", d)
	w.svc.kill()
	w.comeBack(d)
}

func (w *scene) comeBack(d time.Duration) {
	w.down = true
	for _, t := range w.open() { // what a clock had begun to end: why could not be written down
		t.asked[api.ReasonOperator] = t.asked[api.ReasonOperator] || t.due()
	}
	time.Sleep(d)
	if late := w.differ(); len(late) > 0 && !w.ending() {
		w.fatal("without a service, they have to live, and do not: %s", names(late))
	}
	for _, g := range w.gateways {
		g.Close()
	}
	if err := w.svc.start(); err != nil {
		w.fatal("start the service again: %v", err)
	}
	w.down = false
}

// ending tells that something may have been ended just before the service was
// killed.
func (w *scene) ending() bool {
	return slices.ContainsFunc(w.turns, func(t *turn) bool { return !t.over && len(t.may()) > 0 || t.over && !t.leftDue.IsZero() }) ||
		slices.ContainsFunc(w.jobs, func(j *job) bool { return !j.ended && !j.due.IsZero() && time.Now().After(j.due) })
}

// crash kills the service while it does something.
func (w *scene) crash(*rapid.T) {
	t := pick(w, "turn", w.open())
	if t.frozen {
		w.rt.Skip("frozen")
	}
	what := rapid.SampledFrom([]string{"finish", "abandon", "launch"}).Draw(w.rt, "what")
	at := time.Duration(rapid.IntRange(0, 4000).Draw(w.rt, "us")) * time.Microsecond
	s := w.program("", 1)
	w.say("the service is killed %v into: %s %s", at, what, t)
	ctx, cancel := w.soon()
	defer cancel()
	var err error
	var wg sync.WaitGroup
	switch what {
	case "finish":
		t.asked[api.ReasonFinished] = true
		wg.Go(func() { _, err = w.svc.Finish(ctx, t.ID, api.FinishRequest{}) })
	case "abandon":
		t.asked[api.ReasonStop], t.asked[api.ReasonOperator] = true, true // as in comeBack
		wg.Go(func() { _, err = w.svc.Abandon(ctx, t.ID, api.AbandonRequest{}) })
	case "launch":
		wg.Go(func() { _, err = w.svc.Launch(ctx, t.ID, w.request(s)) })
	}
	time.Sleep(at)
	w.svc.kill()
	wg.Wait()
	if err == nil && what != "launch" {
		t.must = true // it was told that it is over
	}
	w.comeBack(0)
	switch what {
	case "launch":
		w.recovered(t, s, err)
	case "abandon":
		w.cutShort(t)
	}
}

// cutShort allows for an abandon that has killed, and of which nothing else was
// done before the service died: whoever asked got no answer, and asks again. By then
// a clock may have ended the turn, by a rule that would have kept who was killed.
func (w *scene) cutShort(t *turn) {
	w.settleTurn(t)
	for _, k := range t.work() {
		if !k.locked() {
			k.end()
		}
	}
}

// recovered finds out whether a launch took place whose answer was lost.
func (w *scene) recovered(t *turn, s spec, told error) {
	ctx, cancel := w.soon()
	defer cancel()
	l, err := w.svc.Processes(ctx, t.ID)
	if err != nil {
		w.fatal("list what was launched in %s: %v", t, err)
	}
	for _, p := range l.Processes {
		if p.Labels["token"] == filepath.Base(s.File) || slices.ContainsFunc(p.Argv, func(a string) bool { return strings.Contains(a, s.File) }) {
			if p.Status.State == api.ProcessRunning || told == nil {
				w.enter(t, p, s)
				return
			}
			w.say("it is told as %+v", p.Status)
		}
	}
	if told == nil {
		w.fatal("a launch that was answered is not there any more: %+v", l)
	}
	for _, k := range plant(s, nil, &launch{turn: t}).all() {
		k.gone = true // what is not listed does not run
		w.tokens = append(w.tokens, k)
	}
}

// clash has several things happen to a turn at once. One ending stands.
func (w *scene) clash(*rapid.T) {
	t := pick(w, "turn", w.open())
	w.settle()
	if t.over || t.frozen || w.alive() > mostTokens {
		w.rt.Skip("not now")
	}
	const kinds = 5 // finish, abandon, abandon, launch, promote
	delay := rapid.SliceOfN(rapid.IntRange(0, 3000), kinds, kinds).Draw(w.rt, "us")
	take := rapid.SliceOfN(rapid.Bool(), kinds, kinds).Draw(w.rt, "take part")
	s := w.program("", 1)
	var leaf *launch
	for _, l := range t.launches {
		if len(l.leaf()) > 0 {
			leaf = l
		}
	}
	take[4] = take[4] && leaf != nil
	w.say("all at once in %s: %v after %v us", t, take, delay)
	ctx, cancel := w.soon()
	defer cancel()
	t.clashed = true
	var wg sync.WaitGroup
	at := func(i int, f func() error) *error {
		err := errors.New("it took no part")
		if take[i] {
			wg.Go(func() {
				time.Sleep(time.Duration(delay[i]) * time.Microsecond)
				err = f()
			})
		}
		return &err
	}
	var p api.Process
	var j api.Job
	asked := time.Now()
	ends := []*error{
		at(0, func() error { _, err := w.svc.Finish(ctx, t.ID, api.FinishRequest{}); return err }),
		at(1, func() error { _, err := w.svc.Abandon(ctx, t.ID, api.AbandonRequest{}); return err }),
		at(2, func() error {
			_, err := w.as(t).Abandon(ctx, t.ID, api.AbandonRequest{Reason: api.ReasonIdle})
			return err
		}),
	}
	launched := at(3, func() (err error) { p, err = w.svc.Launch(ctx, t.ID, w.request(s)); return err })
	promoted := at(4, func() (err error) { j, err = w.svc.Promote(ctx, t.ID, leaf.id, api.PromoteRequest{}); return err })
	wg.Wait()
	w.say("they say: %v, %v, %v, %v, %v", *ends[0], *ends[1], *ends[2], *launched, *promoted)
	for i, why := range []api.Reason{api.ReasonFinished, api.ReasonStop, api.ReasonIdle} {
		if take[i] {
			t.asked[why], t.must = true, true
			if *ends[i] != nil {
				w.fatal("an ending got no receipt: %v", *ends[i])
			}
		}
	}
	if *promoted == nil {
		w.made(leaf, leaf.leaf(), j, asked)
		leaf.job = w.jobs[len(w.jobs)-1]
	}
	if *launched == nil {
		w.enter(t, p, s)
	} else if take[3] {
		for _, k := range plant(s, nil, &launch{turn: t}).all() {
			k.gone = true
			w.tokens = append(w.tokens, k)
		}
	}
}

// TestModel drives random scenes for a while.
func TestModel(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make cgroups and to be several users")
	}
	end := time.Now().Add(howLong(t))
	once := seeded()
	for n := 0; n == 0 || time.Now().Before(end) && !once; n++ {
		ok := t.Run("scene", func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				w := newScene(t, rt)
				defer w.drop()
				w.prelude()
				rt.Repeat(w.steps())
				w.close()
				t.Logf("%d steps, %d turns, %d jobs, %d processes, %v", len(w.trace), len(w.turns), len(w.jobs), len(w.tokens), time.Since(w.began).Round(time.Millisecond))
				if testing.Verbose() {
					t.Logf("the steps:\n%s", strings.Join(w.trace, "\n"))
				}
			})
		})
		if !ok {
			return
		}
	}
}

// steps are what can happen.
func (w *scene) steps() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"begin": w.begin, "launch": w.launch, "launch, too": w.launch, "launch as well": w.launch, "exit": w.exit, "pass": w.pass, "touch": w.touch,
		"freeze": w.freeze, "thaw": w.thaw, "finish": w.finish, "abandon": w.abandon, "abandon many": w.abandonMany,
		"stranger": w.stranger, "end process": w.endProcess, "rehearse": w.rehearse, "promote": w.promote, "eject": w.eject,
		"start job": w.startJob, "stop job": w.stopJob, "transfer": w.transfer, "kill gateway": w.killGateway,
		"kill keeper": w.killKeeper, "restart": w.restart, "crash": w.crash, "clash": w.clash,
		"": func(*rapid.T) { w.compare() },
	}
}
