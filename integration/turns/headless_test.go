package turns

import (
	"slices"
	"testing"

	"pinfold.dev/api"
)

// What has no main thread any more runs on in its others: it is counted and listed as
// what runs beside it is, and a turn that keeps its leftovers keeps that, too.
func TestLeftoverWithoutAMainThread(t *testing.T) {
	t.Run(string(api.GradeCgroup), func(t *testing.T) { leftWithoutAMainThread(t, api.GradeCgroup) })
	barely(t, leftWithoutAMainThread)
}

func leftWithoutAMainThread(t *testing.T, g api.Grade) {
	s := serve(t, g, options{})
	newCanary(t, s)
	x := s.begin(t, api.BeginRequest{Leftovers: api.LeftoversKeep})
	f := files(t, "beats", "beside")
	h, beside := heart(f[0]), heart(f[1])
	p, q := x.launch(helper(t, "headless", f[0])), x.launch(helper(t, "beat", f[1]))
	h.beating(t)
	eventually(t, "its main thread has ended", func() bool { return stateOf(p.PID) == 'Z' })
	h.beating(t)
	beside.beating(t)
	m, err := s.Tree(t.Context(), x.ID)
	if err != nil || len(m.Members) != 2 || !slices.ContainsFunc(m.Members, func(m api.Member) bool { return m.PID == p.PID && m.State == "Z" }) {
		t.Errorf("tree: %+v, %v", m, err)
	}
	if v := x.look(); v.Alive != 2 {
		t.Errorf("%d are alive", v.Alive)
	}
	w, err := s.Why(t.Context(), x.ID)
	if err != nil || !slices.ContainsFunc(w.Targets, func(t api.Target) bool { return t.PID == p.PID && t.Verdict == api.VerdictOwned }) {
		t.Errorf("why: %+v, %v", w.Targets, err)
	}
	r, err := s.Finish(t.Context(), x.ID, api.FinishRequest{})
	if err != nil || !r.Complete || len(r.Leftovers) != 2 || !slices.ContainsFunc(r.Leftovers, func(l api.Leftover) bool { return l.PID == p.PID }) {
		t.Errorf("finish of %d and %d: %+v, %v", p.PID, q.PID, r, err)
	}
	h.beating(t)
	if r, err = s.Abandon(t.Context(), x.ID, api.AbandonRequest{Leftovers: true, GraceMS: new(int64(0))}); err != nil || r.LeftoversEndedAt == nil {
		t.Errorf("abandon its leftovers: %+v, %v", r, err)
	}
	stopped(t, h, beside)
}
