package turns

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys"
)

// serveBareAsUser starts a service of another user that makes no cgroups.
func serveBareAsUser(t *testing.T, g api.Grade, args ...string) *service {
	t.Helper()
	s := newService(t, g, options{wrap: []string{"asuser", place(t, "svc-"+string(g))}, args: args})
	if err := os.Chown(s.dir, someUID, someUID); err != nil {
		t.Fatal(err)
	}
	s.start()
	return s
}

// setuidOther is a launch that becomes wholly root's, by a set-user-ID program.
func setuidOther(t *testing.T, beat, program string) api.LaunchRequest {
	t.Helper()
	b, err := os.ReadFile(run.exe)
	if err == nil {
		err = os.WriteFile(program, b, 0o755)
	}
	if err == nil {
		err = os.Chmod(program, 0o755|os.ModeSetuid)
	}
	if err != nil {
		t.Fatal(err)
	}
	r := helper(t, "other", beat, "0")
	r.Argv[0] = program
	return r
}

// What a user's own service may not signal is a survivor, which says so; once it has
// ended the turn is over.
func TestBecameRoots(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be several users")
	}
	for _, g := range []api.Grade{api.GradeSubreaper, api.GradeToken} {
		t.Run(string(g), func(t *testing.T) {
			s := serveBareAsUser(t, g, "--bound", "1s")
			x := &turn{Turn: api.Turn{ID: s.beginAs(t, someUser())}, s: s, t: t}
			f := files(t, "roots", "own", "program")
			for _, r := range []api.LaunchRequest{setuidOther(t, f[0], f[2]), helper(t, "beat", f[1])} {
				words := append([]string{"run", "--turn", x.ID, "--detach", "--", "env", r.Env[0]}, r.Argv...)
				if said, code := s.pinfold(someUser(), words...); code != 0 {
					t.Fatalf("run: %s", said)
				}
			}
			heart(f[0]).beating(t)
			heart(f[1]).beating(t)
			p := x.look().Processes[0]
			r, err := s.Abandon(t.Context(), x.ID, api.AbandonRequest{GraceMS: new(int64)})
			if err != nil {
				t.Fatal(err)
			}
			const why = "it is uid 0's, whom uid 54321 may not signal"
			isIt := func(v api.Survivor) bool { return v.PID == p.PID && v.Why == why }
			if r.Complete || r.State != api.StateUnkillable || !slices.ContainsFunc(r.Survivors, isIt) {
				t.Errorf("complete %v, %s, %+v", r.Complete, r.State, r.Survivors)
			}
			eventually(t, "it alone survives", func() bool { // within a second the other may not have been seen gone
				left := x.look().Survivors
				return len(left) == 1 && isIt(left[0])
			})
			if text, _ := s.pinfold(nil, "receipt", x.ID); !strings.Contains(text, why) {
				t.Errorf("it is not told:\n%s", text)
			}
			stopped(t, heart(f[1]))
			heart(f[0]).beating(t)
			endOutside(t, p.PID)
			eventually(t, "the turn is over", func() bool { return x.look().State == api.StateAbandoned })
		})
	}
}

// endOutside ends a process of a turn as somebody else would.
func endOutside(t *testing.T, pid int) {
	t.Helper()
	p, err := os.FindProcess(pid) // by its handle
	if err == nil {
		err = p.Kill()
		_ = p.Release()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// At the grades without a cgroup, too, what is in a turn of another service stays
// there, its keeper and its orphans included.
func TestAdoptFromAnotherServiceWithoutCgroups(t *testing.T) {
	barely(t, func(t *testing.T, g api.Grade) {
		x := serve(t, api.GradeToken, options{}).begin(t, api.BeginRequest{})
		y := serve(t, g, options{}).begin(t, api.BeginRequest{})
		f := files(t, "held", "daemon")
		held := y.launch(helper(t, "beat", f[0])).PID
		founder := y.launch(helper(t, "daemon", f[1]))
		y.ended(founder.ID) // so that nobody takes it for its orphan
		heart(f[1]).beating(t)
		orphan := 0
		eventually(t, "an orphan", func() bool {
			tree, err := y.s.Tree(t.Context(), y.ID)
			for _, m := range tree.Members {
				if m.PID != held && m.State != "Z" {
					orphan = m.PID
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			return orphan != 0
		})
		for what, pid := range map[string]int{"its process": held, "its keeper": parentIn(t, held), "its orphan": orphan} {
			_, err := x.tryAdopt(pid, api.AdoptRequest{})
			wantNotAdopted(t, what, err, api.AdoptHeld)
			if e := wantCode(t, err, api.CodeAdoptRefused); e.Details["turn"] != y.ID {
				t.Errorf("%s: %+v", what, e)
			}
		}
		x.abandon(0)
		heart(f[0]).beating(t)
		heart(f[1]).beating(t)
		y.abandon(0)
	})
}

// parentIn is the parent of a process, from /proc.
func parentIn(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	st, err := sys.ParseStat(b)
	if err != nil {
		t.Fatal(err)
	}
	return st.PPID
}
