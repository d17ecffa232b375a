package turns

import (
	"strings"
	"testing"

	"pinfold.dev/api"
)

// What an ending would do is told as it would be: by the rule of the turn, and once
// it is over by what is asked for. Whoever asks for the end of its jobs then gets
// that, too: "complete" would be no answer while they run on.
func TestJobsOfATurnThatIsOver(t *testing.T) {
	s := serve(t, grades(t)[0], options{})
	defer s.stopJobs()
	x := s.begin(t, api.BeginRequest{Policy: api.EndPolicy{api.ReasonStop: {Processes: api.FateKeep}}})
	h := hearts(files(t, "left", "made", "given"))
	p := x.launch(helper(t, "beat", string(h[0])))
	q := x.launch(helper(t, "beat", string(h[1])))
	beats(t, h[:2]...)
	made, err := s.Promote(t.Context(), x.ID, q.ID, api.PromoteRequest{})
	if err != nil {
		t.Fatal(err)
	}
	given, err := s.StartJob(t.Context(), api.JobRequest{Launch: helper(t, "beat", string(h[2]))})
	if err == nil {
		given, err = s.Transfer(t.Context(), given.ID, api.TransferRequest{Turn: x.ID})
	}
	if err != nil {
		t.Fatal(err)
	}
	would := func(targets []api.Target, process, word, part string) {
		t.Helper()
		for _, g := range targets {
			if g.Process == process && g.Would == word && strings.Contains(g.Why, part) {
				return
			}
		}
		t.Errorf("%s would not be %s (%s): %+v", process, word, part, targets)
	}
	plan := func(req api.AbandonRequest) []api.Target {
		t.Helper()
		a, err := s.Plan(t.Context(), x.ID, req)
		if err != nil {
			t.Fatal(err)
		}
		return a.Targets
	}
	w, err := s.Why(t.Context(), x.ID)
	if err != nil {
		t.Fatal(err)
	}
	would(w.Targets, p.ID, "kept", "the policy for stop")
	would(plan(api.AbandonRequest{Jobs: true}), q.ID, "signalled", "jobs are ended, too")
	if r, err := s.Abandon(t.Context(), x.ID, api.AbandonRequest{}); err != nil || len(r.Leftovers) != 1 {
		t.Fatalf("%+v (%v)", r, err)
	}
	would(plan(api.AbandonRequest{Leftovers: true}), p.ID, "signalled", "")
	would(plan(api.AbandonRequest{Jobs: true}), p.ID, "kept", "left running")
	would(plan(api.AbandonRequest{Jobs: true}), q.ID, "signalled", "jobs are ended, too")
	beats(t, h...)
	_, err = s.Abandon(t.Context(), x.ID, api.AbandonRequest{Jobs: true, Epoch: 9, GraceMS: new(int64(0))})
	wantCode(t, err, api.CodeStaleEpoch)
	beats(t, h...)
	r, err := s.Abandon(t.Context(), x.ID, api.AbandonRequest{Jobs: true, GraceMS: new(int64(0))})
	if err != nil || len(r.Jobs) != 2 {
		t.Fatalf("%+v (%v)", r, err)
	}
	for _, j := range r.Jobs {
		if j.State != api.JobEnded || j.ID != made.ID && j.ID != given.ID {
			t.Errorf("%+v", j)
		}
	}
	stopped(t, h[1], h[2])
	beats(t, h[0])
	if _, err := s.Abandon(t.Context(), x.ID, api.AbandonRequest{Leftovers: true}); err != nil {
		t.Error(err)
	}
	stopped(t, h[0])
	for _, path := range []string{"/no\x00path", "/" + strings.Repeat("a/", 4000)} {
		if q, err := s.Quiet(t.Context(), path); err == nil || q.Quiet {
			t.Errorf("what is no path is quiet: %+v", q)
		}
	}
}

// A job that was made of a leftover ends with the others of its turn, also where the
// ending itself was one that ends jobs.
func TestJobMadeOfALeftoverEnds(t *testing.T) {
	s := serve(t, grades(t)[0], options{})
	defer s.stopJobs()
	x := s.begin(t, api.BeginRequest{Policy: api.EndPolicy{api.ReasonStop: {Processes: api.FateKeep, Jobs: api.FateEnd}}})
	h := hearts(files(t, "left", "made"))
	x.launch(helper(t, "beat", string(h[0])))
	q := x.launch(helper(t, "beat", string(h[1])))
	beats(t, h...)
	if r, err := s.Abandon(t.Context(), x.ID, api.AbandonRequest{}); err != nil || len(r.Leftovers) != 2 {
		t.Fatalf("%+v (%v)", r, err)
	}
	j, err := s.Promote(t.Context(), x.ID, q.ID, api.PromoteRequest{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Abandon(t.Context(), x.ID, api.AbandonRequest{Jobs: true, GraceMS: new(int64(0))})
	if err != nil || len(r.Jobs) != 1 || r.Jobs[0].ID != j.ID || r.Jobs[0].State != api.JobEnded {
		t.Fatalf("%+v (%v)", r, err)
	}
	stopped(t, h[1])
	beats(t, h[0])
	if _, err := s.Abandon(t.Context(), x.ID, api.AbandonRequest{Leftovers: true}); err != nil {
		t.Error(err)
	}
	stopped(t, h[0])
}

// A job that was given to a turn is not one of those that were made in it: the
// receipt of an ending that ends it says so all the same.
func TestGivenJobEndsWithItsTurn(t *testing.T) {
	s := serve(t, grades(t)[0], options{})
	defer s.stopJobs()
	x := s.begin(t, api.BeginRequest{})
	h := hearts(files(t, "given"))
	j, err := s.StartJob(t.Context(), api.JobRequest{Launch: helper(t, "beat", string(h[0]))})
	if err == nil {
		_, err = s.Transfer(t.Context(), j.ID, api.TransferRequest{Turn: x.ID})
	}
	if err != nil {
		t.Fatal(err)
	}
	beats(t, h...)
	r, err := s.Abandon(t.Context(), x.ID, api.AbandonRequest{Jobs: true, GraceMS: new(int64(0))})
	if err != nil || !r.Complete || !strings.Contains(strings.Join(r.Notes, "\n"), "job "+j.ID+", which was given to the turn, is ended with it") {
		t.Errorf("%+v (%v)", r, err)
	}
	stopped(t, h...)
}
