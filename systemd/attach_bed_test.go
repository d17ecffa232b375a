package systemd

import (
	"os"
	"path/filepath"
	"testing"
)

// A process of a log-in session, which the user cannot move, is moved into a
// cgroup of theirs by the user's manager; one of root's is not.
func TestAttachFromASession(t *testing.T) {
	needBed(t, bedSession)
	p, other, canary := sleeper(t), sleeper(t), sleeper(t)
	home := canary.cgroup(t)
	m := connect(t, Config{User: true})
	s := start(t, m, p)
	sub := filepath.Join(mount, s.ControlGroup, "work", "p1")
	if err := os.MkdirAll(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := m.Attach(t.Context(), s.Unit, "/work/p1", other.pid); err != nil {
		t.Fatal(err)
	}
	if got := other.cgroup(t); got != s.ControlGroup+"/work/p1" {
		t.Errorf("it is in %s", got)
	}
	if got := canary.cgroup(t); got != home {
		t.Errorf("the canary is in %s, was in %s", got, home)
	}
	for _, bad := range []struct {
		unit, sub string
		pid       int
	}{{s.Unit, "/work", 1}, {s.Unit, "/work", os.Getppid()}, {"ssh.service", "/work", other.pid}, {s.Unit, "work", other.pid}, {newUnit(), "/work", other.pid}} {
		if err := m.Attach(t.Context(), bad.unit, bad.sub, bad.pid); err == nil {
			t.Errorf("%+v: no error", bad)
		}
	}
	if got := other.cgroup(t); got != s.ControlGroup+"/work/p1" {
		t.Errorf("after refusals it is in %s", got)
	}
	canary.alive(t)
	if err := m.StopScope(t.Context(), s.Unit); err != nil {
		t.Error(err)
	}
}
