package model

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/cgroup"
	"pinfold.dev/integration/guard"
)

// What a run makes carries its pid, so that a later run finds what a dead one
// has left.
const (
	cgroupPrefix = "pinfold-test.model."
	dirPrefix    = "pinfold-model."
	guardEnv     = "PINFOLD_MODEL_GUARD"
	playEnv      = "PINFOLD_MODEL_PLAY"
)

// world is what all scenes of one run share.
type world struct {
	exe    string // this binary, where every user can run it
	bin    string // directory of pinfold and pinfold-init
	dir    string
	cgroup string
	mount  string // of cgroup v2
	grade  api.Grade
	slow   int
	guard  *guard.Guard
	canary *token
}

// run is this run's world; TestMain fills it in.
var run world

func TestMain(m *testing.M) {
	if spec := os.Getenv(guardEnv); spec != "" {
		os.Exit(guard.Play(spec))
	}
	if what := os.Getenv(playEnv); what != "" {
		os.Exit(play(what, os.Args[1:]))
	}
	flag.Parse()
	if err := rapidDefaults(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	if os.Geteuid() != 0 {
		fmt.Println("these tests need root, to make cgroups and to be several users")
		return m.Run() // each skips by itself
	}
	if err := run.open(); err != nil {
		fmt.Println("open the test world:", err)
		return 1
	}
	code := m.Run()
	if err := run.close(); err != nil {
		fmt.Println("after all tests:", err)
		code = 1
	}
	return code
}

func (w *world) open() (err error) {
	w.slow = 1
	if s := os.Getenv("PINFOLD_TEST_SLOW"); s != "" {
		if w.slow, err = strconv.Atoi(s); err != nil {
			return fmt.Errorf("PINFOLD_TEST_SLOW: %w", err)
		}
	}
	w.grade = api.GradeCgroup
	if g, _, _ := strings.Cut(os.Getenv("PINFOLD_TEST_GRADE"), ","); g != "" {
		w.grade = api.Grade(g)
	}
	mount, err := cgroup.FindMount()
	if err != nil {
		return err
	}
	w.mount = mount.Path
	if w.cgroup = os.Getenv("PINFOLD_TEST_CGROUP"); w.cgroup == "" {
		guard.Sweep(mount.Path, cgroupPrefix) // not from a PID namespace: it would take living runs for dead
		w.cgroup = filepath.Join(mount.Path, cgroupPrefix+strconv.Itoa(os.Getpid()))
		if err := os.Mkdir(w.cgroup, 0o755); err != nil {
			return err
		}
	}
	if w.dir, err = os.MkdirTemp("", dirPrefix+strconv.Itoa(os.Getpid())+"."); err != nil {
		return err
	}
	if err := os.Chmod(w.dir, 0o755); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	b, err := os.ReadFile(self)
	if err != nil {
		return err
	}
	w.exe = filepath.Join(w.dir, "player")
	if err := os.WriteFile(w.exe, b, 0o755); err != nil {
		return err
	}
	if w.guard, err = guard.Start(w.exe, guardEnv, w.cgroup, w.dir); err != nil {
		return err
	}
	if err := w.build(); err != nil {
		return err
	}
	return w.startCanary()
}

// build makes the programs as they are shipped, once.
func (w *world) build() error {
	if w.bin = os.Getenv("PINFOLD_BIN_DIR"); w.bin != "" {
		return nil
	}
	w.bin = filepath.Join(w.dir, "bin")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=pinfold.dev/cmd/pinfold-init=-E pinfold.dev/reaper/pid1.early", "-o", w.bin+"/", "pinfold.dev/cmd/pinfold", "pinfold.dev/cmd/pinfold-init")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the programs: %w\n%s", err, out)
	}
	return nil
}

// startCanary starts a process outside of every turn, which has to live.
func (w *world) startCanary() error {
	w.canary = &token{spec: spec{File: filepath.Join(w.dir, "canary")}}
	cmd := exec.Command(w.exe, w.canary.json())
	cmd.Env = []string{playEnv + "=token"}
	if _, err := start(cmd); err != nil {
		return err
	}
	for end := time.Now().Add(patience(time.Minute)); !w.canary.up(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return errors.New("the canary does not start")
		}
	}
	return nil
}

// close removes everything and tells what should not have been there.
func (w *world) close() error {
	var bad []string
	if !w.canary.locked() {
		bad = append(bad, "the canary is dead")
	}
	if left := guard.RemoveTree(w.cgroup); len(left) > 0 {
		bad = append(bad, fmt.Sprintf("cgroups left behind: %q", left))
	}
	if err := errors.Join(w.guard.Done(), os.RemoveAll(w.dir)); err != nil {
		bad = append(bad, err.Error())
	}
	if len(bad) > 0 {
		return errors.New(strings.Join(bad, "; "))
	}
	return nil
}

// child is a process that this one has started.
type child struct {
	cmd  *exec.Cmd
	gone chan struct{} // closed once it was reaped
}

// start starts a process that dies when this one does. It keeps a thread for as
// long as that lives: the parent-death signal comes when the thread ends.
func start(cmd *exec.Cmd) (*child, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	c := &child{cmd: cmd, gone: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
			close(c.gone)
		}
	}()
	return c, <-started
}

// kill ends it; it is a child of ours that nobody has reaped.
func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	<-c.gone
}

// patience is d on a usual machine.
func patience(d time.Duration) time.Duration { return d * time.Duration(run.slow) }
