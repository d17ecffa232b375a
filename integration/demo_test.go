package integration

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/pidfd"
)

// The demo proves what it shows; here it is held to that, on this machine and
// under systemd, as root and as a user that has logged in.

func TestDemo(t *testing.T) {
	needRoot(t)
	d := startDemo(t, Binaries(t), demoDir(t))
	d.ends(t, 0)
	d.proved(t)
	d.leavesNothing(t)
}

// TestDemoAsUser is without a service manager and without a cgroup that may be
// written: what holds the turn then is proved to be gone.
func TestDemoAsUser(t *testing.T) {
	needRoot(t)
	t.Parallel()
	dir := stage(t)
	for _, name := range []string{"demo.sh", "mess.sh"} {
		stageFile(t, dir, filepath.Join(demoDir(t), name))
	}
	bin := Binaries(t)
	for _, name := range []string{"pinfold", "pinfold-init"} {
		stageFile(t, dir, filepath.Join(bin, name))
	}
	d := startDemoAs(t, dir, dir, 65534)
	d.ends(t, 0)
	d.proved(t)
	if out := d.out.String(); strings.Contains(out, "at grade scope") || strings.Contains(out, "at grade cgroup") {
		t.Errorf("nobody has a cgroup:\n%s", out)
	}
	d.leavesNothing(t)
}

// TestDemoInterrupted is Ctrl-C while the mess is at its worst.
func TestDemoInterrupted(t *testing.T) {
	needRoot(t)
	d := startDemo(t, Binaries(t), demoDir(t))
	for end := time.Now().Add(time.Minute); !strings.Contains(d.out.String(), "pinfold tree"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the demo did not come to its tree:\n%s", d.out.String())
		}
	}
	// bash leaves an interrupt to the command that it waits for, and forgets it if that
	// has just ended: people press the keys again.
	over, pressed := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(pressed)
		for {
			_ = syscall.Kill(-d.cmd.Process.Pid, syscall.SIGINT)
			select {
			case <-over:
				return
			case <-time.After(2 * time.Second):
			}
		}
	}()
	d.ends(t, 130, func() { close(over); <-pressed })
	d.leavesNothing(t)
}

func TestDemoInBeds(t *testing.T) {
	needRoot(t)
	dir := stage(t)
	for _, name := range []string{"demo.sh", "mess.sh"} {
		stageFile(t, dir, filepath.Join(demoDir(t), name))
	}
	for _, o := range []BedOptions{{Bed: "demo"}, {Bed: "demo", User: "bed"}} {
		t.Run("as "+o.User, func(t *testing.T) {
			o.Bin, o.Env = true, []string{"PINFOLD_DEMO_DIR=" + dir}
			InNamespaceBed(t, "", o, "^TestDemoThere$")
		})
	}
}

func TestDemoThere(t *testing.T) {
	needBed(t, "demo")
	d := startDemo(t, os.Getenv("PINFOLD_BIN_DIR"), os.Getenv("PINFOLD_DEMO_DIR"))
	d.ends(t, 0)
	d.proved(t)
	if !strings.Contains(d.out.String(), "holds turns at grade scope") {
		t.Errorf("under systemd the demo is not at grade scope:\n%s", d.out.String())
	}
	d.leavesNothing(t)
}

func demoDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../examples/demo")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// demo is a running demo, in a process group and a directory of its own.
type demo struct {
	cmd *exec.Cmd
	tmp string
	out *lockedBuffer
}

func startDemo(t *testing.T, bin, dir string) *demo {
	t.Helper()
	return startDemoAs(t, bin, dir, os.Getuid())
}

func startDemoAs(t *testing.T, bin, dir string, uid int) *demo {
	t.Helper()
	tmp, err := os.MkdirTemp("", "pinfold-demo-test.")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(tmp) })
	d := &demo{cmd: exec.Command(filepath.Join(dir, "demo.sh")), tmp: tmp, out: &lockedBuffer{}}
	d.cmd.Env = append(os.Environ(), "PINFOLD_BIN="+bin, "TMPDIR="+tmp, "LC_ALL=C.UTF-8", "NO_COLOR=1")
	d.cmd.Stdout, d.cmd.Stderr = d.out, d.out
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if uid != os.Getuid() {
		d.cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}
		if err := os.Chown(tmp, uid, uid); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return d
}

// ends waits for the end; before is called when that has come, and it was not reaped.
func (d *demo) ends(t *testing.T, want int, before ...func()) {
	t.Helper()
	late := time.AfterFunc(5*time.Minute, func() { _ = syscall.Kill(-d.cmd.Process.Pid, syscall.SIGTERM) })
	defer late.Stop()
	if len(before) > 0 {
		h, err := pidfd.Open(d.cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		err = h.Wait(t.Context())
		_ = h.Close()
		before[0]()
		if err != nil {
			t.Fatal(err)
		}
	}
	_ = d.cmd.Wait()
	if got := d.cmd.ProcessState.ExitCode(); got != want {
		t.Fatalf("the demo exited with %d, not %d:\n%s", got, want, d.out.String())
	}
}

func (d *demo) proved(t *testing.T) {
	t.Helper()
	out := d.out.String()
	if n := len(regexp.MustCompile(`(?m)^  proved  `).FindAllString(out, -1)); n != 4 {
		t.Errorf("the demo proved %d things, not 4:\n%s", n, out)
	}
	for _, want := range []string{"✔ complete", "  setsid\n", "  daemon\n", " stubborn\n"} {
		if !strings.Contains(strings.ReplaceAll(out, "─ ", "  "), want) {
			t.Errorf("the demo does not show %q:\n%s", want, out)
		}
	}
	t.Log(out)
}

// leavesNothing looks for files of the demo, processes that name its
// directory, and the turn's cgroup.
func (d *demo) leavesNothing(t *testing.T) {
	t.Helper()
	if left, err := os.ReadDir(d.tmp); err != nil || len(left) > 0 {
		t.Errorf("left in %s: %v, %v", d.tmp, left, err)
	}
	var left []string
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if left = naming(d.tmp); len(left) == 0 {
			break
		}
	}
	if len(left) > 0 {
		t.Errorf("processes left: %q", left)
	}
	id := regexp.MustCompile(`--turn (\w+)`).FindStringSubmatch(d.out.String())
	if id == nil {
		t.Fatalf("the demo names no turn:\n%s", d.out.String())
	}
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, e os.DirEntry, err error) error {
		if err == nil && strings.Contains(e.Name(), id[1]) {
			t.Errorf("cgroup left: %s", path)
		}
		return nil
	})
}

// naming lists processes whose arguments or working directory name dir.
func naming(dir string) (found []string) {
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range all {
		args, _ := os.ReadFile(p + "/cmdline")
		cwd, _ := os.Readlink(p + "/cwd")
		if bytes.Contains(args, []byte(dir)) || strings.HasPrefix(cwd, dir) {
			found = append(found, p+" "+string(bytes.ReplaceAll(args, []byte{0}, []byte{' '})))
		}
	}
	return found
}

// lockedBuffer may be read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
