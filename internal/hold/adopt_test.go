//go:build linux

package hold

import (
	"errors"
	"os/exec"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/cgroup"
	"pinfold.dev/containment"
	"pinfold.dev/internal/sys/systest"
	"pinfold.dev/pidfd"
)

// whose is what a caller has seen of a process.
func whose(t *testing.T, pid int) api.Identity {
	t.Helper()
	h, err := pidfd.Open(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	id, err := h.Identity()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func anybody(containment.Candidate) error { return nil }

func noted(containment.Adopted) error { return nil }

// inside tells whether a process is in a cgroup.
func inside(t *testing.T, pid int, d *cgroup.Dir) bool {
	t.Helper()
	return whose(t, pid).CgroupID == d.ID()
}

// pair starts a shell with a child, both in one cgroup, and waits for the child.
func pair(t *testing.T, d *cgroup.Dir) (shell *systest.Proc, child int) {
	t.Helper()
	shell = systest.Start(t, exec.Command("sh", "-c", "sleep 3600 & wait"))
	h, err := pidfd.Open(shell.PID())
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	systest.Until(t, "its child", func() bool {
		kids, err := h.Children()
		if err == nil && len(kids) == 1 {
			child = kids[0]
		}
		return child != 0
	})
	for _, pid := range []int{shell.PID(), child} {
		if err := d.Add(pid); err != nil {
			t.Fatal(err)
		}
	}
	return shell, child
}

// One whose service is killed amid it is undone: who was moved goes back, thawed, and
// is not in the turn. So is one whose leaf is gone already.
func TestAdoptionCutShort(t *testing.T) {
	for _, leafless := range []bool{false, true} {
		s := begin(t)
		home := place(t)
		shell, child := pair(t, home)
		line := whose(t, shell.PID())
		from, err := cgroupLine(shell.PID())
		if err != nil {
			t.Fatal(err)
		}
		if !leafless {
			leaf, err := s.work.Make("p7")
			if err == nil {
				err = leaf.Mark(adoptingMark + from)
			}
			if err == nil {
				err = leaf.Add(shell.PID())
			}
			if err == nil {
				err = leaf.Freeze(true)
			}
			if err != nil {
				t.Fatal(err)
			}
			leaf.Close()
		}
		s.restart()
		if _, why, err := s.Readopt(t.Context(), "p7", line, true, anybody); !errors.Is(err, containment.ErrUndone) {
			t.Fatalf("leafless %v: %v %q", leafless, err, why)
		}
		if !inside(t, shell.PID(), home) || !inside(t, child, home) {
			t.Error("it is not back")
		}
		if frozen, err := home.Frozen(); err != nil || frozen {
			t.Errorf("frozen %v, %v", frozen, err)
		}
		if kids, err := s.work.Children(); err != nil || len(kids) > 0 {
			t.Errorf("left: %q %v", kids, err)
		}
		if n, err := s.Alive(); err != nil || n != 0 {
			t.Errorf("%d in the turn (%v)", n, err)
		}
		shell.End()
	}
}

func cgroupLine(pid int) (string, error) {
	h, err := pidfd.Open(pid)
	if err != nil {
		return "", err
	}
	defer h.Close()
	return h.CgroupPath()
}

// A member that may not come along, and a record that cannot be written, leave all
// where it was.
func TestAdoptMovesBack(t *testing.T) {
	s := begin(t)
	home, other := place(t), place(t)
	shell, child := pair(t, home)
	if err := other.Add(child); err != nil {
		t.Fatal(err)
	}
	refused := errors.New("no")
	notChild := func(k containment.Candidate) error {
		if k.Identity.PID == child {
			if !k.Along || inside(t, shell.PID(), home) {
				t.Errorf("asked too early: %+v", k)
			}
			return refused
		}
		if k.Along || len(k.Above) == 0 {
			t.Errorf("%+v", k)
		}
		return nil
	}
	full := func(containment.Adopted) error { return refused }
	for name, a := range map[string]containment.Adopting{
		"a member": {May: notChild, Before: noted, Tree: true}, "the record": {May: anybody, Before: full, Tree: true}, "itself": {May: func(containment.Candidate) error { return refused }},
	} {
		a.Process, a.Said = "p1", whose(t, shell.PID())
		if _, err := s.Adopt(t.Context(), a); !errors.Is(err, refused) {
			t.Errorf("%s: %v", name, err)
		}
		if !inside(t, shell.PID(), home) || !inside(t, child, other) {
			t.Errorf("%s: they are not back", name)
		}
		if kids, err := s.work.Children(); err != nil || len(kids) > 0 {
			t.Errorf("%s left: %q %v", name, kids, err)
		}
	}
	out, err := s.Adopt(t.Context(), containment.Adopting{Process: "p1", Said: whose(t, shell.PID()), May: anybody, Before: noted, Tree: true})
	if err != nil || out.Moved != 2 || out.Grade != s.facts.Grade {
		t.Fatalf("%+v (%v)", out, err)
	}
	if _, err := s.Adopt(t.Context(), containment.Adopting{Process: "p1", Said: whose(t, child), May: anybody, Before: noted}); !errors.Is(err, containment.ErrUsed) {
		t.Errorf("a name twice: %v", err)
	}
	if k, err := s.Kill(t.Context(), time.Minute); err != nil || k.EmptyAt.IsZero() {
		t.Errorf("%+v (%v)", k, err)
	}
}

// Held by its identity it is asked, killed and listed with the rest, and nobody else.
func TestTokens(t *testing.T) {
	s := begin(t)
	w := tokened(s.hold)
	home := place(t)
	shell, child := pair(t, home)
	a := containment.Adopting{Process: "p1", Said: whose(t, shell.PID()), May: anybody, Before: noted, Token: true}
	out, err := s.keeping.Adopt(t.Context(), a)
	if err != nil || out.Grade != api.GradeToken || out.Moved != 0 || len(out.Evidence) == 0 {
		t.Fatalf("%+v (%v)", out, err)
	}
	if n, err := w.Alive(); err != nil || n != 1 {
		t.Errorf("%d (%v)", n, err)
	}
	ms, err := w.Members()
	if err != nil || len(ms) != 1 || ms[0].Process != "p1" || ms[0].Grade != api.GradeToken {
		t.Errorf("%+v (%v)", ms, err)
	}
	if ts, err := w.Targets(t.Context()); err != nil || len(ts) != 1 || ts[0].Verdict != api.VerdictOwned {
		t.Errorf("%+v (%v)", ts, err)
	}
	if _, err := w.Promote(t.Context(), "p1", nil); !errors.Is(err, api.ErrGradeUnavailable) {
		t.Errorf("a job: %v", err)
	}
	if _, err := w.EndLaunch(t.Context(), "p1", 0, 0, time.Minute, true); !errors.Is(err, api.ErrGradeUnavailable) {
		t.Errorf("its descendants: %v", err)
	}
	k, err := w.Kill(t.Context(), time.Minute)
	if err != nil || k.EmptyAt.IsZero() || k.Seen != 1 || k.Mechanism == "none" || len(k.Evidence["p1"]) == 0 || len(k.Escaped) > 0 {
		t.Errorf("%+v (%v)", k, err)
	}
	if !inside(t, child, home) {
		t.Error("its child was touched")
	}
	if err := w.WaitEmpty(t.Context()); err != nil {
		t.Error(err)
	}
}
