package turns

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"pinfold.dev/api"
)

// An ending with a long grace can be had sooner: a second abandon, or stop of a job,
// that names a shorter one cuts it short, and one with a longer one changes nothing.
func TestAbandonSooner(t *testing.T) {
	const deaf = `trap '' TERM; while :; do printf . >>"$0"; sleep 0.02; done`
	hour, soon := int64(time.Hour/time.Millisecond), int64(300)
	eachGrade(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{})
		newCanary(t, s)
		launch := func(t *testing.T) (*turn, heart, api.Process) {
			x, f := s.begin(t, api.BeginRequest{}), files(t, "beat")
			p := x.launch(api.LaunchRequest{Argv: []string{"/bin/sh", "-c", deaf, f[0]}})
			heart(f[0]).beating(t)
			return x, heart(f[0]), p
		}
		for name, c := range map[string]struct {
			first, second int64
			cut           bool
		}{
			"at once": {hour, 0, true}, "sooner": {hour, soon, true}, "later": {soon, hour, false},
		} {
			t.Run(name, func(t *testing.T) {
				x, h, _ := launch(t)
				first := make(chan api.Receipt, 1)
				go func() {
					r, _ := s.Abandon(context.Background(), x.ID, api.AbandonRequest{Reason: api.ReasonIdle, GraceMS: &c.first})
					first <- r
				}()
				eventually(t, "it is being ended", func() bool {
					v, err := s.Turn(context.Background(), x.ID)
					return err != nil || v.State != api.StateOpen
				})
				r, err := s.Abandon(context.Background(), x.ID, api.AbandonRequest{GraceMS: &c.second})
				if err != nil || !r.Complete || r.Reason != api.ReasonIdle || r.GraceMS != c.first {
					t.Errorf("%v: %+v", err, r)
				}
				cut := slices.ContainsFunc(r.Notes, func(n string) bool { return strings.Contains(n, "the grace was cut short on request of uid 0") })
				if cut != c.cut {
					t.Errorf("notes %q", r.Notes)
				}
				if f := <-first; f.Reason != api.ReasonIdle || !f.Complete {
					t.Errorf("who asked first has %+v", f)
				}
				stopped(t, h)
			})
		}
		t.Run("a job", func(t *testing.T) {
			x, h, p := launch(t)
			j, err := s.Promote(context.Background(), x.ID, p.ID, api.PromoteRequest{})
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() {
				_, err := s.StopJob(context.Background(), j.ID, api.StopJobRequest{GraceMS: &hour})
				done <- err
			}()
			eventually(t, "it is being ended", func() bool {
				v, err := s.Job(context.Background(), j.ID)
				return err == nil && v.Reason != ""
			})
			if v, err := s.StopJob(context.Background(), j.ID, api.StopJobRequest{GraceMS: new(int64(0))}); err != nil || v.State != api.JobEnded {
				t.Errorf("%+v (%v)", v, err)
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
			stopped(t, h)
		})
	})
}
