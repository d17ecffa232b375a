package turns

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/client"
)

// Finish, the wall timeout, abandon, a superseding turn, a launch and a promotion
// come in the same instant. One ending stands, all are told it, and it is told
// once; nothing of the turn runs on but what became a job; nothing of the newer
// turn is touched. PINFOLD_SOAK says how often.
func TestSameInstant(t *testing.T) {
	few := 200 / run.slow
	if testing.Short() {
		few = 40
	}
	s := serve(t, grades(t)[0], options{})
	beside := newCanary(t, s)
	_, neighbour := newNeighbour(t, s)
	won, jobs := map[api.Reason]int{}, 0
	rounds := soak(t, max(few, 10))
	began := time.Now()
	wall := 40 * time.Millisecond
	for n := 0; n < rounds || len(won) < 3 && n < 10*rounds; n++ {
		if n%10 == 9 && len(won) < 2 { // a busy machine takes longer than that to launch
			wall = min(2*wall, 2*time.Second)
		}
		r := newInstant(t, s, strconv.Itoa(n), wall)
		r.meet()
		r.judge()
		won[r.receipts[0].Reason]++
		if r.job != nil {
			jobs++
		}
		if t.Failed() {
			t.Fatalf("in round %d of %d", n, rounds)
		}
	}
	t.Logf("%d rounds in %v: endings by reason %v, %d jobs", rounds, time.Since(began).Round(time.Millisecond), won, jobs)
	if len(won) < 3 {
		t.Errorf("one side always wins: %v", won)
	}
	beside.lives()
	neighbour.lives()
}

// instant is one round.
type instant struct {
	t    *testing.T
	s    *service
	wall time.Duration
	old  *turn
	p    api.Process // that may become a job
	mark int64       // the newest event before

	mu       sync.Mutex
	young    *turn
	first    api.Process // of the newer turn
	receipts []api.Receipt
	launched []api.Process
	job      *api.Job
}

// newInstant begins a turn whose wall clock runs out when all meet.
func newInstant(t *testing.T, s *service, session string, wall time.Duration) *instant {
	r := &instant{t: t, s: s, wall: wall}
	_, r.mark = s.tells(t, client.EventQuery{After: -1})
	v, err := s.Begin(t.Context(), api.BeginRequest{Session: session, WallMS: wall.Milliseconds(), Leftovers: api.LeftoversReap})
	if err != nil {
		t.Fatal(err)
	}
	r.old = &turn{v, s, t}
	r.p, err = s.Launch(t.Context(), r.old.ID, sleeper())
	if err != nil && !errors.Is(err, api.ErrTurnOver) {
		t.Fatal(err)
	}
	return r
}

func sleeper() api.LaunchRequest {
	return api.LaunchRequest{Argv: []string{"/bin/sh", "-c", "sleep 3600 & exec sleep 3600"}, Cwd: "/"}
}

// meet lets everything happen at once.
func (r *instant) meet() {
	ctx := r.t.Context()
	at := r.old.CreatedAt.Add(r.wall - time.Millisecond)
	var wg sync.WaitGroup
	together := func(f func()) {
		wg.Go(func() {
			time.Sleep(time.Until(at))
			f()
		})
	}
	told := func(rec api.Receipt, err error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.receipts = append(r.receipts, rec); err != nil {
			r.t.Errorf("no receipt: %v", err)
		}
	}
	together(func() { told(r.s.Finish(ctx, r.old.ID, api.FinishRequest{})) })
	together(func() { told(r.s.Abandon(ctx, r.old.ID, api.AbandonRequest{})) })
	wg.Go(func() { // what a begin makes takes its time
		time.Sleep(time.Until(at) - rand.N(8*time.Millisecond))
		r.supersede()
	})
	together(func() {
		if p, err := r.s.Launch(ctx, r.old.ID, sleeper()); err == nil {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.launched = append(r.launched, p)
		} else if !errors.Is(err, api.ErrTurnOver) {
			r.t.Errorf("launch: %v", err)
		}
	})
	if r.p.ID != "" {
		r.launched = append(r.launched, r.p)
		together(func() {
			if j, err := r.s.Promote(ctx, r.old.ID, r.p.ID, api.PromoteRequest{}); err == nil {
				r.job = &j
			} else if !errors.Is(err, api.ErrTurnOver) && !errors.Is(err, api.ErrNotFound) {
				r.t.Errorf("promote: %v", err)
			}
		})
	}
	wg.Wait()
	told(r.s.Receipt(ctx, r.old.ID))
}

func (r *instant) supersede() {
	v, err := r.s.Begin(r.t.Context(), api.BeginRequest{Session: r.old.Session, Supersede: true})
	r.young = &turn{v, r.s, r.t}
	if err == nil {
		r.first, err = r.s.Launch(r.t.Context(), v.ID, sleeper())
	}
	if err != nil {
		r.t.Errorf("the newer turn: %v", err)
	}
}

// judge looks what became of it, and ends what is left.
func (r *instant) judge() {
	t, first := r.t, r.receipts[0]
	for _, o := range r.receipts {
		if o.Reason != first.Reason || o.Actor != first.Actor || !o.AskedAt.Equal(first.AskedAt) || !o.Complete || len(o.Leftovers) > 0 {
			t.Errorf("one was told %+v, another %+v", first, o)
		}
	}
	on := map[string]bool{}
	for _, p := range first.Processes {
		on[p.ID] = true
		if p.Status.State == api.ProcessRunning && (r.job == nil || p.ID != r.p.ID) {
			t.Errorf("%s runs on", p.ID)
		}
	}
	for _, p := range r.launched {
		if !on[p.ID] {
			t.Errorf("%s was launched, and is not on the receipt", p.ID)
		}
	}
	if left := populated(filepath.Join(r.old.Cgroup, "work")); len(left) > 0 {
		t.Errorf("after the receipt, of the turn: %q", left)
	}
	if len(r.young.ID) > 0 {
		eventually(t, "all of the newer turn", func() bool { return r.young.look().Alive == 2 })
		if v := r.young.look(); v.State != api.StateOpen || v.Processes[0].Status.State != api.ProcessRunning || v.Processes[0].PID != r.first.PID {
			t.Errorf("the newer turn is %s, %d alive, %+v", v.State, v.Alive, v.Processes)
		}
		r.young.abandon(0)
	}
	r.judgeJob()
	r.judgeEvents(first.Reason)
}

// judgeJob checks that what was promoted lives, and that alone.
func (r *instant) judgeJob() {
	if r.job == nil {
		return
	}
	eventually(r.t, "all of the job", func() bool {
		j, err := r.s.Job(r.t.Context(), r.job.ID)
		return err == nil && j.State == api.JobRunning && j.Alive == 2
	})
	if j, err := r.s.StopJob(r.t.Context(), r.job.ID, api.StopJobRequest{}); err != nil || j.State != api.JobEnded {
		r.t.Errorf("stop the job: %+v (%v)", j, err)
	}
}

// judgeEvents checks that one ending was told, once. A busy disk may take longer for
// that than readers are held for it.
func (r *instant) judgeEvents(why api.Reason) {
	var told []string
	eventually(r.t, "the turn's end is told", func() bool {
		told = nil
		all, _ := r.s.tells(r.t, client.EventQuery{After: r.mark, Turn: r.old.ID})
		over := false
		for _, e := range all {
			if e.Kind == api.EventEnding || e.Kind == api.EventEnded {
				told, over = append(told, fmt.Sprint(e.Kind, " ", e.Reason)), over || e.Kind == api.EventEnded
			}
		}
		return over
	})
	if want := fmt.Sprintf("ending %s, ended %s", why, why); strings.Join(told, ", ") != want {
		r.t.Errorf("told %q, not %q", told, want)
	}
}

// tells reads what happened up to now, and the number to go on after.
func (s *service) tells(t *testing.T, q client.EventQuery) (all []api.Event, next int64) {
	t.Helper()
	r, err := s.Events(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for {
		e, err := r.Next()
		switch {
		case errors.Is(err, io.EOF):
			return all, r.Rest().After
		case err != nil:
			t.Fatal(err)
		}
		all = append(all, e)
	}
}

// populated are the cgroups at and below a directory that have processes.
func populated(dir string) (out []string) {
	_ = filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			if b, err := os.ReadFile(p + "/cgroup.procs"); err == nil && len(b) > 0 {
				out = append(out, fmt.Sprintf("%s: %q", p, b))
			}
		}
		return nil
	})
	return out
}
