package turns

import (
	"errors"
	"testing"
	"time"

	"pinfold.dev/api"
)

// The rows of the end policy that are about jobs: for each reason, what happens
// to a job of the turn, unless the turn, or who ends it, says otherwise.
func TestEndPolicyOfJobs(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{})
		defer s.stopJobs()
		before := newCanary(t, s)
		for i, c := range endings(0) {
			for _, end := range []bool{false, true} {
				name := c.name + ", jobs kept"
				if end {
					name = c.name + ", jobs ended"
				}
				t.Run(name, func(t *testing.T) {
					var x *turn
					var j api.Job
					h := hearts(files(t, "leader", "child"))
					unhurried(t, usualClock(), func(clock time.Duration) error {
						req := endings(clock.Milliseconds())[i].begin
						if end {
							req.Policy = endingJobs(req.Policy, c.why)
						}
						x = s.begin(t, req)
						p, err := s.Launch(t.Context(), x.ID, helper(t, "setsid", string(h[0]), string(h[1])))
						if err == nil {
							err = x.beatsIn(h...)
						}
						if err == nil {
							j, err = s.Promote(t.Context(), x.ID, p.ID, api.PromoteRequest{})
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
					if err != nil || r.Reason != c.why || !r.Complete || len(r.Leftovers) > 0 {
						t.Fatalf("%+v (%v)", r, err)
					}
					if end {
						if j, err = s.WaitJob(t.Context(), j.ID, 0); err != nil || j.State != api.JobEnded || j.Reason != c.why {
							t.Errorf("%+v (%v)", j, err)
						}
						stopped(t, h...)
						return
					}
					beats(t, h...)
					if j, err = s.Job(t.Context(), j.ID); err != nil || j.State != api.JobRunning || j.Alive != 2 {
						t.Errorf("%+v (%v)", j, err)
					}
					if j, err = s.StopJob(t.Context(), j.ID, api.StopJobRequest{}); err != nil || j.State != api.JobEnded {
						t.Errorf("%+v (%v)", j, err)
					}
					stopped(t, h...)
				})
			}
		}
		before.lives()
	})
}

// endingJobs is a policy that ends jobs, too, for a reason.
func endingJobs(p api.EndPolicy, why api.Reason) api.EndPolicy {
	p = p.With(nil)
	if p == nil {
		p = api.EndPolicy{}
	}
	rule := p[why]
	rule.Jobs = api.FateEnd
	p[why] = rule
	return p
}

// Two turns of one session, the older one's ending late: a clock of it runs out
// when the newer one is at work. What the older one has left running as a job, of
// a turn that went well, and the newer one are untouched by each other's ending.
func TestTwoTurnsOfASession(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		needCgroups(t, g)
		s := serve(t, g, options{})
		defer s.stopJobs()
		before := newCanary(t, s)
		h := hearts(files(t, "job", "leftover", "old", "old child", "new", "new child"))

		done := s.begin(t, api.BeginRequest{Session: "s"})
		p := done.launch(helper(t, "beat", string(h[0])))
		done.launch(helper(t, "beat", string(h[1])))
		beats(t, h[0], h[1])
		j, err := s.Promote(t.Context(), done.ID, p.ID, api.PromoteRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if r, err := s.Finish(t.Context(), done.ID, api.FinishRequest{}); err != nil || len(r.Leftovers) != 1 {
			t.Fatalf("%+v (%v)", r, err)
		}

		var old, young *turn
		unhurried(t, patience(2*time.Second), func(wall time.Duration) error {
			old = s.begin(t, api.BeginRequest{Session: "s", WallMS: wall.Milliseconds()})
			_, err := s.Launch(t.Context(), old.ID, helper(t, "setsid", string(h[2]), string(h[3])))
			young = s.begin(t, api.BeginRequest{Session: "s"})
			young.launch(helper(t, "setsid", string(h[4]), string(h[5])))
			beats(t, h[0], h[1], h[4], h[5])
			if err == nil {
				err = old.beatsIn(h[2], h[3])
			}
			if err != nil {
				old.drop()
				young.drop()
			}
			return err
		})
		old.ends(api.ReasonWall)
		stopped(t, h[2], h[3])
		beats(t, h[0], h[1], h[4], h[5])
		if _, err := s.Abandon(t.Context(), old.ID, api.AbandonRequest{Jobs: true, Leftovers: true}); err != nil { // late, and again
			t.Error(err)
		}
		beats(t, h[0], h[1], h[4], h[5])
		young.abandon(0) // the job of the turn that went well survives the next one's abandonment, and so do its leftovers
		stopped(t, h[4], h[5])
		beats(t, h[0], h[1])
		if l, err := s.Turns(t.Context(), false, "s"); err != nil || len(l.Turns) != 1 || l.Turns[0].ID != done.ID {
			t.Errorf("what still holds something: %+v (%v)", l, err)
		}
		if j, err = s.Job(t.Context(), j.ID); err != nil || j.State != api.JobRunning {
			t.Errorf("%+v (%v)", j, err)
		}
		if r, err := s.Abandon(t.Context(), done.ID, api.AbandonRequest{Leftovers: true}); err != nil || r.LeftoversEndedAt == nil {
			t.Errorf("%+v (%v)", r, err)
		}
		stopped(t, h[1])
		beats(t, h[0])
		before.lives()
	})
}

// leftWithAJob finishes a turn, makes a job of one of its leftovers, and sees all of
// them go on, unless their time is over by then.
func leftWithAJob(t *testing.T, s *service, most time.Duration, h []heart) (*turn, api.Job, error) {
	t.Helper()
	x := s.begin(t, api.BeginRequest{LeftoversMaxMS: most.Milliseconds()})
	x.launch(helper(t, "setsid", string(h[0]), string(h[1])))
	p := x.launch(helper(t, "beat", string(h[2])))
	beats(t, h...)
	if r, err := s.Finish(t.Context(), x.ID, api.FinishRequest{}); err != nil || len(r.Leftovers) != 3 {
		t.Fatalf("%+v (%v)", r, err)
	}
	j, err := s.Promote(t.Context(), x.ID, p.ID, api.PromoteRequest{})
	if err != nil {
		return x, j, err
	}
	was := []int64{h[0].size(t), h[1].size(t)}
	eventually(t, "they go on, or their end", func() bool {
		var r api.Receipt
		r, err = s.Receipt(t.Context(), x.ID)
		if err == nil && r.LeftoversEndedAt != nil {
			err = errors.New("their time is over")
		}
		return err != nil || h[0].size(t) > was[0] && h[1].size(t) > was[1]
	})
	if err != nil {
		if _, err := s.StopJob(t.Context(), j.ID, api.StopJobRequest{}); err != nil {
			t.Error(err)
		}
	}
	return x, j, err
}

// Leftovers with a maximum lifetime are ended when it is over, and a job that was
// made of one of them is not.
func TestLeftoversHaveTheirTime(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		needCgroups(t, g)
		s := serve(t, g, options{})
		defer s.stopJobs()
		h := hearts(files(t, "leader", "child", "job"))
		var x *turn
		var j api.Job
		unhurried(t, patience(2*time.Second), func(most time.Duration) (err error) {
			x, j, err = leftWithAJob(t, s, most, h)
			return err
		})
		eventually(t, "the leftovers' end", func() bool {
			r, err := s.Receipt(t.Context(), x.ID)
			return err == nil && r.LeftoversEndedAt != nil
		})
		stopped(t, h[:2]...)
		beats(t, h[2])
		was, err := s.Receipt(t.Context(), x.ID)
		if err != nil {
			t.Error(err)
		}
		again, err := s.Abandon(t.Context(), x.ID, api.AbandonRequest{Leftovers: true}) // there are none any more
		if err != nil || len(again.Notes) != len(was.Notes) || !again.KilledAt.Equal(*was.KilledAt) || !again.LeftoversEndedAt.Equal(*was.LeftoversEndedAt) {
			t.Errorf("ended again: %+v, then %+v (%v)", was, again, err)
		}
		beats(t, h[2])
		if j, err = s.Job(t.Context(), j.ID); err != nil || j.State != api.JobRunning || j.Alive != 1 {
			t.Errorf("%+v (%v)", j, err)
		}
	})
}

// A job that is given to another turn is the other's: it is ended with that one,
// when that says so, and with its first turn in no case.
func TestTransferredJobIsTheOthers(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		needCgroups(t, g)
		s := serve(t, g, options{})
		defer s.stopJobs()
		x, y := s.begin(t, api.BeginRequest{Session: "x"}), s.begin(t, api.BeginRequest{Session: "y"})
		h := hearts(files(t, "given", "kept"))
		var jobs []api.Job
		for _, one := range h {
			p := x.launch(helper(t, "beat", string(one)))
			one.beating(t)
			j, err := s.Promote(t.Context(), x.ID, p.ID, api.PromoteRequest{})
			if err != nil {
				t.Fatal(err)
			}
			jobs = append(jobs, j)
		}
		j, err := s.Transfer(t.Context(), jobs[0].ID, api.TransferRequest{Turn: y.ID})
		if err != nil || j.Session != "y" || j.Listed != y.ID || j.PID != jobs[0].PID {
			t.Errorf("%+v (%v)", j, err)
		}
		if r, err := s.Abandon(t.Context(), x.ID, api.AbandonRequest{Jobs: true}); err != nil || !r.Complete {
			t.Errorf("%+v (%v)", r, err)
		}
		if j, err = s.WaitJob(t.Context(), jobs[1].ID, 0); err != nil || j.State != api.JobEnded {
			t.Errorf("%+v (%v)", j, err)
		}
		stopped(t, h[1])
		beats(t, h[0])
		s.kill()
		s.restart()
		beats(t, h[0])
		if j, err = s.Job(t.Context(), jobs[0].ID); err != nil || j.State != api.JobRunning || j.Listed != y.ID {
			t.Errorf("%+v (%v)", j, err)
		}
		if r, err := s.Abandon(t.Context(), y.ID, api.AbandonRequest{Jobs: true}); err != nil || !r.Complete {
			t.Errorf("%+v (%v)", r, err)
		}
		if j, err = s.WaitJob(t.Context(), jobs[0].ID, 0); err != nil || j.State != api.JobEnded {
			t.Errorf("%+v (%v)", j, err)
		}
		stopped(t, h[0])
	})
}
