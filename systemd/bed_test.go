package systemd

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// These tests run under a real systemd, in a bed that package integration
// boots: PINFOLD_BED says which. "root" is a root shell's place, "session" a
// log-in session of user bed, whose manager lingers.
const (
	bedRoot    = "root"
	bedSession = "session"
	bedUnit    = "user-unit" // a unit of the user's manager
)

// needBed skips a test whose bed this is not. In its bed the test has no excuse.
func needBed(t *testing.T, bed string) {
	t.Helper()
	if have := os.Getenv("PINFOLD_BED"); have != bed {
		t.Skipf("needs a real systemd: runs in the test bed %q (go test ./integration)", bed)
	}
}

// connect reaches the bed's manager; it must be there.
func connect(t *testing.T, cfg Config) *Manager {
	t.Helper()
	if cfg.Timeout == 0 {
		cfg.Timeout = 30 * time.Second // the machine may be a slow one
	}
	m, err := Connect(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// process is a child that sleeps, and its handle.
type process struct {
	cmd   *exec.Cmd
	pid   int
	pidfd int
}

// sleeper starts one that ends with the test, however that ends.
func sleeper(t *testing.T) *process {
	t.Helper()
	p := &process{cmd: exec.Command("sleep", "3600"), pidfd: -1}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, PidFD: &p.pidfd}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.pid = p.cmd.Process.Pid
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		if p.pidfd >= 0 {
			_ = syscall.Close(p.pidfd)
		}
	})
	return p
}

// alive fails the test when the process has ended: it is somebody's canary.
func (p *process) alive(t *testing.T) {
	t.Helper()
	if s := p.state(); s == "" || s == "Z" {
		t.Errorf("process %d was to live, its state is %q", p.pid, s)
	}
}

func (p *process) state() string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(p.pid) + "/stat")
	if err != nil {
		return ""
	}
	s := string(b)
	return strings.Fields(s[strings.LastIndexByte(s, ')')+1:])[0]
}

// cgroup is where the process is, as the bed sees it.
func (p *process) cgroup(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/" + strconv.Itoa(p.pid) + "/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	_, path, _ := strings.Cut(string(b), "0::")
	path, _, _ = strings.Cut(path, "\n")
	return path
}

// newUnit is a name that no other test has.
func newUnit() string {
	b := make([]byte, 8)
	_, _ = rand.Read(b)
	return UnitName(hex.EncodeToString(b))
}

// start makes a scope around p, which must work.
func start(t *testing.T, m *Manager, p *process, more ...Property) Scope {
	t.Helper()
	s, err := m.StartScope(t.Context(), ScopeSpec{Unit: newUnit(), Description: t.Name(),
		PID: p.pid, PIDFD: p.pidfd, Properties: more})
	if err != nil {
		t.Fatal(err)
	}
	if got := p.cgroup(t); got != s.ControlGroup {
		t.Fatalf("process is in %s, the scope is %s", got, s.ControlGroup)
	}
	return s
}

// systemctl runs it; it must work.
func systemctl(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "systemctl", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("systemctl %q: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// show reads a unit's property as systemctl prints it.
func show(t *testing.T, unit, property string) string {
	t.Helper()
	return systemctl(t, "show", "--value", "--property="+property, "--", unit)
}

// mount is where the bed has its cgroup v2.
const mount = "/sys/fs/cgroup"

// eventually waits for cond, a long time: beds can be slow.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not seen: %s", what)
		}
	}
}

func gone(dir string) func() bool {
	return func() bool {
		_, err := os.Stat(filepath.Join(mount, dir))
		return os.IsNotExist(err)
	}
}

func inode(t *testing.T, dir string) uint64 {
	t.Helper()
	st, err := os.Stat(filepath.Join(mount, dir))
	if err != nil {
		t.Fatal(err)
	}
	return st.Sys().(*syscall.Stat_t).Ino
}
