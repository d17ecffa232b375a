package turns

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/client"
)

// stopJobs ends every job that is left.
func (s *service) stopJobs() {
	l, err := s.Jobs(s.t.Context(), client.JobQuery{})
	if err != nil {
		s.t.Errorf("list jobs: %v", err)
	}
	for _, j := range l.Jobs {
		if j, err := s.StopJob(s.t.Context(), j.ID, api.StopJobRequest{GraceMS: new(int64(0))}); err != nil || j.State != api.JobEnded {
			s.t.Errorf("stop job %s: %+v (%v)", j.ID, j, err)
		}
	}
}

// counter prints a number each few milliseconds, for ever, and has a child in a
// session of its own that beats.
func counter(t *testing.T, beat string) api.LaunchRequest {
	req := helper(t, "counter", beat)
	req.Stdio = api.Stdio{Stdin: api.Stream{Mode: api.StdioPipe}, Stdout: api.Stream{Mode: api.StdioSpool}}
	return req
}

// playCounter: FILE. See counter; a line on stdin ends it with code 7.
func playCounter(words []string) int {
	if words[0] != "" {
		selfAs("beat", &syscall.SysProcAttr{Setsid: true}, words[0])
	}
	over := make(chan bool)
	go func() {
		var b [1]byte
		for {
			if n, err := os.Stdin.Read(b[:]); n == 0 || err != nil || b[0] == '\n' {
				close(over)
				return
			}
		}
	}()
	for i := 0; ; i++ {
		fmt.Println(i)
		select {
		case <-over:
			return 7
		case <-time.After(3 * time.Millisecond):
		}
	}
}

// whole tells that output is the numbers from 0 on, none missing.
func whole(out string) error {
	lines := strings.Split(out, "\n")
	for i, l := range lines[:len(lines)-1] {
		if l != fmt.Sprint(i) {
			return fmt.Errorf("line %d is %q", i, l)
		}
	}
	return nil
}

// A process that was made a job outlives the abandonment of its turn, keeps its
// output, its stdin and its exit status, and what it had forked; everything else
// of the turn is ended.
func TestPromotedJobOutlivesItsTurn(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		needCgroups(t, g)
		s := serve(t, g, options{})
		defer s.stopJobs()
		x := s.begin(t, api.BeginRequest{Session: "s1"})
		f := files(t, "beat", "doomed")
		beat, doomed := heart(f[0]), heart(f[1])
		p := x.launch(counter(t, string(beat)))
		other := x.launch(counter(t, string(doomed)))
		beat.beating(t)
		doomed.beating(t)
		j, err := s.Promote(t.Context(), x.ID, p.ID, api.PromoteRequest{Name: "counter"})
		if err != nil {
			t.Fatal(err)
		}
		if j.State != api.JobRunning || j.Origin != api.JobPromoted || j.Alive != 2 || j.Session != "s1" || j.PID != p.PID {
			t.Errorf("%+v", j)
		}
		if again, err := s.Promote(t.Context(), x.ID, p.ID, api.PromoteRequest{}); err != nil || again.ID != j.ID {
			t.Errorf("promoted again: %+v (%v)", again, err)
		}
		r, err := s.Abandon(t.Context(), x.ID, api.AbandonRequest{GraceMS: new(int64(0))})
		if err != nil || !r.Complete || len(r.Jobs) != 1 || r.Jobs[0].ID != j.ID || r.Jobs[0].State != api.JobRunning {
			t.Fatalf("%+v (%v)", r, err)
		}
		beat.beating(t)
		stopped(t, doomed)
		if o, err := s.Process(t.Context(), x.ID, other.ID); err != nil || o.Status.State != api.ProcessSignaled {
			t.Errorf("%+v (%v)", o, err)
		}
		if _, err := s.Launch(t.Context(), x.ID, helper(t, "exit", "0")); err == nil {
			t.Error("something was launched in a turn that is over")
		}
		s.kill()
		s.restart()
		if j, err = s.Job(t.Context(), j.ID); err != nil || j.State != api.JobRunning || j.Alive != 2 {
			t.Fatalf("after a restart: %+v (%v)", j, err)
		}
		eventually(t, "its keeper takes what is typed", func() bool {
			_, err := s.WriteStdin(t.Context(), x.ID, p.ID, strings.NewReader("\n"), false)
			if err != nil && !errors.Is(err, api.ErrUnavailable) { // it may not have answered the new service yet
				t.Fatal(err)
			}
			return err == nil
		})
		eventually(t, "the job lingers", func() bool {
			j, err = s.Job(t.Context(), j.ID)
			return err == nil && j.State == api.JobLingering && j.Status.Code == 7
		})
		if j, err = s.StopJob(t.Context(), j.ID, api.StopJobRequest{GraceMS: new(int64(0))}); err != nil || j.State != api.JobEnded || j.Status.Code != 7 || j.Reason != api.ReasonStop {
			t.Errorf("stopped: %+v (%v)", j, err)
		}
		stopped(t, beat)
		out := x.keptOutput(p.ID, client.OutputQuery{})
		if err := whole(out); err != nil || out == "" {
			t.Errorf("the job's output: %v", err)
		}
		eventually(t, "the job is in the history", func() bool {
			l, err := s.Jobs(t.Context(), client.JobQuery{All: true})
			return err == nil && len(l.Jobs) == 1 && l.Jobs[0].State == api.JobEnded && !exists(x.Cgroup)
		})
	})
}

// A started job has a hold of its own; its lifetime ends it.
func TestStartedJob(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{})
		defer s.stopJobs()
		launch := counter(t, files(t, "beat")[0])
		var j api.Job
		var err error
		unhurried(t, patience(time.Second), func(most time.Duration) error {
			j, err = s.StartJob(t.Context(), api.JobRequest{Launch: launch, Name: "c", Session: "s1", MaxMS: most.Milliseconds()})
			if errors.Is(err, api.ErrTurnOver) { // and could not even be launched
				return err
			}
			if err == nil && j.State != api.JobRunning {
				if o, oerr := s.WaitJob(t.Context(), j.ID, 0); oerr == nil && o.Reason == api.ReasonWall {
					return errors.New("it was over before it was told of")
				}
			}
			if err != nil || j.State != api.JobRunning || j.Origin != api.JobStarted {
				t.Fatalf("%+v (%v)", j, err)
			}
			return nil
		})
		if l, err := s.Turns(t.Context(), true, ""); err != nil || len(l.Turns) != 0 {
			t.Errorf("a job's hold is listed as a turn: %+v (%v)", l, err)
		}
		if j, err = s.WaitJob(t.Context(), j.ID, 0); err != nil || j.State != api.JobEnded || j.Reason != api.ReasonWall || j.Status.State != api.ProcessSignaled {
			t.Errorf("%+v (%v)", j, err)
		}
		launch = helper(t, "exit", "3")
		if j, err = s.StartJob(t.Context(), api.JobRequest{Launch: launch}); err != nil {
			t.Fatal(err)
		}
		if j, err = s.WaitJob(t.Context(), j.ID, 0); err != nil || j.Status.Code != 3 || j.Status.State != api.ProcessExited || j.Reason != "" {
			t.Errorf("%+v (%v)", j, err)
		}
		launch.Argv[0] = "/does/not/exist"
		if _, err = s.StartJob(t.Context(), api.JobRequest{Launch: launch}); err == nil {
			t.Error("a job was started that cannot be")
		}
		eventually(t, "all is put away", func() bool {
			l, err := s.Jobs(t.Context(), client.JobQuery{})
			return err == nil && len(l.Jobs) == 0
		})
	})
}

// A start with a key makes one job, however often it is asked for, at once and
// after the job has ended.
func TestJobIsStartedOnce(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{})
		defer s.stopJobs()
		f := files(t, "log")
		req := api.JobRequest{Launch: api.LaunchRequest{Argv: []string{"sh", "-c", "echo >>" + f[0]}, Cwd: "/"}, IdempotencyKey: "k"}
		ids := make(chan string, 8)
		for range cap(ids) {
			go func() {
				j, err := s.StartJob(t.Context(), req)
				if err != nil {
					t.Errorf("start: %v", err)
				}
				ids <- j.ID
			}()
		}
		id := <-ids
		for range cap(ids) - 1 {
			if other := <-ids; other != id {
				t.Errorf("two jobs, %s and %s", id, other)
			}
		}
		if _, err := s.WaitJob(t.Context(), id, 0); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it is in the history", func() bool {
			l, err := s.Jobs(t.Context(), client.JobQuery{})
			return err == nil && len(l.Jobs) == 0
		})
		s.kill()
		s.restart()
		if j, err := s.StartJob(t.Context(), req); err != nil || j.ID != id || !j.Repeated || j.State != api.JobEnded {
			t.Errorf("asked again: %+v (%v)", j, err)
		}
		if b, err := os.ReadFile(f[0]); err != nil || string(b) != "\n" {
			t.Errorf("it ran as %q (%v)", b, err)
		}
		req.Name = "other"
		_, err := s.StartJob(t.Context(), req)
		wantCode(t, err, api.CodeConflict)
	})
}
