package records

import (
	"strings"
	"testing"

	"pinfold.dev/api"
)

// A turn that is closed as lost, though its cgroup lives and bears our mark, is
// ended in the same start, as a stray: the record was damaged, the mark was not.
func TestLostTurnThatLives(t *testing.T) {
	for name, change := range map[string]func(r map[string]any){
		"another boot":   func(r map[string]any) { r["boot"] = "00000000-0000-4000-8000-000000000000" },
		"another cgroup": func(r map[string]any) { part(r, "facts")["cgroup_id"] = 1 },
		"another path": func(r map[string]any) {
			f := part(r, "facts")
			f["cgroup"] = f["cgroup"].(string) + "0"
		},
		"another nonce": func(r map[string]any) {
			f := part(r, "facts")
			f["nonce"] = f["nonce"].(string) + "0"
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t)
			canary := newCanary(t, s.parent)
			x, y := s.begin(api.BeginRequest{}), s.begin(api.BeginRequest{})
			p, q := s.launch(x.ID, "exec sleep 100000"), s.launch(y.ID, "exec sleep 100000")
			s.kill()
			s.edit(x.ID, change)
			s.start()
			if r := s.receipt(x.ID); r.State != api.StateLost {
				t.Errorf("it is %s", r.State)
			}
			eventually(t, "its process is ended", func() bool { st := stateOf(p.PID); return st == 0 || st == 'Z' })
			eventually(t, "that is told", func() bool { return strings.Contains(s.log(), "ended the stray "+x.Cgroup) })
			if v := s.look(y.ID); v.State != api.StateOpen || v.Alive != 1 || stateOf(q.PID) == 0 {
				t.Errorf("the turn beside is %s, alive %d", v.State, v.Alive)
			}
			canary.lives()
		})
	}
}
