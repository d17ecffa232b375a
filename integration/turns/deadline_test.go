package turns

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"pinfold.dev/api"
)

// At its deadline a process is ended with its descendants, whatever they are,
// and nothing else is: its neighbours in the turn live.
func TestDeadline(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{})
		beside := newCanary(t, s)
		unhurried(t, patience(1500*time.Millisecond), func(clock time.Duration) error { return deadlines(t, s, clock) })
		beside.lives()
	})
}

// deadlines has processes with a deadline, and a grace of a fifth of it, end.
func deadlines(t *testing.T, s *service, clock time.Duration) error {
	x := s.begin(t, api.BeginRequest{GraceMS: new(clock.Milliseconds() / 5)})
	defer x.drop()
	f := files(t, "leader", "ignorer", "setsid", "child", "neighbour", "deep")
	neighbour := x.launch(helper(t, "beat", f[4]))
	for _, c := range []struct {
		req    api.LaunchRequest
		hearts []string
		state  api.ProcessState
	}{
		{helper(t, "termproof", f[0], f[1]), f[0:2], api.ProcessExited},
		{helper(t, "setsid", f[2], f[3]), f[2:4], api.ProcessSignaled},
		{helper(t, "headless", f[5]), f[5:6], api.ProcessSignaled},
	} {
		c.req.DeadlineMS = clock.Milliseconds()
		p := x.launch(c.req)
		ctx, cancel := context.WithTimeout(t.Context(), patience(2*time.Minute))
		p, err := s.WaitProcess(ctx, x.ID, p.ID)
		cancel()
		if err != nil || p.Status.EndedBy != api.EndedByDeadline || p.Deadline == nil || p.EndedAt.Before(*p.Deadline) {
			t.Errorf("%s: %+v, ended %v, deadline %v (%v)", p.ID, p.Status, p.EndedAt, p.Deadline, err)
		}
		eventually(t, "the descendants are gone", func() bool {
			if isBare(s.grade) {
				return x.look().Alive == 1 // the neighbour
			}
			b, err := os.ReadFile(x.leaf(p.ID) + "/cgroup.events")
			return errors.Is(err, os.ErrNotExist) || strings.Contains(string(b), "populated 0")
		})
		for _, h := range c.hearts {
			if heart(h).size(t) == 0 {
				return errors.New("it had not begun")
			}
			stopped(t, heart(h))
		}
		if p.Status.State != c.state { // it had not the time to heed TERM
			return fmt.Errorf("%s: %+v", p.ID, p.Status)
		}
	}
	heart(f[4]).beating(t)
	if p, err := s.Process(t.Context(), x.ID, neighbour.ID); err != nil || p.Status.State != api.ProcessRunning {
		t.Errorf("the neighbour: %+v (%v)", p.Status, err)
	}
	r := x.abandon(0)
	for _, p := range r.Processes {
		if want := map[bool]string{true: "kill", false: "deadline"}[p.ID == neighbour.ID]; p.EndedBy != want {
			t.Errorf("%s was ended by %s", p.ID, p.EndedBy)
		}
	}
	return nil
}

// A deadline holds while there is no service, and one that came meanwhile is
// kept at the next start. A worker that was done before is not blamed.
func TestDeadlineOutlivesTheService(t *testing.T) {
	s := serve(t, grades(t)[0], options{})
	x := s.begin(t, api.BeginRequest{})
	late := x.launch(api.LaunchRequest{Argv: []string{"sleep", "3600"}, DeadlineMS: 300})
	done := x.launch(api.LaunchRequest{Argv: []string{"sh", "-c", "exit 4"}, DeadlineMS: 3600_000})
	later := x.launch(api.LaunchRequest{Argv: []string{"sleep", "3600"}, DeadlineMS: patience(20 * time.Second).Milliseconds()})
	s.kill()
	time.Sleep(500 * time.Millisecond)
	s.restart()
	ctx, cancel := context.WithTimeout(t.Context(), patience(2*time.Minute))
	defer cancel()
	for _, id := range []string{late.ID, later.ID} {
		p, err := s.WaitProcess(ctx, x.ID, id)
		if err != nil || p.Status.EndedBy != api.EndedByDeadline || p.Deadline == nil || p.EndedAt.Before(*p.Deadline) {
			t.Errorf("%s: %+v (%v)", id, p, err)
		}
	}
	if p, err := s.WaitProcess(ctx, x.ID, done.ID); err != nil || p.Status.Code != 4 || p.Status.EndedBy != "" {
		t.Errorf("%+v (%v)", p.Status, err)
	}
	x.abandon(0)
}

// What has become a job has the job's lifetime, also after a restart; what was to
// become one, and could not without a cgroup, keeps its deadline.
func TestDeadlineIsLiftedOfAJob(t *testing.T) {
	clock := patience(1500 * time.Millisecond)
	req := api.LaunchRequest{Argv: []string{"sleep", "3600"}, DeadlineMS: clock.Milliseconds()}
	bare := serve(t, api.GradeSubreaper, options{}).begin(t, api.BeginRequest{})
	left := bare.launch(req)
	if _, err := bare.s.Promote(t.Context(), bare.ID, left.ID, api.PromoteRequest{}); err == nil {
		t.Error("what runs was made a job without a cgroup")
	}
	s := serve(t, grades(t)[0], options{})
	var x *turn
	var kept api.Process
	var j api.Job
	unhurried(t, clock, func(clock time.Duration) (err error) {
		x, req.DeadlineMS = s.begin(t, api.BeginRequest{}), clock.Milliseconds()
		kept = x.launch(req)
		if j, err = s.Promote(t.Context(), x.ID, kept.ID, api.PromoteRequest{}); err != nil {
			x.drop() // its deadline was over before
		}
		return err
	})
	if kept.Deadline == nil {
		t.Fatal("it has no deadline")
	}
	if p, err := bare.s.WaitProcess(t.Context(), bare.ID, left.ID); err != nil || p.Status.EndedBy != api.EndedByDeadline {
		t.Errorf("%+v (%v)", p.Status, err)
	}
	bare.abandon(0)
	for range 2 {
		time.Sleep(time.Until(*kept.Deadline) + 300*time.Millisecond)
		p, err := s.Process(t.Context(), x.ID, kept.ID)
		if err != nil || p.Status.State != api.ProcessRunning || p.Deadline != nil {
			t.Errorf("%+v, deadline %v (%v)", p.Status, p.Deadline, err)
		}
		s.kill()
		s.restart()
	}
	if _, err := s.StopJob(t.Context(), j.ID, api.StopJobRequest{}); err != nil {
		t.Error(err)
	}
	x.abandon(0)
}

// The same launch, asked for again and again while the service is killed and
// started, runs once.
func TestOneKeyOneProcessAcrossRestarts(t *testing.T) {
	s := serve(t, grades(t)[0], options{})
	x := s.begin(t, api.BeginRequest{})
	f := files(t, "ran")
	req := api.LaunchRequest{Argv: []string{"sh", "-c", "echo ran >>" + f[0] + "; sleep 3600"}, IdempotencyKey: "once"}
	first := x.launch(req)
	if first.Repeated {
		t.Errorf("%+v", first)
	}
	for range 3 {
		if again := x.launch(req); !again.Repeated || again.ID != first.ID || again.PID != first.PID {
			t.Errorf("%+v", again)
		}
		s.kill()
		s.restart()
	}
	other := req
	other.Cwd = "/tmp"
	if _, err := s.Launch(t.Context(), x.ID, other); !errors.Is(err, api.ErrConflict) {
		t.Errorf("another launch: %v", err)
	}
	eventually(t, "it ran", func() bool { b, err := os.ReadFile(f[0]); return err == nil && len(b) > 0 })
	if b, _ := os.ReadFile(f[0]); string(b) != "ran\n" {
		t.Errorf("%q", b)
	}
	x.abandon(0)
}
