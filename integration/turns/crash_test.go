package turns

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"pinfold.dev/api"
)

// crashRounds is how often the service is killed.
func crashRounds() int {
	if testing.Short() {
		return 6
	}
	return max(30/run.slow, 10)
}

// The service is killed at random moments, with turns open, launches arriving
// and endings under way, and started again. It knows every turn, loses no exit
// code, completes what it had begun to end, and touches nothing else.
func TestServiceKilled(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{})
		newCanary(t, s)
		newNeighbour(t, s)
		_, second := newNeighbour(t, s)
		again := 0
		for i := range crashRounds() {
			c := newCrash(t, s)
			c.killAmidst(rand.N(patience(40 * time.Millisecond)))
			s.restart()
			c.checkKept()
			again += c.checkEnded()
			if t.Failed() {
				t.Fatalf("in round %d", i)
			}
			second.lives()
		}
		t.Logf("%d rounds; %d endings had to be asked for again", crashRounds(), again)
	})
}

// crash is one round: a turn that is to live through it, with launches, and
// one that is being ended.
type crash struct {
	t     *testing.T
	s     *service
	kept  *turn
	ended *turn
	beats []heart

	mu        sync.Mutex
	codes     map[string]int // of launches in kept that were answered
	answered  *api.Receipt   // of the ending, when it was
	accepted  bool           // the ending was begun, says an answer
	abandoned bool           // it was asked for
}

// endedCodes are the exit codes of what has run in the turn that is ended.
const endedCodes = 3

func newCrash(t *testing.T, s *service) *crash {
	c := &crash{t: t, s: s, codes: map[string]int{}, kept: s.begin(t, api.BeginRequest{Label: "kept"}),
		ended: s.begin(t, api.BeginRequest{Label: "ended"})}
	for i := range endedCodes {
		p := c.ended.launch(helper(t, "exit", fmt.Sprint(i+1)))
		if _, err := s.WaitProcess(t.Context(), c.ended.ID, p.ID); err != nil {
			t.Fatal(err)
		}
	}
	f := files(t, "kept", "ended", "child of ended")
	c.kept.launch(helper(t, "beat", f[0]))
	c.ended.launch(helper(t, "setsid", f[1], f[2]))
	for _, name := range f {
		c.beats = append(c.beats, heart(name))
		heart(name).beating(t)
	}
	return c
}

// killAmidst has launches and the ending under way, and kills the service.
func (c *crash) killAmidst(after time.Duration) {
	ctx, cancel := context.WithCancel(c.t.Context())
	var wg sync.WaitGroup
	for i := range 2 {
		wg.Go(func() { c.launchMany(ctx, i) })
	}
	wg.Go(func() { c.beginMany(ctx) })
	wg.Go(func() {
		time.Sleep(rand.N(after + 1))
		c.abandon(ctx)
	})
	time.Sleep(after)
	c.s.kill()
	cancel()
	wg.Wait()
}

// launchMany launches processes that end with a code, at once or in a while,
// until the service is gone.
func (c *crash) launchMany(ctx context.Context, seed int) {
	for n := 0; ; n++ {
		code := (n*2 + seed) % 100
		p, err := c.s.Launch(ctx, c.kept.ID, api.LaunchRequest{Cwd: "/",
			Argv: []string{"/bin/sh", "-c", fmt.Sprintf("%s exit %d", []string{"", "sleep 0.05;"}[n%2], code)}})
		if err != nil {
			c.wantGone(err)
			return
		}
		c.mu.Lock()
		c.codes[p.ID] = code
		c.mu.Unlock()
	}
}

// beginMany begins turns and finishes them, so that some are cut short.
func (c *crash) beginMany(ctx context.Context) {
	for {
		v, err := c.s.Begin(ctx, api.BeginRequest{Label: "short"})
		if err == nil {
			_, err = c.s.Finish(ctx, v.ID, api.FinishRequest{})
		}
		if err != nil {
			c.wantGone(err)
			return
		}
	}
}

// abandon asks for the ending, one way or the other.
func (c *crash) abandon(ctx context.Context) {
	req := api.AbandonRequest{Reason: api.ReasonSuperseded, GraceMS: new([]int64{0, 0, 100}[rand.N(3)])}
	c.mu.Lock()
	c.abandoned = true
	c.mu.Unlock()
	var err error
	if rand.N(2) == 0 {
		if _, err = c.s.AbandonNow(ctx, c.ended.ID, req); err == nil {
			c.accepted = true
		}
	} else {
		var r api.Receipt
		if r, err = c.s.Abandon(ctx, c.ended.ID, req); err == nil {
			c.accepted, c.answered = true, &r
		}
	}
	if err != nil {
		c.wantGone(err)
	}
}

// wantGone checks that a call failed because the service was gone.
func (c *crash) wantGone(err error) {
	if !errors.Is(err, api.ErrUnavailable) && !errors.Is(err, context.Canceled) {
		c.t.Errorf("a call to a service that is killed: %v", err)
	}
}

// checkKept checks that the open turn is as it was.
func (c *crash) checkKept() {
	t, x := c.t, c.kept
	v := x.look()
	if v.State != api.StateOpen || v.Grade != c.s.grade || v.Cgroup != x.Cgroup || v.Owner != 0 || v.Label != "kept" || len(v.Degraded) != len(x.Degraded) {
		t.Errorf("after the restart the turn is %+v", v)
	}
	c.beats[0].beating(t)
	for id, code := range c.codes {
		ctx, cancel := context.WithTimeout(t.Context(), patience(time.Minute))
		p, err := c.s.WaitProcess(ctx, x.ID, id)
		cancel()
		if err != nil || p.Status.State != api.ProcessExited || p.Status.Code != code {
			t.Errorf("process %s: %+v, %v; it exited with %d", id, p.Status, err, code)
		}
	}
	p := x.launch(helper(t, "exit", "42")) // and it is used as before
	if p, err := c.s.WaitProcess(t.Context(), x.ID, p.ID); err != nil || p.Status.Code != 42 {
		t.Errorf("a launch after the restart: %+v, %v", p.Status, err)
	}
	r := x.abandon(0)
	stopped(t, c.beats[0])
	for _, p := range r.Processes {
		if code, ok := c.codes[p.ID]; ok && (p.Status.State != api.ProcessExited || p.Status.Code != code) {
			t.Errorf("the receipt says of %s: %+v; it exited with %d", p.ID, p.Status, code)
		}
		if p.Status.State == api.ProcessLost {
			t.Errorf("the receipt has lost %s: %s", p.ID, p.Status.Why)
		}
	}
}

// checkEnded checks that the ending is completed. It returns 1 when it had to
// be asked for again: nobody had been told that it was begun.
func (c *crash) checkEnded() (again int) {
	t, x := c.t, c.ended
	v := x.look()
	if v.State == api.StateOpen {
		if c.accepted {
			t.Errorf("an ending that was answered is forgotten: the turn is open")
		}
		again = 1
		if _, err := c.s.Abandon(t.Context(), x.ID, api.AbandonRequest{Reason: api.ReasonSuperseded}); err != nil {
			t.Errorf("abandon after the restart: %v", err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience(60*time.Second))
	defer cancel()
	v, err := c.s.WaitTurn(ctx, x.ID)
	why := v.Reason == api.ReasonSuperseded || !c.accepted && again == 0 && v.Reason == api.ReasonOperator // fenced, and not written down
	if err != nil || v.State != api.StateAbandoned || !why {
		t.Errorf("the ending: %s, reason %s, %v; %q", v.State, v.Reason, err, v.Degraded)
	}
	r, err := c.s.Receipt(ctx, x.ID)
	if err != nil {
		t.Fatal(err)
	}
	x.over(r)
	stopped(t, c.beats[1], c.beats[2])
	if c.answered != nil && (r.AskedAt != c.answered.AskedAt || len(r.Processes) != len(c.answered.Processes)) {
		t.Errorf("the receipt was %+v and is %+v", c.answered, r)
	}
	if len(r.Processes) != endedCodes+1 {
		t.Fatalf("the receipt tells of %d processes, %d were launched", len(r.Processes), endedCodes+1)
	}
	for i, p := range r.Processes[:endedCodes] {
		if p.Status.State != api.ProcessExited || p.Status.Code != i+1 {
			t.Errorf("%s exited with %d, the receipt says %+v", p.ID, i+1, p.Status)
		}
	}
	if p := r.Processes[endedCodes]; p.Status.State != api.ProcessSignaled {
		t.Errorf("the receipt says of the process that was running: %+v", p.Status)
	}
	return again
}
