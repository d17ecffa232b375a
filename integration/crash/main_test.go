package crash

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/cgroup"
)

// What a run makes carries its pid, so that a later run finds what a dead one
// has left.
const (
	cgroupPrefix = "pinfold-test.crash."
	dirPrefix    = "pinfold-crash."
	guardEnv     = "PINFOLD_CRASH_GUARD"
)

// world is what all tests of one run share.
type world struct {
	bin    string // directory of pinfold and pinfold-init, built with fault points
	dir    string
	cgroup string
	guard  io.WriteCloser
	canary *exec.Cmd
}

// run is this run's world; TestMain fills it in.
var run world

func TestMain(m *testing.M) {
	if spec := os.Getenv(guardEnv); spec != "" {
		os.Exit(playGuard(spec))
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

func (w *world) open() error {
	mount, err := cgroup.FindMount()
	if err != nil {
		return err
	}
	sweep(mount.Path)
	w.cgroup = filepath.Join(mount.Path, cgroupPrefix+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(w.cgroup, 0o755); err != nil {
		return err
	}
	if w.dir, err = os.MkdirTemp("", dirPrefix+strconv.Itoa(os.Getpid())+"."); err != nil {
		return err
	}
	if err := w.startGuard(); err != nil {
		return err
	}
	w.bin = filepath.Join(w.dir, "bin")
	cmd := exec.Command("go", "build", "-tags", "faultpoints", "-o", w.bin+"/", "pinfold.dev/cmd/pinfold", "pinfold.dev/cmd/pinfold-init")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the programs: %w\n%s", err, out)
	}
	w.canary = exec.Command("sleep", "100000")
	w.canary.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return w.canary.Start()
}

func (w *world) close() error {
	_ = w.canary.Process.Kill()
	_ = w.canary.Wait()
	var bad []string
	if left := removeTree(w.cgroup); len(left) > 0 {
		bad = append(bad, fmt.Sprintf("cgroups left behind: %q", left))
	}
	fmt.Fprintln(w.guard, "done")
	w.guard.Close()
	if err := os.RemoveAll(w.dir); err != nil {
		bad = append(bad, err.Error())
	}
	if len(bad) > 0 {
		return errors.New(strings.Join(bad, "; "))
	}
	return nil
}

// startGuard starts a process that outlives this one and cleans up after it.
func (w *world) startGuard() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self)
	cmd.Env = []string{guardEnv + "=" + w.cgroup + "\t" + w.dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if w.guard, err = cmd.StdinPipe(); err != nil {
		return err
	}
	return cmd.Start()
}

// playGuard is the guard: it acts when its standard input ends without a word.
func playGuard(spec string) int {
	if b, _ := io.ReadAll(os.Stdin); len(b) > 0 {
		return 0
	}
	dirs := strings.Split(spec, "\t")
	removeTree(dirs[0])
	_ = os.RemoveAll(dirs[1])
	return 0
}

// sweep removes the cgroups of runs whose process is gone.
func sweep(mount string) {
	old, _ := filepath.Glob(filepath.Join(mount, cgroupPrefix+"*"))
	for _, dir := range old {
		pid := strings.TrimPrefix(filepath.Base(dir), cgroupPrefix)
		if _, err := os.Stat("/proc/" + pid); errors.Is(err, fs.ErrNotExist) {
			removeTree(dir)
		}
	}
}

// removeTree ends what is in a cgroup that is ours, removes it with those
// below, and tells which of those were populated, or could not be removed.
func removeTree(dir string) (left []string) {
	var all []string
	_ = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			all = append(all, p)
			if b, err := os.ReadFile(p + "/cgroup.procs"); err == nil && len(b) > 0 {
				left = append(left, p)
			}
		}
		return nil
	})
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		_ = os.WriteFile(dir+"/cgroup.kill", []byte("1"), 0)
		for _, p := range slices.Backward(all) {
			_ = os.Remove(p)
		}
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			return left
		}
		if time.Now().After(end) {
			return append(left, dir)
		}
	}
}

// eventually waits for cond, a long time: machines can be slow.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(60 * time.Second); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not seen: %s", what)
		}
	}
}
