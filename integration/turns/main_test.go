package turns

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pinfold.dev/cgroup"
	"pinfold.dev/internal/sys"
)

// helperEnv names the helper that this binary is to play.
const helperEnv = "PINFOLD_TEST_HELPER"

// init keeps the main goroutine on the main thread where a helper ends or
// blocks it.
func init() {
	switch os.Getenv(helperEnv) {
	case "headless", "blocked", "asker":
		runtime.LockOSThread()
	}
}

// world is what all tests of one run share.
type world struct {
	exe    string // this test binary
	bin    string // directory of pinfold and pinfold-init
	dir    string // for everything, readable by every user
	mount  string // of cgroup v2
	cgroup string // this run's own
	guard  *guard
	kids   *kids
	slow   int // how much slower than a usual machine this is
}

// run is this run's world; TestMain fills it in.
var run world

func TestMain(m *testing.M) {
	if name := os.Getenv(helperEnv); name != "" {
		os.Exit(playHelper(name, os.Args[1:]))
	}
	flag.Parse()
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
	if unused := unusedHelpers(); len(unused) > 0 && code == 0 && wholeRun() {
		fmt.Println("helpers that no test used:", unused)
		code = 1
	}
	return code
}

// wholeRun tells whether every test was to run.
func wholeRun() bool {
	return flag.Lookup("test.run").Value.String() == "" && flag.Lookup("test.skip").Value.String() == "" &&
		!testing.Short() && os.Getenv("PINFOLD_TEST_GRADE") == "" && flag.Lookup("test.list").Value.String() == ""
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
	w.mount = mount.Path
	if err := sys.SetSubreaper(true); err != nil {
		return err
	}
	w.kids = newKids()
	if w.cgroup = os.Getenv("PINFOLD_TEST_CGROUP"); w.cgroup == "" {
		sweep(w.mount) // not from a PID namespace: it would take living runs for dead
		w.cgroup = filepath.Join(w.mount, cgroupPrefix+strconv.Itoa(os.Getpid()))
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
	if err := w.copySelf(); err != nil {
		return err
	}
	if w.guard, err = startGuard(w); err != nil {
		return err
	}
	return w.build()
}

// copySelf puts this binary where every user can run it, for the helpers. One
// that has C in it is built anew without: the C library does not run where
// clone3 is forbidden.
func (w *world) copySelf() error {
	self, err := os.Executable()
	info, ok := debug.ReadBuildInfo()
	if ok && os.Getenv("PINFOLD_BIN_DIR") == "" && slices.Contains(info.Settings, debug.BuildSetting{Key: "CGO_ENABLED", Value: "1"}) {
		w.exe = filepath.Join(w.dir, "helper")
		cmd := exec.Command("go", "test", "-c", "-o", w.exe, ".")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		out, err := w.kids.output(cmd)
		if err != nil {
			return fmt.Errorf("build the helpers: %w\n%s", err, out)
		}
		return nil
	}
	if err != nil {
		return err
	}
	w.exe = filepath.Join(w.dir, "helper")
	if os.Link(self, w.exe) == nil {
		return nil
	}
	b, err := os.ReadFile(self)
	if err != nil {
		return err
	}
	return os.WriteFile(w.exe, b, 0o755)
}

// build makes the programs as they are shipped, once.
func (w *world) build() error {
	if w.bin = os.Getenv("PINFOLD_BIN_DIR"); w.bin != "" {
		return nil
	}
	w.bin = filepath.Join(w.dir, "bin")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=pinfold.dev/cmd/pinfold-init=-E pinfold.dev/reaper/pid1.early", "-o", w.bin+"/", "pinfold.dev/cmd/pinfold", "pinfold.dev/cmd/pinfold-init")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := w.kids.output(cmd)
	if err != nil {
		return fmt.Errorf("build the programs: %w\n%s", err, out)
	}
	return nil
}

// close removes everything and tells what should not have been there.
func (w *world) close() error {
	var bad []string
	if left := w.kids.strangers(patience(time.Minute)); len(left) > 0 {
		bad = append(bad, fmt.Sprintf("processes left behind: %q", left))
	}
	if left := removeTree(w.cgroup); len(left) > 0 {
		bad = append(bad, fmt.Sprintf("cgroups left behind: %q", left))
	}
	if err := w.guard.stop(); err != nil {
		bad = append(bad, err.Error())
	}
	if err := os.RemoveAll(w.dir); err != nil {
		bad = append(bad, err.Error())
	}
	if len(bad) > 0 {
		return fmt.Errorf("%s", strings.Join(bad, "; "))
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
