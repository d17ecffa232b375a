package systemd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// From a log-in session, whose cgroup the user does not own, the user's manager
// has PID 1 move the process.
func TestSessionOutsideTheUserManager(t *testing.T) {
	needBed(t, bedSession)
	if err := Available(t.Context(), true); err != nil {
		t.Error(err)
	}
	p, canary := sleeper(t), sleeper(t)
	if home := p.cgroup(t); strings.Contains(home, "user@") {
		t.Fatalf("the session is in %s", home)
	}
	m := connect(t, Config{User: true})
	s := start(t, m, p)
	if err := m.StopScope(t.Context(), s.Unit); err != nil {
		t.Error(err)
	}
	canary.alive(t)
}

// It cannot ask PID 1 where there is no system bus. That is said, with what to
// do about it.
func TestUserManagerWithoutSystemBus(t *testing.T) {
	needBed(t, bedRoot)
	systemctl(t, "stop", "dbus.socket", "dbus.service")
	defer systemctl(t, "start", "dbus.socket", "dbus.service")
	out := asBedUser(t, "^TestHelperOutsideWithoutSystemBus$", bedNoSystemBus)
	if !strings.Contains(out, "--- PASS: TestHelperOutsideWithoutSystemBus") {
		t.Fatal(out)
	}
}

// bedNoSystemBus is where a process of user bed runs outside its manager's
// cgroup, with no system bus.
const bedNoSystemBus = "no-system-bus"

func TestHelperOutsideWithoutSystemBus(t *testing.T) {
	needBed(t, bedNoSystemBus)
	err := Available(t.Context(), true)
	t.Log(err)
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
	if e, ok = errors.AsType[*Error](err); !ok || !strings.Contains(e.Remedy, "systemd-run --user") {
		t.Errorf("StartScope: %#v", err)
	}
	if got := p.cgroup(t); got != home {
		t.Errorf("the process was moved to %s", got)
	}
	p.alive(t)
}

// asBedUser runs tests of this binary as user bed, from root's cgroup.
func asBedUser(t *testing.T, pattern, bed string) string {
	t.Helper()
	u, err := user.Lookup("bed")
	if err != nil {
		t.Fatal(err)
	}
	uid, err1 := strconv.Atoi(u.Uid)
	gid, err2 := strconv.Atoi(u.Gid)
	exe, err3 := os.Executable()
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe, "-test.v", "-test.run="+pattern)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "XDG_RUNTIME_DIR=/run/user/" + u.Uid, "PINFOLD_BED=" + bed}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("as user bed: %v", err)
	}
	t.Logf("%s", out)
	return string(out)
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
