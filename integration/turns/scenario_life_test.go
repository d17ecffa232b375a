package turns

import (
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
)

// A process in a cgroup beside the turns, named as a turn's would be, is nobody's:
// an operator's shell, put there by a container runtime. No ending, not that of
// everything, and no service that starts anew and looks for what it has lost,
// touches it or its cgroup.
func TestStrangerBesideTheTurns(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{})
		h := hearts(files(t, "turn", "stranger"))
		x := s.begin(t, api.BeginRequest{})
		x.launch(helper(t, "beat", string(h[0])))
		beats(t, h[0])

		stranger := filepath.Join(filepath.Dir(x.Cgroup), "0123456789abcdef")
		if err := os.MkdirAll(stranger+"/work/p1", 0o755); err != nil {
			t.Fatal(err)
		}
		d, err := syscall.Open(stranger+"/work/p1", syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(run.exe, string(h[1]))
		cmd.Env = []string{helperEnv + "=canary"}
		useHelper("canary")
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: d}
		p, err := run.kids.start(cmd)
		syscall.Close(d)
		if err != nil {
			t.Fatal(err)
		}
		defer removeTree(stranger)
		defer p.kill()
		lives := &canary{t: t, name: "the stranger in a cgroup beside", heart: h[1]}
		lives.beating(t)

		x.abandon(0)
		y := s.begin(t, api.BeginRequest{})
		y.launch(helper(t, "beat", string(h[0])))
		s.kill()
		s.restart()
		if a, err := s.AbandonMany(t.Context(), api.AbandonManyRequest{Owner: new(uint32(0)), Jobs: true}); err != nil || len(a.Receipts) != 1 {
			t.Errorf("everything of root's: %+v (%v)", a, err)
		}
		stopped(t, h[0])
		if _, err := s.Turn(t.Context(), filepath.Base(stranger)); err == nil {
			t.Error("the stranger became a turn")
		}
		lives.lives()
	})
}

// Of two that look alike in everything, the one that was named is ended, also
// when it is named again after the other began.
func TestLookAlikes(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{})
		beat := heart(files(t, "beat")[0])
		req, begin := helper(t, "beat", string(beat)), api.BeginRequest{Label: "same", Session: "s", Labels: map[string]string{"task": "same"}}
		a := s.begin(t, begin)
		first := a.launch(req)
		beats(t, beat)
		if e, err := s.EndProcess(t.Context(), a.ID, first.ID, api.EndProcessRequest{}); err != nil || !e.Complete {
			t.Fatalf("%+v (%v)", e, err)
		}
		second := a.launch(req)
		beats(t, beat)
		if e, err := s.EndProcess(t.Context(), a.ID, first.ID, api.EndProcessRequest{}); err == nil && e.Ended > 0 {
			t.Errorf("named again, it ended %+v", e)
		}
		if e, err := s.Signal(t.Context(), a.ID, first.ID, api.SignalRequest{Signal: "KILL"}); err != nil || e.Verdict != api.VerdictGone {
			t.Errorf("a process that has ended is signalled: %+v (%v)", e, err)
		}
		if p, err := s.Process(t.Context(), a.ID, second.ID); err != nil || p.Status.State != api.ProcessRunning {
			t.Errorf("the second: %+v (%v)", p, err)
		}
		was := a.abandon(0)
		b := s.begin(t, begin)
		b.launch(req)
		beats(t, beat)
		if r := a.abandon(0); !r.AskedAt.Equal(was.AskedAt) {
			t.Errorf("another receipt: %+v, then %+v", was, r)
		}
		beats(t, beat)
		b.isOpen("the look-alike")
		b.abandon(0)
	})
}

// Who comes back at the last instant, by a touch, or by taking the turn, is
// refused, or the turn goes on; it is never told one and sees the other.
func TestBackAtTheLastInstant(t *testing.T) {
	s := serve(t, grades(t)[0], options{})
	back, late := 0, 0
	for range soak(t, 100) {
		lease := time.Duration(30+rand.IntN(30)) * time.Millisecond
		x := s.begin(t, api.BeginRequest{LeaseMS: lease.Milliseconds()})
		_, err := s.Launch(t.Context(), x.ID, sleeper())
		if err == nil {
			_, err = s.Touch(t.Context(), x.ID, 0)
		}
		if err != nil { // the launch took its time
			wantCode(t, err, api.CodeTurnOver)
			x.ends(api.ReasonLeaseExpired)
			continue
		}
		time.Sleep(lease - time.Duration(rand.IntN(2000))*time.Microsecond)
		took, asked := rand.IntN(2) == 0, time.Now()
		if took {
			_, err = s.Take(t.Context(), x.ID, 0)
		} else {
			_, err = s.Touch(t.Context(), x.ID, 0)
		}
		v := x.look()
		switch {
		case err != nil:
			late++
			wantCode(t, err, api.CodeTurnOver)
			if v.State == api.StateOpen {
				t.Errorf("refused, and the turn is open: %v", err)
			}
		case v.State != api.StateOpen && !took && time.Since(asked) < lease:
			t.Errorf("the lease was to be renewed, and the turn is %s %v later", v.State, time.Since(asked))
		default:
			back++
		}
		x.ends(api.ReasonLeaseExpired)
	}
	t.Logf("%d came back, %d were too late", back, late)
	if back == 0 && late == 0 {
		t.Error("nobody came")
	}
}

// When the receipt of an ending that ends jobs is there, they have gone: those of
// the turn, and those that were given to it, also in the very last moment. Each
// tells who ended it, and why.
func TestJobsEndWithTheirTurn(t *testing.T) {
	s := serve(t, grades(t)[0], options{})
	defer s.stopJobs()
	beside := newCanary(t, s)
	given, refused := 0, 0
	for range soak(t, 30) {
		x := s.begin(t, api.BeginRequest{})
		p := x.launch(sleeper())
		own, err := s.Promote(t.Context(), x.ID, p.ID, api.PromoteRequest{})
		if err != nil {
			t.Fatal(err)
		}
		j, err := s.StartJob(t.Context(), api.JobRequest{Launch: sleeper()})
		if err != nil {
			t.Fatal(err)
		}
		gave := make(chan error)
		go func() {
			time.Sleep(time.Duration(rand.IntN(1000)) * time.Microsecond)
			_, err := s.Transfer(t.Context(), j.ID, api.TransferRequest{Turn: x.ID})
			gave <- err
		}()
		time.Sleep(time.Duration(rand.IntN(1000)) * time.Microsecond)
		r, err := s.Abandon(t.Context(), x.ID, api.AbandonRequest{GraceMS: new(int64(0)), Jobs: true})
		told := slices.Contains(r.Notes, "job "+j.ID+", which was given to the turn, is ended with it")
		if err != nil || !r.Complete || len(r.Notes) > 0 && !told || len(r.Notes) > 1 {
			t.Fatalf("%+v (%v)", r, err)
		}
		ended(t, s, own.ID, api.ReasonStop)
		if err := <-gave; err == nil {
			if given++; !told {
				t.Errorf("the receipt is silent about %s: %q", j.ID, r.Notes)
			}
			ended(t, s, j.ID, api.ReasonStop)
			continue
		} else if !errors.Is(err, api.ErrTurnOver) {
			t.Errorf("give a job to a turn that ends: %v", err)
		}
		refused++
		if j, err = s.Job(t.Context(), j.ID); err != nil || j.State != api.JobRunning || j.Listed != "" {
			t.Errorf("a job that was given to nobody: %+v (%v)", j, err)
		}
		if _, err := s.StopJob(t.Context(), j.ID, api.StopJobRequest{}); err != nil {
			t.Error(err)
		}
	}
	j, err := s.StartJob(t.Context(), api.JobRequest{Launch: sleeper()})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := s.Finish(t.Context(), j.Turn, api.FinishRequest{}); err != nil || !r.Complete {
		t.Errorf("%+v (%v)", r, err)
	}
	ended(t, s, j.ID, api.ReasonFinished)
	eventually(t, "it is in the history", func() bool { return !exists(s.dir + "/run/turns/" + j.Turn) })
	_, err = s.Transfer(t.Context(), j.ID, api.TransferRequest{Session: new("s")})
	wantCode(t, err, api.CodeTurnOver)
	x := s.begin(t, api.BeginRequest{})
	p := x.launch(sleeper())
	if j, err = s.Promote(t.Context(), x.ID, p.ID, api.PromoteRequest{}); err != nil {
		t.Fatal(err)
	}
	if a, err := s.EndProcess(t.Context(), x.ID, p.ID, api.EndProcessRequest{}); err != nil || !a.Complete {
		t.Errorf("%+v (%v)", a, err)
	}
	ended(t, s, j.ID, api.ReasonStop) // as a process it is ended, too
	x.abandon(0)
	t.Logf("%d jobs were given in time, %d were not", given, refused)
	beside.lives()
}

// ended checks that a job has, by this process, and tells why.
func ended(t *testing.T, s *service, id string, why api.Reason) {
	t.Helper()
	j, err := s.Job(t.Context(), id)
	if err != nil || j.State != api.JobEnded || j.Alive > 0 || j.Reason != why || j.Actor == nil || j.Actor.PID != os.Getpid() {
		t.Errorf("when the receipt is there, job %s is %+v (%v)", id, j, err)
	}
}
