package spawn

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// start starts argv with stdout in a file and returns what came of it.
func start(t *testing.T, s *Spawner, spec Spec) (*Child, *os.File, error) {
	t.Helper()
	out, err := os.CreateTemp(t.TempDir(), "out")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close() })
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { null.Close() })
	spec.Stdio = [3]int{int(null.Fd()), int(out.Fd()), int(out.Fd())}
	if spec.Dir == "" {
		spec.Dir = "/"
	}
	spec.Cgroup = -1
	c, err := s.Start(&spec)
	if err != nil {
		return nil, out, err
	}
	t.Cleanup(func() { syscall.Close(c.PIDFD) })
	if spec.Gate {
		return c, out, nil
	}
	return c, out, confirm(t, c)
}

func confirm(t *testing.T, c *Child) error {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if done, err := c.Confirm(); done {
			syscall.Close(c.Status)
			return err
		}
	}
	t.Fatal("start is not decided after two minutes")
	return nil
}

func wait(t *testing.T, c *Child) syscall.WaitStatus {
	t.Helper()
	var ws syscall.WaitStatus
	if _, err := syscall.Wait4(c.PID, &ws, 0, nil); err != nil {
		t.Fatal("wait:", err)
	}
	return ws
}

func text(t *testing.T, f *os.File) string {
	t.Helper()
	b, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestStart(t *testing.T) {
	var s Spawner
	c, out, err := start(t, &s, Spec{
		Argv: []string{"sh", "-c", "echo $X; pwd; ls /proc/self/fd; ps -o sid= -p $$ | tr -d ' '; exit 7"},
		Env:  []string{"X=one", "PATH=/nowhere:/usr/bin:/bin"}, Dir: "/usr",
	})
	if err != nil {
		t.Fatal(err)
	}
	if ws := wait(t, c); ws.ExitStatus() != 7 {
		t.Errorf("status %v, want 7", ws)
	}
	got := strings.Fields(text(t, out))
	// ls has its directory open as 3.
	if len(got) != 7 || strings.Join(got[:6], " ") != "one /usr 0 1 2 3" {
		t.Errorf("child saw %q", got)
	}
	if len(s.stacks) != 1 {
		t.Errorf("%d stacks came back, want 1", len(s.stacks))
	}
}

func TestStepsThatFail(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string, mode os.FileMode) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return p
	}
	plain := write("plain", "#!/bin/sh\n", 0o644)
	noexec := write("noexec", "echo hello\n", 0o755)
	interp := write("interp", "#!/no/such/interpreter\n", 0o755)
	private := filepath.Join(dir, "private")
	if err := os.Mkdir(private, 0o700); err != nil {
		t.Fatal(err)
	}
	nobody := &User{UID: 65534, GID: 65534, SetGroups: true}
	for _, tt := range []struct {
		name  string
		spec  Spec
		step  Step
		errno syscall.Errno
		path  string
	}{
		{"missing", Spec{Argv: []string{"/no/such"}}, StepExec, syscall.ENOENT, "/no/such"},
		{"missing in PATH", Spec{Argv: []string{"nosuch"}, Env: []string{"PATH=/usr/bin:/bin"}}, StepExec, syscall.ENOENT, "nosuch"},
		{"not executable", Spec{Argv: []string{plain}}, StepExec, syscall.EACCES, plain},
		{"not executable in PATH", Spec{Argv: []string{"plain"}, Env: []string{"PATH=" + dir + ":/bin"}}, StepExec, syscall.EACCES, plain},
		{"directory", Spec{Argv: []string{"/etc"}}, StepExec, syscall.EACCES, "/etc"},
		{"no format", Spec{Argv: []string{noexec}}, StepExec, syscall.ENOEXEC, noexec},
		{"no interpreter", Spec{Argv: []string{interp}}, StepExec, syscall.ENOENT, interp},
		{"argument too long", Spec{Argv: []string{"/bin/true", strings.Repeat("x", 1<<18)}}, StepExec, syscall.E2BIG, "/bin/true"},
		{"cwd missing", Spec{Argv: []string{"/bin/true"}, Dir: "/no/such"}, StepCwd, syscall.ENOENT, ""},
		{"cwd forbidden to the user", Spec{Argv: []string{"/bin/true"}, Dir: private, User: nobody}, StepCwd, syscall.EACCES, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.spec.User != nil && os.Geteuid() != 0 {
				t.Skip("needs root")
			}
			var s Spawner
			c, _, err := start(t, &s, tt.spec)
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("error %v, want an *Error", err)
			}
			wait(t, c)
			if e.Step != tt.step || e.Errno != tt.errno || e.Path != tt.path {
				t.Errorf("step %d errno %d path %q (%v), want %d %d %q", e.Step, e.Errno, e.Path, e, tt.step, tt.errno, tt.path)
			}
		})
	}
}

func TestPathSearchUsesTheUsersRights(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir() // 0755 below a 0755 parent, made private here
	if err := os.WriteFile(filepath.Join(dir, "true"), []byte("#!/bin/sh\nexit 9\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	var s Spawner
	c, _, err := start(t, &s, Spec{
		Argv: []string{"true"}, Env: []string{"PATH=" + dir + ":/usr/bin:/bin"},
		User: &User{UID: 65534, GID: 65534, SetGroups: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	if ws := wait(t, c); ws.ExitStatus() != 0 {
		t.Errorf("status %d: root's own file was executed", ws.ExitStatus())
	}
}

func TestGate(t *testing.T) {
	var s Spawner
	c, out, err := start(t, &s, Spec{Argv: []string{"echo", "ran"}, Gate: true})
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond)
	if done, _ := c.Confirm(); done || text(t, out) != "" {
		t.Fatalf("passed a closed gate: %q", text(t, out))
	}
	if err := c.Open(); err != nil {
		t.Fatal(err)
	}
	if err := confirm(t, c); err != nil {
		t.Fatal(err)
	}
	if wait(t, c); text(t, out) != "ran\n" {
		t.Errorf("output %q", text(t, out))
	}
}

func TestGateOfTheDead(t *testing.T) {
	var s Spawner
	c, out, err := start(t, &s, Spec{Argv: []string{"echo", "ran"}, Gate: true})
	if err != nil {
		t.Fatal(err)
	}
	c.closeGate() // as the kernel does when we die
	if err := confirm(t, c); err != nil {
		t.Fatal(err)
	}
	if ws := wait(t, c); ws.ExitStatus() != 127 || text(t, out) != "" {
		t.Errorf("status %d, output %q", ws.ExitStatus(), text(t, out))
	}
}

func TestDescriptorsDoNotLeak(t *testing.T) {
	count := func() int {
		d, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(d)
	}
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	fd := int(null.Fd())
	var s Spawner
	run := func(argv string) {
		c, err := s.Start(&Spec{Argv: []string{argv}, Dir: "/", Stdio: [3]int{fd, fd, fd}, Cgroup: -1})
		if err != nil {
			t.Fatal(err)
		}
		confirm(t, c)
		wait(t, c)
		syscall.Close(c.PIDFD)
	}
	run("/bin/true")
	before := count()
	for range 20 {
		run("/bin/true")
		run("/no/such")
		if _, err := s.Start(&Spec{Argv: []string{"/bin/true"}, Dir: "/", Stdio: [3]int{fd, fd, fd}, Cgroup: fd}); err == nil {
			t.Fatal("cloned into /dev/null")
		}
	}
	if after := count(); after > before {
		t.Errorf("%d descriptors, before %d", after, before)
	}
	if len(s.stacks) != 1 {
		t.Errorf("%d stacks, want 1", len(s.stacks))
	}
}
