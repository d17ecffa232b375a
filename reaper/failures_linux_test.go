package reaper_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"pinfold.dev/internal/wire"
)

// failure is a launch and what must come of it.
type failure struct {
	name   string
	launch *wire.Launch
	kind   string
	errno  syscall.Errno
	path   string
}

// failures makes launches that fail, with files below dir.
func failures(t *testing.T, dir string) []failure {
	t.Helper()
	plain, noexec, private := filepath.Join(dir, "plain"), filepath.Join(dir, "noexec"), filepath.Join(dir, "private")
	if err := errors.Join(os.WriteFile(plain, []byte("echo hi\n"), 0o644), os.WriteFile(noexec, []byte("echo hi\n"), 0o755),
		os.Mkdir(private, 0o700)); err != nil {
		t.Fatal(err)
	}
	with := func(change func(*wire.Launch), argv ...string) *wire.Launch {
		l := request("", argv...)
		if change != nil {
			change(l)
		}
		return l
	}
	in := func(dir string) func(*wire.Launch) { return func(l *wire.Launch) { l.Cwd = dir } }
	as := func(uid, gid uint32, dir string) func(*wire.Launch) {
		return func(l *wire.Launch) { l.SetUser, l.UID, l.GID, l.Cwd = true, uid, gid, dir }
	}
	return []failure{
		{"missing", with(nil, "/no/such"), wire.ErrExec, syscall.ENOENT, "/no/such"},
		{"missing in PATH", with(nil, "nosuch"), wire.ErrExec, syscall.ENOENT, "nosuch"},
		{"not executable", with(nil, plain), wire.ErrExec, syscall.EACCES, plain},
		{"no format", with(nil, noexec), wire.ErrExec, syscall.ENOEXEC, noexec},
		{"a directory", with(nil, "/etc"), wire.ErrExec, syscall.EACCES, "/etc"},
		{"argument too long", with(nil, "true", strings.Repeat("x", 1<<18)), wire.ErrExec, syscall.E2BIG, "/usr/bin/true"},
		{"no such cwd", with(in("/no/such"), "true"), wire.ErrCwd, syscall.ENOENT, "/no/such"},
		{"cwd is a file", with(in(plain), "true"), wire.ErrCwd, syscall.ENOTDIR, plain},
		{"cwd forbidden", with(as(65534, 65534, private), "true"), wire.ErrCwd, syscall.EACCES, private},
		{"no user", with(as(1<<32-1, 1, "/"), "true"), wire.ErrUser, syscall.EINVAL, "4294967295"}, // -1: stay root
		{"no group", with(as(1, 1<<32-1, "/"), "true"), wire.ErrUser, syscall.EINVAL, "1"},
		{"no argv", with(nil), wire.ErrProtocol, 0, ""},
		{"a NUL", with(nil, "true", "\x00"), wire.ErrProtocol, syscall.EINVAL, ""},
		{"a descriptor too many", with(func(l *wire.Launch) { l.Stderr = 1 }, "true"), wire.ErrProtocol, 0, ""},
	}
}

func TestLaunchesThatFail(t *testing.T) {
	b := newBed(t)
	list := failures(t, b.dir)
	b.mustLaunch(request("taken", "sleep", "600"))
	fds := b.keeperFDs()
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for i, tt := range list {
		tt.launch.Process = fmt.Sprintf("p%d", i)
		a := b.launch(tt.launch, int(null.Fd()))
		if a.Error == nil || a.Error.Kind != tt.kind || a.Error.Errno != int(tt.errno) || a.Error.Path != tt.path {
			t.Errorf("%s: error %+v, want %s %v %s", tt.name, a.Error, tt.kind, tt.errno, tt.path)
		}
		eventually(t, tt.name+": no leaf is left", func() bool { return len(b.leaves()) == 1 })
	}
	for _, name := range []string{"", ".", "..", "a/b", "cgroup.procs", "taken", strings.Repeat("x", 65)} {
		if a := b.launch(request(name, "true")); a.Error == nil || (a.Error.Kind == wire.ErrUsed) != (name == "taken") {
			t.Errorf("process id %q: %+v", name, a.Error)
		}
	}
	eventually(t, "descriptors and children are as before", func() bool {
		return b.keeperFDs() == fds && len(strings.Fields(b.keeperChildren())) == 1
	})
	for _, e := range b.journal() {
		if e.Fact == wire.FactStarted && e.Process != "taken" {
			t.Errorf("journal says started: %+v", e)
		}
	}
	if m := b.call(wire.Message{Op: wire.OpFence}); m.Fenced == nil || m.Fenced.Launched != 1 {
		t.Errorf("fence: %+v", m)
	}
}

func TestCgroupFailures(t *testing.T) {
	b := newBed(t)
	limit := filepath.Join(b.work, "cgroup.max.descendants")
	if err := os.WriteFile(limit, []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	if a := b.launch(request("p1", "true")); a.Error == nil || a.Error.Kind != wire.ErrCgroup || a.Error.Errno != int(syscall.EAGAIN) {
		t.Errorf("no room for a leaf: %+v", a.Error)
	}
	if err := os.WriteFile(limit, []byte("max"), 0); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(b.work, "p2"), 0o755); err != nil {
		t.Fatal(err)
	}
	if a := b.launch(request("p2", "true")); a.Error == nil || a.Error.Kind != wire.ErrCgroup || a.Error.Errno != int(syscall.EEXIST) {
		t.Errorf("leaf that exists: %+v", a.Error)
	}
	freeze := filepath.Join(b.work, "cgroup.freeze")
	for _, tt := range []struct{ state, kind string }{{"1", wire.ErrFrozen}, {"0", ""}} {
		if err := os.WriteFile(freeze, []byte(tt.state), 0); err != nil {
			t.Fatal(err)
		}
		kind := ""
		if a := b.launch(request("p3", "true")); a.Error != nil {
			kind = a.Error.Kind
		}
		if kind != tt.kind {
			t.Errorf("freeze %s: error %q, want %q", tt.state, kind, tt.kind)
		}
	}
	b.exitOf("p3")
	eventually(t, "leaf p3 is removed", func() bool { return len(b.leaves()) == 1 })
	removeTree(b.work)
	if a := b.launch(request("p4", "true")); a.Error == nil || a.Error.Kind != wire.ErrCgroup || a.Error.Errno != int(syscall.ENOENT) {
		t.Errorf("removed cgroup: %+v", a.Error)
	}
	if m := b.call(wire.Message{Op: wire.OpHold, Hold: &wire.Hold{Work: "/tmp"}}); m.Error == nil || m.Error.Kind != wire.ErrProtocol {
		t.Errorf("another hold: %+v", m.Error)
	}
}

func TestHoldNeedsACgroup(t *testing.T) {
	b := newKeeper(t, nil)
	for _, path := range []string{"/tmp", "/no/such", "relative", ""} {
		if m := b.call(wire.Message{Op: wire.OpHold, Hold: &wire.Hold{Work: path}}); m.Error == nil || m.Error.Kind != wire.ErrCgroup {
			t.Errorf("hold %q: %+v", path, m.Error)
		}
	}
	if a := b.launch(request("p1", "true")); a.Error == nil || a.Error.Kind != wire.ErrProtocol {
		t.Errorf("launch before hold: %+v", a.Error)
	}
}

// A keeper of an ordinary user launches as that user and nobody else.
func TestUnprivileged(t *testing.T) {
	b := newKeeper(t, func(c *exec.Cmd) {
		c.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
		dir := c.Args[len(c.Args)-1]
		if err := errors.Join(os.Chown(dir, 65534, 65534), os.Chmod(filepath.Dir(dir), 0o755)); err != nil {
			t.Fatal(err)
		}
	})
	for _, dir := range []string{b.cgroup, b.work} {
		for _, f := range []string{"", "cgroup.procs"} {
			if err := os.Chown(filepath.Join(dir, f), 65534, 65534); err != nil {
				t.Fatal(err)
			}
		}
	}
	b.mustHold(false)
	l := request("p1", "id", "-u")
	l.SetUser, l.UID, l.GID = true, 65534, 65534
	if out := b.output(l); out != "65534\n" {
		t.Errorf("own user: %q", out)
	}
	l = request("p2", "id", "-u")
	l.SetUser, l.UID, l.GID = true, 0, 0
	if a := b.launch(l); a.Error == nil || a.Error.Kind != wire.ErrUser || a.Error.Errno != int(syscall.EPERM) {
		t.Errorf("root: %+v", a.Error)
	}
	l = request("p3", "sh", "-c", "cat /proc/self/oom_score_adj; nice")
	l.OOMScoreAdj, l.Nice = number(700), number(15)
	if out := b.output(l); out != "700\n15\n" {
		t.Errorf("score and priority: %q", out)
	}
	l = request("p4", "true")
	l.OOMScoreAdj = number(-700)
	if a := b.launch(l); a.Error == nil || a.Error.Kind != wire.ErrAttribute || a.Error.Errno != int(syscall.EACCES) {
		t.Errorf("a lower score: %+v", a.Error)
	}
	l = request("p5", "true")
	l.Nice = number(-3)
	if a := b.launch(l); a.Error == nil || a.Error.Kind != wire.ErrAttribute || a.Error.Path != "nice" {
		t.Errorf("a higher priority: %+v", a.Error)
	}
}

// The Go runtime dies when it cannot make a thread. What runs in a turn may use
// up all pids; here those of a PID namespace.
func TestOutOfPIDs(t *testing.T) {
	b := newKeeper(t, func(c *exec.Cmd) { c.SysProcAttr.Cloneflags = syscall.CLONE_NEWPID })
	b.mustHold(false)
	if out := b.output(request("max", "sh", "-c", "echo 301 > /proc/sys/kernel/pid_max && echo ok")); out != "ok\n" {
		t.Skipf("pid_max is not the namespace's own (requires >= 6.14): %q", out)
	}
	full := false
	for i := 0; i < 400 && !full; i++ {
		a := b.launch(request(fmt.Sprintf("p%d", i), "sleep", "600"))
		if full = a.Error != nil; full && (a.Error.Kind != wire.ErrFork || a.Error.Errno != int(syscall.EAGAIN)) {
			t.Fatalf("launch %d: %+v", i, a.Error)
		}
	}
	if !full {
		t.Fatal("400 launches with 301 pids")
	}
	for i := range 300 { // the collector has to run too
		if a := b.launch(request(fmt.Sprintf("q%d", i), "sleep", strings.Repeat("1", 20000))); a.Error == nil || a.Error.Kind != wire.ErrFork {
			t.Fatalf("launch without pids: %+v", a.Error)
		}
	}
	if err := os.WriteFile(filepath.Join(b.work, "cgroup.kill"), []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	b.exitOf("p0")
	i := 0
	eventually(t, "launches work again", func() bool {
		i++
		return b.launch(request(fmt.Sprintf("r%d", i), "true")).Error == nil
	})
}
