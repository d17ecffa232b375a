package turns

import (
	"os"
	"slices"
	"testing"

	"pinfold.dev/api"
)

// barely runs a test at each grade that needs no cgroup, unless this run is about
// others. (PINFOLD_TEST_GRADE has all tests run at one of them.)
func barely(t *testing.T, test func(t *testing.T, g api.Grade)) {
	for _, g := range []api.Grade{api.GradePIDNS, api.GradeSubreaper, api.GradeToken} {
		if of := grades(t); isBare(of[0]) && !slices.Contains(of, g) {
			continue
		}
		t.Run(string(g), func(t *testing.T) { test(t, g) })
	}
}

// Without a cgroup, too, whatever tries to get away is ended, and nothing else is;
// with a service that was killed meanwhile as well.
func TestWithoutCgroups(t *testing.T) {
	barely(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{})
		for _, c := range strays() {
			if g != api.GradeSubreaper && os.Getenv("PINFOLD_TEST_LONG") == "" && !slices.Contains([]string{"setsid", "double fork", "main thread exited", "traced from outside"}, c.name) {
				continue // alike at all of these grades
			}
			if slices.Contains([]string{"frozen", "nested cgroups", "main thread exited, moved in"}, c.name) {
				continue // these are about cgroups
			}
			t.Run(c.name, func(t *testing.T) { c.end(t, s) })
		}
		x := s.begin(t, api.BeginRequest{})
		f := files(t, "beat", "one", "two")
		x.launch(helper(t, "beat", f[0]))
		x.launch(helper(t, "setsid", f[1:]...))
		hearts := []heart{heart(f[0]), heart(f[1]), heart(f[2])}
		for _, h := range hearts {
			eventually(t, "a first beat", func() bool { return h.size(t) > 0 })
		}
		s.kill()
		s.restart()
		if v := x.look(); v.State != api.StateOpen || v.Grade != g || v.Alive < 3 {
			t.Errorf("after a crash the turn is %+v", v)
		}
		x.abandon(0)
		stopped(t, hearts...)
	})
}

// What needs a cgroup is refused, with a remedy, and the turn is none the worse.
func TestRefusedWithoutCgroups(t *testing.T) {
	barely(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{})
		x := s.begin(t, api.BeginRequest{})
		f := files(t, "beat")
		p := x.launch(helper(t, "beat", f[0]))
		_, freeze := s.Freeze(t.Context(), x.ID, 0)
		_, promote := s.Promote(t.Context(), x.ID, p.ID, api.PromoteRequest{Name: "late"})
		_, limits := s.Begin(t.Context(), api.BeginRequest{Limits: &api.Limits{PIDs: 10}})
		_, better := s.Begin(t.Context(), api.BeginRequest{MinGrade: api.GradeCgroup})
		_, launch := s.Launch(t.Context(), x.ID, api.LaunchRequest{Argv: []string{"true"}, Cwd: "/", MinGrade: api.GradeCgroup})
		for what, err := range map[string]error{"freeze": freeze, "promote": promote, "limits": limits, "min_grade": better, "launch": launch} {
			e, ok := err.(*api.Error)
			if !ok || e.Code != api.CodeGradeUnavailable && e.Code != api.CodeLimitUnavailable || e.Remedy == "" {
				t.Errorf("%s: %v", what, err)
			}
		}
		heart(f[0]).beating(t)
		if v := x.look(); v.State != api.StateOpen || v.Frozen || len(v.Degraded) == 0 {
			t.Errorf("afterwards the turn is %+v", v)
		}
		x.abandon(0)
	})
}
