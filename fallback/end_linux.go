package fallback

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/pidfd"
)

// End ends what is below root, and tells what came of it. What is found is
// stopped, so that it forks no more, and looked for again until nothing new is
// found; then all of it is killed; and so on, until root has no child left or a
// bound is reached. Before every signal the process is verified anew. What was
// stopped and cannot be killed goes on.
//
// Dead means everybody who ever was below root only if that is a child subreaper:
// the orphans of another go to who is above it, and are to be looked for there.
//
// Members of our own process group are not stopped: the kernel hangs up on a
// group that is orphaned while a member is stopped (setpgid(2)).
func (h *Host) End(ctx context.Context, root *Process, e Ending) Result {
	if e.MaxTime == 0 {
		e.MaxTime = 10 * time.Second
	}
	if e.MaxRounds == 0 { // who takes long to die is waited for as long as was said
		e.MaxRounds = max(1000, int(2*e.MaxTime/lastPause))
	}
	if e.MaxProcesses == 0 {
		e.MaxProcesses = 100_000
	}
	g := &ending{Ending: e, walk: newWalk(h.k, root, e.Spare, e.MaxProcesses)}
	defer g.close()
	if v, why := root.Verify(); v != api.VerdictOwned {
		g.say("the root is " + string(v) + ": what was below it cannot be found: " + fmt.Sprint(why))
		return g.account(false)
	}
	if e.Ask != 0 && g.ask(ctx) {
		return g.account(true)
	}
	return g.account(g.kill(ctx))
}

// ending is one End.
type ending struct {
	Ending
	*walk
	res Result
}

// say adds to what the outcome rests on.
func (g *ending) say(text string) { g.res.Evidence = append(g.res.Evidence, text) }

// ask asks everything to end, and tells whether all did.
func (g *ending) ask(ctx context.Context) (dead bool) {
	for g.quiet = false; !g.quiet && g.res.Rounds < min(20, g.MaxRounds); g.res.Rounds++ {
		if err := g.pass(ctx); err != nil {
			return false
		}
	}
	g.res.AskedAt = g.k.now()
	for _, n := range g.targets() {
		g.send(n, g.Ask)
		g.send(n, syscall.SIGCONT)
	}
	end := g.res.AskedAt.Add(g.Grace)
	for pause := time.Millisecond; ctx.Err() == nil; pause = min(2*pause, 50*time.Millisecond) {
		g.drop()
		if len(g.targets()) == 0 {
			if err := g.pass(ctx); err == nil && len(g.targets()) == 0 && g.dead(ctx) {
				return g.endRoot(ctx)
			}
		}
		left := end.Sub(g.k.now())
		if left <= 0 {
			return false
		}
		g.k.sleep(ctx, min(pause, left))
	}
	return false
}

// lastPause is the longest between two rounds.
const lastPause = 10 * time.Millisecond

// kill stops, looks again and kills, to a fixed point.
func (g *ending) kill(ctx context.Context) (dead bool) {
	end := g.k.now().Add(g.MaxTime)
	pause := time.Duration(0)
	for stops := 0; ; g.res.Rounds++ {
		if err := g.pass(ctx); err != nil {
			g.say(err.Error())
			g.killAll()
			return false
		}
		out := g.res.Rounds >= g.MaxRounds || !g.k.now().Before(end) || ctx.Err() != nil
		if fresh := g.stopFresh(); fresh && stops < 10 && !out {
			stops++
			continue
		}
		stops, pause = 0, min(pause+100*time.Microsecond, lastPause)
		if g.killAll() {
			pause = 100 * time.Microsecond
		}
		g.k.sleep(context.Background(), pause) // dying takes its time
		g.drop()
		if len(g.targets()) == 0 {
			if g.dead(ctx) {
				return g.endRoot(ctx)
			}
			if v, _ := g.root.Verify(); v == api.VerdictGone { // nothing more is found by waiting
				return false
			}
		}
		if out {
			g.say(fmt.Sprintf("not over after %d rounds", g.res.Rounds))
			return false
		}
	}
}

// targets are the members to be ended.
func (g *ending) targets() []*node {
	var out []*node
	for _, n := range g.held {
		if !n.Spared {
			out = append(out, n)
		}
	}
	slices.SortFunc(out, func(a, b *node) int { return a.rec.PID - b.rec.PID })
	return out
}

// stopFresh stops the members that were not yet, and tells whether there were any.
func (g *ending) stopFresh() (any bool) {
	for _, n := range g.targets() {
		if n.stopped || n.killed || n.Group == 0 || n.Group == g.k.ownGroup() {
			continue
		}
		n.stopped, any = true, true
		g.send(n, syscall.SIGSTOP)
	}
	return any
}

// killAll kills every member, and tells whether one was killed for the first time.
func (g *ending) killAll() (any bool) {
	for _, n := range g.targets() {
		if g.send(n, syscall.SIGKILL) {
			any = any || !n.killed
			n.killed = true
		} else if n.stopped && !n.killed {
			g.send(n, syscall.SIGCONT)
			n.stopped = false
		}
	}
	if g.res.KilledAt.IsZero() && any {
		g.res.KilledAt = g.k.now()
	}
	return any
}

// send verifies and signals a member. What its finding says of it is the latest.
func (g *ending) send(n *node, sig syscall.Signal) bool {
	v, why, err := n.Signal(sig)
	if v == api.VerdictGone {
		n.Ended = true
		return false // it was owned, and has ended
	}
	if n.Verdict = v; v != api.VerdictOwned || err != nil {
		n.Finding.Evidence = why
	}
	if v != api.VerdictOwned || err != nil {
		return false
	}
	if !slices.Contains(n.Signals, sig) {
		n.Signals = append(n.Signals, sig)
	}
	return true
}

// dead tells whether root has no child left but spared ones. A list that is
// empty was so at one time. One that is not is read by the kernel piece by
// piece, and can miss one when another goes meanwhile: so it has to read the same
// three times, and all in it must have ended before the second.
func (g *ending) dead(ctx context.Context) bool {
	var first []int
	for i := range 3 {
		list, err := g.rootsChildren(ctx)
		if err != nil {
			g.note(fmt.Sprintf("whether the root has a child left cannot be told: %v", err))
			return false
		}
		if v, why := g.root.Verify(); v != api.VerdictOwned { // then others have its children
			g.note(fmt.Sprintf("the root is %s: whose children are left cannot be told: %v", v, why))
			return false
		}
		if len(list) == 0 {
			return true
		}
		slices.Sort(list)
		if i == 0 {
			first = list
			if slices.ContainsFunc(list, func(pid int) bool { return !g.over(pid) }) {
				return false
			}
		} else if !slices.Equal(first, list) {
			return false
		}
	}
	return true
}

func (g *ending) rootsChildren(ctx context.Context) ([]int, error) {
	if g.Word != nil {
		return g.Word(ctx)
	}
	return g.k.children(g.root.ref)
}

// over tells whether a child of the root has ended, or is spared.
func (g *ending) over(pid int) bool {
	if n := g.held[pid]; n != nil && n.Spared {
		return n.ref.life() != pidfd.Reaped
	}
	r, err := g.k.open(pid)
	if err != nil {
		return errors.Is(err, pidfd.ErrGone)
	}
	defer r.close()
	life := r.life()
	return life == pidfd.Exited || life == pidfd.Reaped
}

// endRoot ends the root itself, if that is wanted. Spared children of it become
// others'.
func (g *ending) endRoot(ctx context.Context) bool {
	g.res.DeadAt = g.k.now()
	if !g.Root {
		return true
	}
	v, why, err := g.root.Signal(syscall.SIGKILL)
	if v == api.VerdictOwned && err == nil {
		ctx, cancel := context.WithTimeout(ctx, g.MaxTime)
		defer cancel()
		err = g.root.Wait(ctx)
	}
	if err != nil || v != api.VerdictOwned && v != api.VerdictGone {
		g.say(fmt.Sprintf("the root was not ended: %s: %v %v", v, why, err))
		return false
	}
	return true
}
