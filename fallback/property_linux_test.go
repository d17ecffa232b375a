package fallback

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
)

// tally counts what histories came to, so that none of it is never met.
type tally struct {
	mu sync.Mutex
	n  map[string]int
}

func (t *tally) add(what string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n[what]++
}

// TestHistories: whatever happens at any moment, no signal reaches a process that
// is not ours, none that lives is said to be gone, and no ending is dead while
// what it was to end lives. Ten million steps, the same each time; with
// PINFOLD_TEST_LONG=1 more, and others each time.
func TestHistories(t *testing.T) {
	t.Parallel()
	want, seed := int64(rounds(10_000_000, 200_000_000)), uint64(rounds(1, int(time.Now().UnixNano())))
	var steps, next atomic.Int64
	met := &tally{n: map[string]int{}}
	var work sync.WaitGroup
	for range 2 {
		work.Go(func() {
			for steps.Load() < want && !t.Failed() {
				n := next.Add(1)
				done, err := history(rand.New(rand.NewPCG(seed, uint64(n))), met)
				if err != nil {
					t.Errorf("history %d of seed %d: %v", n, seed, err)
				}
				steps.Add(int64(done))
			}
		})
	}
	work.Wait()
	for _, what := range []string{"end dead", "end unconfirmed", "recall owned", "recall gone", "recall foreign", "recall unverifiable",
		"group owned", "group gone", "group foreign", "group unverifiable", "members", "spared"} {
		if met.n[what] == 0 {
			t.Errorf("no history met %q", what)
		}
	}
	t.Logf("%d steps in %d histories: %v", steps.Load(), next.Load(), met.n)
}

// history plays one, and tells how many steps it had.
func history(rng *rand.Rand, met *tally) (int, error) {
	w := newWorld(rng)
	h := &Host{w}
	for range 4 {
		w.allowed = func(*mproc) bool { return false }
		var err error
		switch rng.IntN(4) {
		case 0, 1:
			err = w.playRecall(h, met)
		case 2:
			err = w.playGroup(h, met)
		case 3:
			err = w.playEnd(h, met)
		}
		if err == nil && w.violation != "" {
			err = fmt.Errorf("%s", w.violation)
		}
		if err != nil {
			return w.steps, err
		}
	}
	return w.steps, nil
}

// pick chooses a living process.
func (w *world) pick() *mproc {
	for {
		if p := w.order[w.rng.IntN(len(w.order))]; p.pid > 1 && !p.zombie {
			return p
		} else if w.rng.IntN(100) == 0 {
			return w.fork(w.procs[1])
		}
	}
}

// hold holds a process of which one knows that it is the one.
func (w *world) hold(h *Host, p *mproc) *Process {
	if p == nil {
		return nil
	}
	w.calm = true
	defer func() { w.calm = false }()
	blind := w.blind
	w.blind = 0
	defer func() { w.blind = blind }()
	q, err := h.Hold(p.pid)
	if err != nil {
		return nil
	}
	return q
}

func (w *world) later() {
	for range w.rng.IntN(60) {
		w.event()
	}
}

// playRecall records a process, and later signals whom the record means.
func (w *world) playRecall(h *Host, met *tally) error {
	p := w.pick()
	held := w.hold(h, p)
	if held == nil {
		return nil
	}
	w.later()
	w.allowed = func(q *mproc) bool { return q == p }
	q, v, why := h.Recall(held.Identity())
	met.add("recall " + string(v))
	if v == api.VerdictGone && !p.zombie || v == api.VerdictForeign && !p.zombie {
		return fmt.Errorf("%s, and it lives: %v", v, why)
	}
	if (v == api.VerdictOwned) != (q != nil) {
		return fmt.Errorf("%s with %v", v, q)
	}
	if q == nil {
		return nil
	}
	if q.ref.(*mref).p != p {
		return fmt.Errorf("another process is owned: %v", why)
	}
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		w.later()
		if v, why, err := q.Signal(sig); err == nil && v == api.VerdictGone && !p.zombie {
			return fmt.Errorf("signal: gone, and it lives: %v", why)
		}
	}
	return nil
}

// playGroup records a group while its leader is proven, and later signals it.
func (w *world) playGroup(h *Host, met *tally) error {
	p := w.pick()
	if p != nil && p.group != p.pid {
		w.newGroup(p)
	}
	for range 3 { // so that there are witnesses
		if q := w.fork(p); q == nil {
			break
		}
	}
	leader := w.hold(h, p)
	if leader == nil {
		return nil
	}
	uid := p.groupUID
	rec, err := h.RecordGroup(leader)
	if err != nil {
		return nil
	}
	if w.rng.IntN(2) == 0 {
		w.exit(p)
	}
	if w.rng.IntN(2) == 0 {
		w.aim = rec.Leader.PID
		defer func() { w.aim = 0 }()
	}
	w.later()
	w.allowed = func(q *mproc) bool { _, was := q.was[uid]; return was }
	res := h.SignalGroup(rec, nil, syscall.SIGKILL)
	met.add("group " + string(res.Verdict))
	if w.violation != "" {
		return fmt.Errorf("%s; group %d: %s, %q; witnesses %+v", w.violation, uid, res.Verdict, res.Evidence, rec)
	}
	if len(res.Members) > 0 {
		met.add("members")
	}
	if res.Verdict == api.VerdictGone || res.Verdict == api.VerdictForeign {
		for _, q := range w.order {
			if q.groupUID == uid && !q.zombie {
				return fmt.Errorf("the group is %s, and %d lives in it: %v", res.Verdict, q.pid, res.Evidence)
			}
		}
	}
	return nil
}

// playEnd ends what is below root, which goes on forking meanwhile.
func (w *world) playEnd(h *Host, met *tally) error {
	root := w.hold(h, w.root)
	if root == nil || w.root.zombie {
		return nil
	}
	for range 4 {
		w.fork(w.root)
	}
	w.fenced = true
	defer func() { w.fenced = false }()
	spared := map[*mproc]bool{}
	e := Ending{MaxRounds: 40}
	if w.rng.IntN(3) == 0 {
		e.Spare = func(m Member) bool {
			if w.rng.IntN(8) == 0 {
				spared[m.ref.(*mref).p] = true
				met.add("spared")
				return true
			}
			return false
		}
	}
	if w.rng.IntN(3) == 0 {
		e.Ask, e.Grace = syscall.SIGTERM, 10_000_000
	}
	w.allowed = func(q *mproc) bool { return q.ours && q != w.root && !spared[q] }
	res := h.End(context.Background(), root, e)
	met.add("end " + string(res.Outcome))
	if res.Outcome != Dead {
		return nil
	}
	for _, p := range w.order {
		if p.ours && p != w.root && !p.zombie && !below(p, spared) {
			return fmt.Errorf("dead, and %d lives: %s, %v", p.pid, res, res.Evidence)
		}
	}
	return nil
}

// below tells whether a process is spared, or descends from one that is or was.
func below(p *mproc, spared map[*mproc]bool) bool {
	for ; p != nil; p = p.born {
		if spared[p] {
			return true
		}
	}
	return false
}

// TestEndWaits: who hangs is waited for as long as was said, and no longer.
func TestEndWaits(t *testing.T) {
	for after, want := range map[time.Duration]Outcome{50 * time.Second: Dead, 70 * time.Second: Unconfirmed} {
		w := newWorld(rand.New(rand.NewPCG(1, 2)))
		h := &Host{k: w}
		root := w.hold(h, w.root)
		w.calm, w.blind, w.exact, w.lists = true, 0, true, true
		w.allowed = func(q *mproc) bool { return q.ours && q != w.root }
		w.fork(w.root)
		start := w.time
		w.hangs = start.Add(after)
		res := h.End(t.Context(), root, Ending{MaxTime: time.Minute})
		took := w.time.Sub(start)
		if res.Outcome != want || took < min(after, time.Minute) || took > after+time.Second || w.violation != "" {
			t.Errorf("%v: %s after %v, %v %s", after, res, took, res.Evidence, w.violation)
		}
	}
}
