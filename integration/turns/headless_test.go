package turns

import (
	"testing"

	"pinfold.dev/api"
)

// What has no main thread any more runs on in its others: a turn that keeps its
// leftovers keeps that, too, and lists it.
func TestLeftoverWithoutAMainThread(t *testing.T) {
	s := serve(t, api.GradeCgroup, options{})
	newCanary(t, s)
	x := s.begin(t, api.BeginRequest{Leftovers: api.LeftoversKeep})
	h := heart(files(t, "beats")[0])
	p := x.launch(helper(t, "headless", string(h)))
	h.beating(t)
	eventually(t, "its main thread has ended", func() bool {
		m, err := s.Tree(t.Context(), x.ID)
		return err == nil && len(m.Members) == 1 && m.Members[0].State == "Z"
	})
	r, err := s.Finish(t.Context(), x.ID, api.FinishRequest{})
	if err != nil || !r.Complete || len(r.Leftovers) != 1 || r.Leftovers[0].PID != p.PID {
		t.Errorf("finish: %+v, %v", r, err)
	}
	h.beating(t)
	if r, err = s.Abandon(t.Context(), x.ID, api.AbandonRequest{Leftovers: true, GraceMS: new(int64(0))}); err != nil || r.LeftoversEndedAt == nil {
		t.Errorf("abandon its leftovers: %+v, %v", r, err)
	}
	stopped(t, h)
}
