package model

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pinfold.dev/api"
	"pinfold.dev/client"
	"pinfold.dev/integration/guard"
)

// scene is one sequence of steps with a service of its own.
type scene struct {
	t        *testing.T
	rt       *rapid.T
	svc      *service
	down     bool
	gateways []*gateway // one for each uid; a dead one is replaced
	turns    []*turn
	jobs     []*job
	tokens   []*token
	trace    []string
	began    time.Time
	files    int
	rolls    uint64
}

// uids are the users of a scene; root sees everybody's.
func uids() []uint32 { return []uint32{0, 54321, 54322} }

func newScene(t *testing.T, rt *rapid.T) *scene {
	w := &scene{t: t, rt: rt, began: time.Now()}
	var err error
	if w.svc, err = newService(); err != nil {
		w.fatal("start a service: %v", err)
	}
	for _, uid := range uids() {
		g, err := newGateway(w.svc, uid)
		if err != nil {
			w.fatal("start a gateway: %v", err)
		}
		w.gateways = append(w.gateways, g)
	}
	return w
}

// say notes a step, for whoever reads of a failure.
func (w *scene) say(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf("%7.3f ", time.Since(w.began).Seconds())+fmt.Sprintf(format, args...))
}

// fatal ends the scene.
func (w *scene) fatal(format string, args ...any) {
	w.t.Helper()
	msg := fmt.Sprintf(format, args...)
	w.t.Logf("%s\nafter these steps:\n%s\nservice log:\n%s", msg, strings.Join(w.trace, "\n"), w.svc.tail())
	w.rt.Fatalf("%s", msg)
}

// soon bounds one call.
func (w *scene) soon() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), patience(time.Minute))
}

// open are the turns that the model has for open.
func (w *scene) open() (out []*turn) {
	for _, t := range w.turns {
		if !t.over {
			out = append(out, t)
		}
	}
	return out
}

// pick draws one of several; there being none makes the step none.
func pick[T any](w *scene, what string, all []T) T {
	if len(all) == 0 {
		w.rt.Skip("no", what)
	}
	return all[w.roll(len(all), what)]
}

// chance is true once in n times.
func (w *scene) chance(n int, what string) bool { return w.roll(n, what) == 0 }

// roll is one of the numbers below n, each as often: rapid itself prefers small
// ones, which would mean the same turns and users again and again.
func (w *scene) roll(n int, what string) int {
	w.rolls++
	x := rapid.Uint64().Draw(w.rt, what) + w.rolls*0x9e3779b97f4a7c15 // from here on, splitmix64
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return int((x ^ x>>31) % uint64(n))
}

// as is how the turn's owner, or root, asks.
func (w *scene) as(t *turn) *client.Client {
	if t != nil && !t.by.dead {
		return t.by.Client
	}
	return w.svc.Client
}

// refused deals with the error of a call to a turn: that it is over is no
// mistake where the model says that it may be.
func (w *scene) refused(t *turn, what string, err error) {
	if errors.Is(err, api.ErrTurnOver) && len(t.may()) > 0 {
		w.say("%s: over already", what)
		return
	}
	if errors.Is(err, api.ErrNotFound) && (!t.over && len(t.may()) > 0 || t.leftOver()) {
		w.say("%s: gone already", what)
		return
	}
	if errors.Is(err, api.ErrKeeperLost) && !t.keeper && len(t.work()) == 0 {
		w.say("%s: there is nobody", what) // an empty scope goes with its keeper
		return
	}
	w.fatal("%s in %s: %v", what, t, err)
}

// settle brings the model to where the service is: turns and jobs whose time
// has come end, others must not have.
func (w *scene) settle() {
	if w.down {
		return
	}
	for _, t := range w.turns {
		if !t.over {
			w.settleTurn(t)
		}
		w.settleLeftovers(t)
	}
	for _, j := range w.jobs {
		if !j.ended {
			w.settleJob(j)
		}
	}
}

func (w *scene) settleTurn(t *turn) {
	ctx, cancel := w.soon()
	defer cancel()
	bound := t.bound()
	v, err := w.svc.Turn(ctx, t.ID)
	if err == nil && v.State == api.StateOpen && !bound {
		if v.Frozen != t.frozen {
			w.fatal("%s is frozen: %v", t, v.Frozen)
		}
		t.asked = map[api.Reason]bool{} // they came to nothing
		return
	}
	if err == nil {
		v, err = w.svc.WaitTurn(ctx, t.ID)
	}
	if err != nil {
		w.fatal("%s does not end, and has to: %v (it is %s, %s)", t, err, v.State, v.Reason)
	}
	r, err := w.svc.Receipt(ctx, t.ID)
	if err == nil && t.wentWithKeeper(r) {
		t.ended(r)
		w.say("%s was found gone", t.ID)
		return
	}
	want := api.StateAbandoned
	if r.Reason == api.ReasonFinished {
		want = api.StateFinished
	}
	if err != nil || !slices.Contains(t.may(), r.Reason) || !r.Complete || r.State != want || v.State != want || v.Reason != r.Reason {
		w.fatal("%s ended %s for %s, complete %v, it may for %q: %+v (%v)", t, r.State, r.Reason, r.Complete, t.may(), r, err)
	}
	t.ended(r)
	w.say("%s ended for %s, %d leftovers", t.ID, r.Reason, len(t.work()))
	if len(r.Leftovers) > len(t.work()) && !t.clashed { // else some may have become jobs since
		w.fatal("%s has %d leftovers, the model %s", t, len(r.Leftovers), names(t.work()))
	}
}

// settleLeftovers waits for what a turn left running to go, once its time has
// come.
func (w *scene) settleLeftovers(t *turn) {
	if !t.leftOver() {
		return
	}
	for _, k := range t.work() {
		w.waitGone(k, "a leftover whose time is over")
		k.end()
	}
	t.leftDue = time.Time{}
}

func (w *scene) waitGone(k *token, what string) {
	for end := time.Now().Add(patience(time.Minute)); k.locked(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			w.fatal("%s lives on: %s", what, names([]*token{k}))
		}
	}
}

func (w *scene) settleJob(j *job) {
	ctx, cancel := w.soon()
	defer cancel()
	if !j.late() && len(j.alive()) > 0 {
		v, err := w.svc.Job(ctx, j.ID)
		if err == nil && v.State != api.JobEnded {
			return
		}
		if err != nil || !j.late() { // by now
			w.fatal("job %s is %s for %s, and has to live: %s (%v)", j.ID, v.State, v.Reason, names(j.alive()), err)
		}
	}
	v, err := w.svc.WaitJob(ctx, j.ID, 0)
	if err != nil || v.State != api.JobEnded {
		w.fatal("job %s does not end, and has to: %s (%v)", j.ID, v.State, err)
	}
	for _, k := range j.alive() {
		k.end()
	}
	j.ended = true
	if j.listed != nil {
		j.listed.jobs = slices.DeleteFunc(j.listed.jobs, func(o *job) bool { return o == j })
	}
	w.say("job %s ended, reason %q", j.ID, v.Reason)
}

// compare looks who lives. The model is brought up to date as long as clocks can
// have ended what it had for alive.
func (w *scene) compare() {
	var late []*token
	for range 20 {
		w.settle()
		if late = w.differ(); len(late) == 0 {
			break
		}
	}
	if len(late) > 0 {
		w.fatal("they have to live, and do not: %s", names(late))
	}
	if !run.canary.locked() {
		w.fatal("the canary is dead")
	}
	if _, err := os.Stat(w.svc.dir + "/run"); err != nil {
		w.fatal("the service's directory: %v", err)
	}
}

// differ tells which tokens are to live, and do not. One that is to be gone and
// lives is the end of the scene.
func (w *scene) differ() (late []*token) {
	was := make([]int64, len(w.tokens))
	for i, k := range w.tokens {
		was[i] = k.size()
		switch locked := k.locked(); {
		case k.gone && locked:
			w.fatal("it has to be gone, and lives: %s", names([]*token{k}))
		case !k.gone && !locked:
			late = append(late, k)
		}
	}
	if len(late) > 0 {
		return late
	}
	time.Sleep(3 * beatEvery)
	for end := time.Now().Add(patience(time.Minute)); ; time.Sleep(beatEvery) {
		late = nil
		for i, k := range w.tokens {
			grown := k.size() > was[i]
			switch {
			case k.gone && grown:
				w.fatal("it beats, and has to be gone: %s", names([]*token{k}))
			case w.stands(k) && grown:
				w.fatal("it beats in a frozen turn: %s", names([]*token{k}))
			case !k.gone && !grown && !w.stands(k):
				late = append(late, k)
			}
		}
		if len(late) == 0 || !late[0].locked() || time.Now().After(end) {
			return late
		}
	}
}

// stands tells that a token is in a frozen turn.
func (w *scene) stands(k *token) bool {
	return k.job == nil && k.launch.turn != nil && k.launch.turn.frozen && !k.gone
}

// close ends all, and looks what is left.
func (w *scene) close() {
	ctx, cancel := context.WithTimeout(context.Background(), patience(5*time.Minute))
	defer cancel()
	zero := int64(0)
	for _, t := range w.turns {
		if _, err := w.svc.Abandon(ctx, t.ID, api.AbandonRequest{GraceMS: &zero}); err != nil {
			w.fatal("abandon %s at the end: %v", t, err)
		}
		if _, err := w.svc.Abandon(ctx, t.ID, api.AbandonRequest{GraceMS: &zero, Leftovers: true}); err != nil {
			w.fatal("end what %s left, at the end: %v", t, err)
		}
		for _, k := range t.work() {
			k.end()
		}
		t.over = true
	}
	for _, j := range w.jobs {
		if v, err := w.svc.StopJob(ctx, j.ID, api.StopJobRequest{GraceMS: &zero}); err != nil || v.State != api.JobEnded {
			w.fatal("stop job %s at the end: %s (%v)", j.ID, v.State, err)
		}
		for _, k := range j.alive() {
			k.end()
		}
	}
	if late := w.differ(); len(late) > 0 {
		w.fatal("at the end: %s", names(late))
	}
	for _, g := range w.gateways {
		g.kill()
	}
	if err := w.svc.stop(); err != nil {
		w.fatal("%v", err)
	}
}

// drop ends what a scene that has failed left.
func (w *scene) drop() {
	for _, g := range w.gateways {
		if !g.dead {
			g.kill()
		}
	}
	select {
	case <-w.svc.proc.gone:
		return
	default:
	}
	w.svc.kill()
	below, _ := filepath.Glob(run.cgroup + "/*")
	for _, dir := range below {
		if fi, err := os.Stat(dir); err == nil && fi.IsDir() {
			guard.RemoveTree(dir)
		}
	}
}
