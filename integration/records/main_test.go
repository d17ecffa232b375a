package records

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/cgroup"
	"pinfold.dev/integration/guard"
)

// What a run makes carries its pid, so that a later run finds what a dead one
// has left.
const (
	cgroupPrefix = "pinfold-test.records."
	dirPrefix    = "pinfold-records."
	guardEnv     = "PINFOLD_RECORDS_GUARD"
)

// world is what all tests of one run share.
type world struct {
	bin    string // directory of pinfold and pinfold-init, built with fault points
	dir    string
	cgroup string
	slow   int
	guard  *guard.Guard
}

// run is this run's world; TestMain fills it in.
var run world

func TestMain(m *testing.M) {
	if spec := os.Getenv(guardEnv); spec != "" {
		os.Exit(guard.Play(spec))
	}
	flag.Parse()
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	if os.Geteuid() != 0 {
		fmt.Println("these tests need root, to make cgroups")
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
	mount, err := cgroup.FindMount()
	if err != nil {
		return err
	}
	guard.Sweep(mount.Path, cgroupPrefix)
	w.cgroup = filepath.Join(mount.Path, cgroupPrefix+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(w.cgroup, 0o755); err != nil {
		return err
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
	if w.guard, err = guard.Start(self, guardEnv, w.cgroup, w.dir); err != nil {
		return err
	}
	w.bin = filepath.Join(w.dir, "bin")
	cmd := exec.Command("go", "build", "-trimpath", "-tags", "faultpoints", "-o", w.bin+"/", "pinfold.dev/cmd/pinfold", "pinfold.dev/cmd/pinfold-init")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the programs: %w\n%s", err, out)
	}
	return nil
}

func (w *world) close() error {
	var bad []string
	if left := guard.RemoveTree(w.cgroup); len(left) > 0 {
		bad = append(bad, fmt.Sprintf("cgroups left behind: %q", left))
	}
	if err := w.guard.Done(); err != nil {
		bad = append(bad, err.Error())
	}
	if err := os.RemoveAll(w.dir); err != nil {
		bad = append(bad, err.Error())
	}
	if len(bad) > 0 {
		return errors.New(strings.Join(bad, "; "))
	}
	return nil
}

// patience is d on a usual machine.
func patience(d time.Duration) time.Duration { return d * time.Duration(run.slow) }

// eventually waits for cond, a long time: machines can be slow.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(patience(60 * time.Second)); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not seen: %s", what)
		}
	}
}

// canary is a process outside every turn, which has to live.
type canary struct {
	cmd *exec.Cmd
	t   *testing.T
}

// newCanary starts one, in a cgroup of its own unless cgroup is empty.
func newCanary(t *testing.T, cgroup string) *canary {
	t.Helper()
	cmd := exec.Command("sleep", "100000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if cgroup != "" {
		d, err := os.Open(cgroup)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(d.Fd())
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &canary{cmd, t}
	t.Cleanup(func() {
		c.lives()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return c
}

func (c *canary) pid() int { return c.cmd.Process.Pid }

// lives checks that it runs.
func (c *canary) lives() {
	c.t.Helper()
	if s := stateOf(c.pid()); s == 0 || s == 'Z' {
		c.t.Errorf("the canary %d is dead", c.pid())
	}
}

// stateOf is the letter of /proc/pid/stat, or 0 where there is no such process: also
// for one that is just being reaped (X).
func stateOf(pid int) byte {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	_, rest, ok := strings.Cut(string(b), ") ")
	if err != nil || !ok || rest[0] == 'X' {
		return 0
	}
	return rest[0]
}
