package inits

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// stageEnv has the stage that this binary is to set before it executes an init.
const stageEnv = "PINFOLD_INIT_STAGE"

// world is what all tests share.
type world struct {
	exe   string // this binary
	dir   string
	early string // pinfold-init as it is shipped
	plain string // and started by the runtime

	pinfold func() (string, error) // builds it once
	made    made
}

// run is this run's world; TestMain fills it in.
var run world

var update = flag.Bool("update", false, "write the table of docs/init.md anew")

func TestMain(m *testing.M) {
	if spec := os.Getenv(stageEnv); spec != "" {
		playStage(spec)
	}
	if len(os.Args) > 2 && os.Args[1] == "early" {
		os.Exit(playEarly(os.Args[2:]))
	}
	_ = flag.Set("test.parallel", "10") // unless the command line says otherwise
	if len(os.Args) > 2 && os.Args[1] == "disk" {
		os.Exit(playDisk(os.Args[2]))
	}
	flag.Parse()
	code := 1
	if err := run.open(); err != nil {
		fmt.Println("build what is tested:", err)
	} else {
		code = m.Run()
	}
	_ = os.RemoveAll(run.dir)
	os.Exit(code)
}

func (w *world) open() (err error) {
	if w.exe, err = os.Executable(); err != nil {
		return err
	}
	for _, of := range []string{os.TempDir(), "/sys/fs/cgroup/*"} {
		sweep(of)
	}
	if w.dir, err = os.MkdirTemp("", fmt.Sprintf("%s%d.", ours, os.Getpid())); err != nil {
		return err
	}
	if err := os.Chmod(w.dir, 0o755); err != nil {
		return err
	}
	if built := os.Getenv("PINFOLD_BIN_DIR"); built != "" { // a test bed, where nothing can be built
		w.early = filepath.Join(built, "pinfold-init")
		w.plain, w.pinfold = w.early, func() (string, error) { return filepath.Join(built, "pinfold"), nil }
		return nil
	}
	w.pinfold = sync.OnceValues(func() (string, error) {
		path := filepath.Join(w.dir, "pinfold")
		return path, goBuild("-s -w", path, "pinfold.dev/cmd/pinfold")
	})
	w.early, w.plain = filepath.Join(w.dir, "early", "pinfold-init"), filepath.Join(w.dir, "plain", "pinfold-init")
	for path, flags := range map[string]string{w.early: "-s -w -E pinfold.dev/reaper/pid1.early", w.plain: "-s -w"} {
		if err := goBuild(flags, path, "pinfold.dev/cmd/pinfold-init"); err != nil {
			return err
		}
	}
	return nil
}

func goBuild(ldflags, path, pkg string) error {
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags="+ldflags, "-o", path, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// ours begins the names of what this makes; the pid follows.
const ours = "pinfold-init-test."

// sweep removes what runs that were killed have left.
func sweep(in string) {
	old, _ := filepath.Glob(filepath.Join(in, ours+"*"))
	for _, path := range old {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(path), ours), ".")
		if _, err := os.Stat("/proc/" + pid); err == nil {
			continue
		}
		removeCgroup(path)
		_ = os.RemoveAll(path)
	}
}

// removeCgroup removes a cgroup and those below, which have nothing else that could
// be removed. Of what is no cgroup it removes empty directories only.
func removeCgroup(dir string) {
	below, _ := os.ReadDir(dir)
	for _, d := range below {
		if d.IsDir() {
			removeCgroup(filepath.Join(dir, d.Name()))
		}
	}
	_ = os.Remove(dir)
}

// missing is the one place that skips. Where scripts/test.sh has had scripts/deps.sh
// install programs, it fails for want of one of them.
func missing(t testing.TB, what string) {
	t.Helper()
	if strings.Contains(what, "scripts/deps.sh") && os.Getenv("PINFOLD_TEST_DEPS") != "" {
		t.Fatalf("not here, though scripts/deps.sh was run: %s", what)
	}
	t.Skip("not here:", what)
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		missing(t, "root, who may make PID namespaces")
	}
}

// needProgram finds a program, or skips.
func needProgram(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		missing(t, "the program "+name+" (scripts/deps.sh installs it)")
	}
	return path
}

// builds runs a test with pinfold-init as it is shipped, and as the fallback,
// beside the others: most of it is waiting.
func builds(t *testing.T, f func(t *testing.T, bin string)) {
	needRoot(t)
	t.Parallel()
	t.Run("early", func(t *testing.T) { t.Parallel(); f(t, run.early) })
	t.Run("plain", func(t *testing.T) { t.Parallel(); f(t, run.plain) })
}

// buildsAlone is builds for a test that has one of something, or needs all there is
// of the machine.
func buildsAlone(t *testing.T, f func(t *testing.T, bin string)) {
	needRoot(t)
	t.Run("early", func(t *testing.T) { f(t, run.early) })
	t.Run("plain", func(t *testing.T) { f(t, run.plain) })
}

// long tells whether everything is to be done in full (PINFOLD_TEST_LONG=1).
func long() bool { return os.Getenv("PINFOLD_TEST_LONG") != "" }

// stage is what an init finds when it starts.
type stage struct {
	Ignore, Block uint64   // signals, as bits
	Close         []int    // descriptors
	Cgroups       []string // cgroup.procs files to be in
	Errno         int      // of the calls that a filter refuses
	Calls         []string
	NoProc        bool
	Cgroup2       string   // rw, ro, none: a cgroup namespace, and how that is mounted
	Tmpfs         []string // directories that are empty
	ReadOnly      bool     // the root file system
	Bare          bool     // no mount namespace
	UID           int
	Argv          []string
}

func (s stage) text() string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return stageEnv + "=" + string(b)
}

// without is the environment without some variables.
func without(env []string, names ...string) (out []string) {
	for _, e := range env {
		keep := true
		for _, n := range names {
			keep = keep && !strings.HasPrefix(e, n+"=")
		}
		if keep {
			out = append(out, e)
		}
	}
	return out
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "stage:", err)
		os.Exit(120)
	}
}

func lookPython() (string, error) { return exec.LookPath("python3") }

func bash(t testing.TB) string {
	t.Helper()
	path, err := exec.LookPath("bash")
	if err != nil {
		missing(t, "the program bash (scripts/deps.sh installs it)")
	}
	return path
}
