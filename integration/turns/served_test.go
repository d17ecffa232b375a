package turns

import (
	"slices"
	"testing"

	"pinfold.dev/api"
)

// A daemon that ran before, outside, works for a turn: that is told before the turn is
// ended, and on its receipt where a grace gave the time to look. The daemon is nobody's
// to end. Without a grace nobody looks, and nothing is made up.
func TestDaemonOutsideServes(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{})
		beside := newCanary(t, s)
		socket := files(t, "sock")[0]
		h := hearts(files(t, "daemon", "not asked", "visitor"))
		daemon := outsider(t, nil, "server", socket, string(h[0]), "daemon")
		served := func(what string, q api.Process, all []api.Served) {
			t.Helper()
			if len(all) != 1 || all[0].PID != q.PID || all[0].Process != q.ID || all[0].Comm == "" || all[0].Socket != "unix:"+socket ||
				len(all[0].By) != 1 || all[0].By[0].PID != daemon.pid || all[0].By[0].Comm == "" {
				t.Errorf("%s: %+v, not process %d, served by %d", what, all, q.PID, daemon.pid)
			}
		}
		x := s.begin(t, api.BeginRequest{})
		x.launch(helper(t, "beat", string(h[1])))
		q := x.launch(helper(t, "visitor", socket, string(h[2])))
		beats(t, h...)
		w, err := s.Why(t.Context(), x.ID)
		if served("why", q, w.ServedBy); err != nil || len(w.ServedBy) != 1 || !slices.Contains(w.Because, w.ServedBy[0].Words()) {
			t.Errorf("%q (%v)", w.Because, err)
		}
		p, err := s.Plan(t.Context(), x.ID, api.AbandonRequest{})
		if served("a rehearsal", q, p.ServedBy); err != nil || len(p.Targets) != 2 {
			t.Errorf("%+v (%v)", p.Targets, err)
		}
		beats(t, h...)
		r := x.abandon(0)
		if len(r.ServedBy) > 0 || r.TermAt != nil {
			t.Errorf("without a grace: %+v", r)
		}
		stopped(t, h[1], h[2])
		beats(t, h[0])
		for grace := int64(500); ; grace *= 4 { // until it is time enough to look, on whatever machine
			x = s.begin(t, api.BeginRequest{})
			heart := heart(files(t, "deaf visitor")[0])
			q = x.launch(helper(t, "visitor", socket, string(heart), "deaf"))
			beats(t, heart)
			r = x.abandon(grace)
			stopped(t, heart)
			beats(t, h[0])
			if len(r.ServedBy) > 0 || grace > 100_000 {
				break
			}
		}
		served("the receipt", q, r.ServedBy)
		s.kill()
		s.restart()
		r, err = s.Receipt(t.Context(), x.ID)
		if served("the receipt, later", q, r.ServedBy); err != nil || !r.Complete {
			t.Errorf("%+v (%v)", r, err)
		}
		beats(t, h[0])
		beside.lives()
	})
}
