package turns

import (
	"context"
	"fmt"
	"testing"
	"time"

	"pinfold.dev/api"
)

// ending is one case of the end policy's table, brought about for real.
type ending struct {
	name  string
	begin api.BeginRequest
	// end brings it about; nil: it comes by itself.
	end   func(t *testing.T, x *turn)
	why   api.Reason
	state api.State
	kept  bool
}

// endings are the table of the design, with clocks of so many ms. Its rows with jobs
// are in jobs_policy_test.go.
func endings(short int64) []ending {
	abandon := func(why api.Reason) func(*testing.T, *turn) {
		return func(t *testing.T, x *turn) {
			if _, err := x.s.Abandon(t.Context(), x.ID, api.AbandonRequest{Reason: why}); err != nil {
				t.Error(err)
			}
		}
	}
	finish := func(l api.LeftoverPolicy) func(*testing.T, *turn) {
		return func(t *testing.T, x *turn) {
			if _, err := x.s.Finish(t.Context(), x.ID, api.FinishRequest{Leftovers: l}); err != nil {
				t.Error(err)
			}
		}
	}
	supersede := func(t *testing.T, x *turn) {
		young := x.s.begin(t, api.BeginRequest{Session: x.Session, Supersede: true})
		f := files(t, "leader", "child")
		young.launch(helper(t, "setsid", f...))
		heart(f[0]).beating(t)
		x.isOver()
		heart(f[0]).beating(t) // the newer one is untouched
		heart(f[1]).beating(t)
		if v := young.look(); v.State != api.StateOpen || v.Alive != 2 {
			t.Errorf("the newer turn is %s, %d alive", v.State, v.Alive)
		}
		young.abandon(0)
	}
	spill := func(t *testing.T, x *turn) {
		x.launch(api.LaunchRequest{Argv: []string{"sh", "-c", "while :; do echo 0123456789; done"}, Stdio: stdio("", api.StdioSpool, "")})
	}
	keep := func(why api.Reason) api.EndPolicy { return api.EndPolicy{why: {Processes: api.FateKeep}} }
	return []ending{
		{"finished", api.BeginRequest{}, finish(""), api.ReasonFinished, api.StateFinished, true},
		{"finished, reap", api.BeginRequest{Leftovers: api.LeftoversReap}, finish(""), api.ReasonFinished, api.StateFinished, false},
		{"finished, this once", api.BeginRequest{}, finish(api.LeftoversReap), api.ReasonFinished, api.StateFinished, false},
		{"stop", api.BeginRequest{}, abandon(""), api.ReasonStop, api.StateAbandoned, false},
		{"stop, keep", api.BeginRequest{Policy: keep(api.ReasonStop)}, abandon(""), api.ReasonStop, api.StateAbandoned, true},
		{"superseded", api.BeginRequest{Session: "s"}, supersede, api.ReasonSuperseded, api.StateAbandoned, false},
		{"idle", api.BeginRequest{IdleMS: short, IdleBy: []api.Activity{api.ActivityTouch}}, nil, api.ReasonIdle, api.StateAbandoned, false},
		{"wall", api.BeginRequest{WallMS: short}, nil, api.ReasonWall, api.StateAbandoned, false},
		{"wall, keep", api.BeginRequest{WallMS: short, Policy: keep(api.ReasonWall)}, nil, api.ReasonWall, api.StateAbandoned, true},
		{"client gone", api.BeginRequest{Client: api.Client{Bind: api.BindConnection, AfterMS: short}}, nil, api.ReasonClientGone, api.StateAbandoned, false},
		{"lease expired", api.BeginRequest{LeaseMS: short}, nil, api.ReasonLeaseExpired, api.StateAbandoned, false},
		{"limit", api.BeginRequest{OutputMax: 1 << 20, OnOutputMax: api.OutputStop}, spill, api.ReasonLimit, api.StateAbandoned, false},
		{"operator", api.BeginRequest{}, abandon(api.ReasonOperator), api.ReasonOperator, api.StateAbandoned, false},
	}
}

// usualClock is long enough to get a turn ready on most machines.
func usualClock() time.Duration { return patience(1500 * time.Millisecond) }

// isOver waits until the turn is over.
func (x *turn) isOver() {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience(2*time.Minute))
	defer cancel()
	if v, err := x.s.WaitTurn(ctx, x.ID); err != nil {
		x.t.Fatalf("the turn is %s: %v", v.State, err)
	}
}

// For each reason: what the turn launched, and what that has forked, is ended or
// kept, as the table says; what is kept is listed, held and endable. What was
// there before, and what another turn has, is never touched.
func TestEndPolicy(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{})
		before := newCanary(t, s)
		_, beside := newNeighbour(t, s)
		for i, c := range endings(0) {
			t.Run(c.name, func(t *testing.T) {
				var x *turn
				var p, well api.Process
				hearts := hearts(files(t, "leader", "child"))
				unhurried(t, usualClock(), func(clock time.Duration) (err error) {
					x = s.begin(t, endings(clock.Milliseconds())[i].begin)
					p, err = s.Launch(t.Context(), x.ID, helper(t, "setsid", string(hearts[0]), string(hearts[1])))
					if err == nil {
						well, err = s.Run(t.Context(), x.ID, api.LaunchRequest{Argv: []string{"true"}})
					}
					if err == nil && well.Status.State != api.ProcessExited {
						err = fmt.Errorf("%+v", well.Status)
					}
					if err == nil {
						err = x.beatsIn(hearts...)
					}
					if err != nil {
						x.drop()
					}
					return err
				})
				if c.end != nil {
					c.end(t, x)
				}
				x.isOver()
				r, err := s.Receipt(t.Context(), x.ID)
				if err != nil || r.Reason != c.why || r.State != c.state || !r.Complete || (len(r.Leftovers) == 2) != c.kept {
					t.Fatalf("%s %s, %d leftovers, complete %v, notes %q (%v)", r.State, r.Reason, len(r.Leftovers), r.Complete, r.Notes, err)
				}
				if q := r.Processes[1]; q.ID != well.ID || q.EndedBy != "itself" || q.Status.State != api.ProcessExited || q.Status.Code != 0 {
					t.Errorf("what had ended well: %+v", q)
				}
				if !c.kept {
					stopped(t, hearts...)
					return
				}
				for _, h := range hearts {
					h.beating(t)
				}
				if v := x.look(); v.Alive != 2 || r.Leftovers[0].Process != p.ID || r.Leftovers[0].Comm == "" {
					t.Errorf("not listed: %d alive, %+v", v.Alive, r.Leftovers)
				}
				if r, err := s.Abandon(t.Context(), x.ID, api.AbandonRequest{Leftovers: true}); err != nil || r.LeftoversEndedAt == nil || r.State != c.state {
					t.Errorf("not endable: %+v (%v)", r, err)
				}
				stopped(t, hearts...)
			})
			before.lives()
			beside.lives()
		}
	})
}
