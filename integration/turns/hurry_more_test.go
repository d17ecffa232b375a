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

// sooner is what is deaf to TERM, and is being ended with a grace of an hour.
type sooner struct {
	*service
	hour, now *int64
}

func hurried(t *testing.T) sooner {
	s := serve(t, grades(t)[0], options{})
	newCanary(t, s)
	return sooner{s, new(int64(time.Hour / time.Millisecond)), new(int64(0))}
}

func (s sooner) words(t *testing.T) (heart, api.LaunchRequest) {
	f := files(t, "beat")
	return heart(f[0]), api.LaunchRequest{Argv: []string{"/bin/sh", "-c", `trap '' TERM; while :; do printf . >>"$0"; sleep 0.02; done`, f[0]}}
}

func (s sooner) launched(t *testing.T) (*turn, heart, api.Process) {
	x := s.begin(t, api.BeginRequest{})
	h, req := s.words(t)
	p := x.launch(req)
	h.beating(t)
	return x, h, p
}

// asked has somebody ask for the end, with an hour, and returns when it is under way.
func (s sooner) asked(t *testing.T, turn string, ask func(context.Context) error) (ended <-chan error) {
	done := make(chan error, 1)
	go func() { done <- ask(context.Background()) }()
	eventually(t, "it is being ended", func() bool {
		v, err := s.Turn(t.Context(), turn)
		return err == nil && v.State == api.StateEnding
	})
	return done
}

func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience(30*time.Second))
	t.Cleanup(cancel)
	return ctx
}

// The end of a job with a hold of its own can be had sooner, too.
func TestStopOwnJobSooner(t *testing.T) {
	s := hurried(t)
	defer s.stopJobs()
	h, req := s.words(t)
	j, err := s.StartJob(t.Context(), api.JobRequest{Launch: req})
	if err != nil {
		t.Fatal(err)
	}
	h.beating(t)
	first := s.asked(t, j.Turn, func(ctx context.Context) error {
		_, err := s.StopJob(ctx, j.ID, api.StopJobRequest{GraceMS: s.hour})
		return err
	})
	if v, err := s.StopJob(soon(t), j.ID, api.StopJobRequest{GraceMS: s.now}); err != nil || v.State != api.JobEnded {
		t.Fatalf("%+v (%v)", v, err)
	}
	if err := <-first; err != nil {
		t.Error(err)
	}
	stopped(t, h)
}

// So can that of the jobs that end with their turn.
func TestAbandonWithJobsSooner(t *testing.T) {
	s := hurried(t)
	defer s.stopJobs()
	x, h, p := s.launched(t)
	j, err := s.Promote(t.Context(), x.ID, p.ID, api.PromoteRequest{})
	if err != nil {
		t.Fatal(err)
	}
	first := s.asked(t, x.ID, func(ctx context.Context) error {
		_, err := s.Abandon(ctx, x.ID, api.AbandonRequest{Reason: api.ReasonIdle, Jobs: true, GraceMS: s.hour})
		return err
	})
	if r, err := s.Abandon(soon(t), x.ID, api.AbandonRequest{GraceMS: s.now}); err != nil || !r.Complete {
		t.Fatalf("%+v (%v)", r, err)
	}
	if err := <-first; err != nil {
		t.Error(err)
	}
	if v, err := s.Job(t.Context(), j.ID); err != nil || v.State != api.JobEnded || v.Reason != api.ReasonIdle {
		t.Errorf("%+v (%v)", v, err)
	}
	stopped(t, h)
}

// A service that is killed before the shorter grace is over is followed by one that
// keeps to it.
func TestAbandonSoonerOverARestart(t *testing.T) {
	s := hurried(t)
	x, h, _ := s.launched(t)
	first := s.asked(t, x.ID, func(ctx context.Context) error {
		_, err := s.Abandon(ctx, x.ID, api.AbandonRequest{GraceMS: s.hour})
		return err
	})
	const cut = int64(10 * time.Minute / time.Millisecond)
	second := make(chan error, 1)
	go func() {
		_, err := s.Abandon(context.Background(), x.ID, api.AbandonRequest{GraceMS: new(cut)})
		second <- err
	}()
	noted := func() bool {
		b, err := os.ReadFile(s.dir + "/run/turns/" + x.ID + "/record.json")
		return err == nil && strings.Contains(string(b), fmt.Sprintf(`"grace_ms":%d`, cut))
	}
	eventually(t, "that is written down", noted)
	s.kill()
	if err := errors.Join(<-first, <-second); err == nil {
		t.Error("it has ended already")
	}
	s.restart()
	if v, err := s.Turn(t.Context(), x.ID); err != nil || v.State != api.StateEnding || !noted() {
		t.Errorf("after a restart it is %s, the shorter grace noted: %v (%v)", v.State, noted(), err)
	}
	if r, err := s.Abandon(soon(t), x.ID, api.AbandonRequest{GraceMS: s.now}); err != nil || !r.Complete || r.GraceMS != cut {
		t.Errorf("%+v (%v)", r, err)
	}
	stopped(t, h)
}
