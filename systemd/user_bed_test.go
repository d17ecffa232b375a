package systemd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// From a log-in session the user's manager answers, but may not move our
// processes: the kernel wants a common ancestor that the user owns.
func TestSessionIsOutsideTheUserManager(t *testing.T) {
	needBed(t, bedSession)
	err := Available(t.Context(), true)
	e, ok := errors.AsType[*Error](err)
	if !ok || !errors.Is(err, ErrUnavailable) || !strings.Contains(e.Remedy, "systemd-run --user") {
		t.Errorf("Available: %#v", err)
	}
	m := connect(t, Config{User: true})
	p := sleeper(t)
	home := p.cgroup(t)
	s, err := m.StartScope(t.Context(), ScopeSpec{Unit: newUnit(), PID: p.pid, PIDFD: p.pidfd})
	if err == nil {
		t.Fatalf("made %+v", s)
	}
	e, ok = errors.AsType[*Error](err)
	if !ok || !strings.Contains(e.Remedy, "systemd-run --user") {
		t.Errorf("StartScope: %#v", err)
	}
	t.Log(err)
	if got := p.cgroup(t); got != home {
		t.Errorf("the process was moved to %s", got)
	}
	p.alive(t)
}

func TestUserMayNotUseTheSystemManager(t *testing.T) {
	needBed(t, bedSession)
	err := Available(t.Context(), false)
	e, ok := errors.AsType[*Error](err)
	if !ok || !errors.Is(err, ErrUnavailable) || e.Remedy == "" {
		t.Errorf("Available: %#v", err)
	}
	m := connect(t, Config{}) // its version anybody may read
	p := sleeper(t)
	_, err = m.StartScope(t.Context(), ScopeSpec{Unit: newUnit(), PID: p.pid, PIDFD: p.pidfd})
	e, ok = errors.AsType[*Error](err)
	if !ok || e.Remedy == "" {
		t.Errorf("StartScope: %#v", err)
	}
	t.Log(err)
}

func TestUserMayNotOpenTheSocket(t *testing.T) {
	needBed(t, bedSession)
	userAt(t, "unix:path=/run/systemd/private")
	err := Available(t.Context(), true)
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("%#v", err)
	}
}

// TestUserUnit runs the tests below as a unit of the user's manager.
func TestUserUnit(t *testing.T) {
	needBed(t, bedSession)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "systemd-run", "--user", "--quiet", "--wait", "--pipe", "--collect",
		"--setenv=PINFOLD_BED="+bedUnit, exe, "-test.v", "-test.run=^TestInUserUnit").CombinedOutput()
	t.Logf("%s", out)
	if err != nil || !strings.Contains(string(out), "--- PASS: TestInUserUnit") {
		t.Fatal(err)
	}
}

func TestInUserUnitScope(t *testing.T) {
	needBed(t, bedUnit)
	if err := Available(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	m := connect(t, Config{User: true})
	if !m.User() {
		t.Error("not a user's manager")
	}
	p, canary := sleeper(t), sleeper(t)
	s := start(t, m, p)
	want := fmt.Sprintf("/user.slice/user-%[1]d.slice/user@%[1]d.service/pinfold.slice/%[2]s", os.Getuid(), s.Unit)
	if s.ControlGroup != want {
		t.Errorf("scope in %s, want %s", s.ControlGroup, want)
	}
	if _, version := m.Version(); s.ByHandle != (version >= 255) {
		t.Errorf("by handle: %v at version %d", s.ByHandle, version)
	}
	// Delegated to the user: it may make cgroups in there.
	if err := os.Mkdir(mount+s.ControlGroup+"/work", 0o755); err != nil {
		t.Error(err)
	}
	if err := m.StopScope(t.Context(), s.Unit); err != nil {
		t.Error(err)
	}
	eventually(t, "the scope is gone", gone(s.ControlGroup))
	canary.alive(t)
}

// Without its bus the user's manager is reached at its own socket.
func TestInUserUnitPrivateSocket(t *testing.T) {
	needBed(t, bedUnit)
	t.Setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path="+t.TempDir()+"/none")
	for range 50 {
		m, err := Connect(t.Context(), Config{User: true, Timeout: 30 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		m.Close()
	}
	start(t, connect(t, Config{User: true}), sleeper(t))
}
