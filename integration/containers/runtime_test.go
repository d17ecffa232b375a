package containers

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// oci is a runtime: crun or runc. Rootless is one that an ordinary user calls.
type oci struct {
	name     string
	path     string
	rootless bool
}

// runtimes runs a test with each, side by side.
func runtimes(t *testing.T, test func(t *testing.T, rt oci)) {
	needHost(t)
	for _, name := range []string{"crun", "runc"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, findRuntime(t, name))
		})
	}
}

func findRuntime(t testing.TB, name string) oci {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		missing(t, "the program "+name+" (scripts/deps.sh installs it)")
	}
	return oci{name: name, path: path}
}

// command is a call of the runtime.
func (rt oci) command(args ...string) *exec.Cmd {
	state := filepath.Join("/run", rt.name)
	if rt.rootless {
		state = filepath.Join(userDir, rt.name)
	}
	cmd := exec.Command(rt.path, append([]string{"--root", state}, args...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	if rt.rootless {
		cmd.Env = append(cmd.Env, "XDG_RUNTIME_DIR="+userDir, "HOME="+userDir)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: ordinary, Gid: ordinary}}
	}
	return cmd
}

// userDir is of the ordinary user who has containers; userCgroup is delegated
// to that user.
const (
	userDir    = "/run/user"
	userCgroup = cgroupfs + "/user"
)

// user prepares for the containers of an ordinary user, once.
var user = sync.OnceValue(func() error {
	for _, dir := range []string{userDir, userCgroup, userCgroup + "/session"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := os.Chown(dir, ordinary, ordinary); err != nil {
			return err
		}
	}
	for _, f := range []string{"cgroup.procs", "cgroup.subtree_control", "cgroup.threads"} { // see cgroups(7) on delegation
		for _, dir := range []string{userCgroup, userCgroup + "/session"} {
			if err := os.Chown(dir+"/"+f, ordinary, ordinary); err != nil {
				return err
			}
		}
	}
	return nil
})

// container is one that runs.
type container struct {
	t    testing.TB
	rt   oci
	id   string
	of   *bundle
	cmd  *exec.Cmd
	in   io.Writer // to its terminal
	out  output
	done chan struct{}
}

// output is what is written, by several at once.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// start makes a container and starts it, in the foreground of the runtime.
func (rt oci) start(t testing.TB, b *bundle) *container {
	t.Helper()
	b.write(t)
	c := &container{t: t, rt: rt, id: filepath.Base(b.dir), of: b, done: make(chan struct{})}
	c.cmd = rt.command("run", "--bundle", b.dir, c.id)
	if b.Process.Terminal || b.detached {
		c.cmd = exec.Command(run.exe, slices.Concat([]string{b.dir, strconv.FormatBool(b.Process.Terminal)}, rt.command().Args)...)
		c.cmd.Env = append(os.Environ(), roleEnv+"=conmon")
		var err error
		if c.in, err = c.cmd.StdinPipe(); err != nil {
			t.Fatal(err)
		}
	}
	c.cmd.Stdout, c.cmd.Stderr = &c.out, &c.out
	c.cmd.WaitDelay = 2 * time.Second
	if err := rt.begin(c.cmd); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = c.cmd.Wait()
		close(c.done)
	}()
	t.Cleanup(c.remove)
	return c
}

// begin starts a command of the runtime: as an ordinary user's, in the cgroup
// that the user may move processes out of.
func (rt oci) begin(cmd *exec.Cmd) error {
	if !rt.rootless {
		return cmd.Start()
	}
	if err := user(); err != nil {
		return err
	}
	fd, err := os.Open(userCgroup + "/session")
	if err != nil {
		return err
	}
	defer fd.Close()
	cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(fd.Fd())
	return cmd.Start()
}

// code waits for the end, as an orchestrator does.
func (c *container) code() int {
	c.t.Helper()
	if !c.endsIn(patience()) {
		c.t.Fatalf("the container does not end; it said\n%s", c.out.String())
	}
	if ws, ok := c.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		c.t.Fatalf("%s died: %v\n%s", c.rt.name, ws, c.out.String())
	}
	return c.cmd.ProcessState.ExitCode()
}

func (c *container) endsIn(d time.Duration) bool {
	select {
	case <-c.done:
		return true
	case <-time.After(d):
		return false
	}
}

// says waits for a text in the output.
func (c *container) says(text string) {
	c.t.Helper()
	for end := time.Now().Add(patience()); !strings.Contains(c.out.String(), text); time.Sleep(2 * time.Millisecond) {
		if ended := c.endsIn(0); (ended || time.Now().After(end)) && !strings.Contains(c.out.String(), text) { // its last words come before its end
			c.t.Fatalf("%q was not said; it said\n%s", text, c.out.String())
		}
	}
}

// kill sends the container's first process a signal.
func (c *container) kill(signal string) {
	c.t.Helper()
	if out, err := c.rt.command("kill", c.id, signal).CombinedOutput(); err != nil && !c.endsIn(patience()) {
		c.t.Fatalf("kill %s: %v\n%s\nthe container said\n%s", signal, err, out, c.out.String())
	}
}

// exec is a command in the container, of one whose parent is outside, as docker
// exec and a kubelet's probes run it.
func (c *container) exec(args ...string) *exec.Cmd {
	c.t.Helper()
	p := *c.of.Process
	p.Args, p.Terminal, p.ConsoleSize = args, false, nil
	text, err := json.Marshal(p)
	if err != nil {
		c.t.Fatal(err)
	}
	f, err := os.CreateTemp(c.of.dir, "exec.")
	if err == nil {
		_, err = f.Write(text)
		err = errors.Join(err, f.Chmod(0o644), f.Close())
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return c.rt.command("exec", "--process", f.Name(), c.id)
}

// remove ends the container and what it has left.
func (c *container) remove() {
	out, err := c.rt.command("delete", "--force", c.id).CombinedOutput()
	if !c.endsIn(patience()) {
		c.t.Errorf("the container was deleted, and runs: %v\n%s", err, out)
		_ = c.cmd.Process.Kill()
		<-c.done
	}
	if c.t.Failed() {
		c.t.Logf("the container said\n%s", c.out.String())
	}
}

// result runs a container to its end.
func (rt oci) result(t testing.TB, b *bundle) (code int, out string) {
	t.Helper()
	c := rt.start(t, b)
	code = c.code()
	return code, c.out.String()
}

// exit is the exit code in a command's error.
func exit(err error) int {
	if err == nil {
		return 0
	}
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		return e.ExitCode()
	}
	return -1
}
