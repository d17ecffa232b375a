package hosts

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"pinfold.dev/internal/sys"
)

var update = flag.Bool("update", false, "write the table in docs/grades.md")

// world is what all tests of one run share.
type world struct {
	exe   string // this binary
	bin   string // directory of pinfold and pinfold-init
	dir   string // for everything, writable by every user
	mount string // of cgroup v2; empty: there is none
}

var run world

// stageEnv has the stage that this binary is to set, helperEnv the process that it
// is to play.
const (
	stageEnv  = "PINFOLD_TEST_STAGE"
	helperEnv = "PINFOLD_TEST_HELPER"
	ours      = "pinfold-test.hosts."
)

func TestMain(m *testing.M) {
	if s := os.Getenv(stageEnv); s != "" {
		playStage(s)
	}
	if name := os.Getenv(helperEnv); name != "" {
		os.Exit(playHelper(name, os.Args[1:]))
	}
	flag.Parse()
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	if os.Geteuid() != 0 {
		return m.Run() // each test skips
	}
	err := run.open()
	defer os.RemoveAll(run.dir)
	if err != nil {
		fmt.Println("open the test world:", err)
		return 1
	}
	return m.Run()
}

func (w *world) open() (err error) {
	if w.exe, err = os.Executable(); err != nil {
		return err
	}
	if w.dir, err = os.MkdirTemp("", ours+strconv.Itoa(os.Getpid())+"."); err != nil {
		return err
	}
	if err = os.Chmod(w.dir, 0o777); err != nil {
		return err
	}
	b, err := os.ReadFile(w.exe)
	if err != nil {
		return err
	}
	w.exe = filepath.Join(w.dir, "hosts.test") // where every user may execute it
	if err = os.WriteFile(w.exe, b, 0o755); err != nil {
		return err
	}
	if mount, _, merr := sys.FindCgroup2(); merr == nil {
		w.mount = mount.Path
		sweep(w.mount)
	}
	if w.bin = os.Getenv("PINFOLD_BIN_DIR"); w.bin != "" {
		return nil
	}
	w.bin = filepath.Join(w.dir, "bin")
	if err := os.Mkdir(w.bin, 0o755); err != nil {
		return err
	}
	cmd := exec.Command("go", "build", "-trimpath", "-o", w.bin, "pinfold.dev/cmd/pinfold", "pinfold.dev/cmd/pinfold-init")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build: %w\n%s", err, out)
	}
	return nil
}

// sweep removes the cgroups that a killed run has left. What was in them went with
// its PID namespace.
func sweep(mount string) {
	old, _ := filepath.Glob(filepath.Join(mount, ours+"*"))
	for _, dir := range old {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), ours), ".")
		if n, err := strconv.Atoi(pid); err == nil && syscall.Kill(n, 0) != nil {
			removeCgroup(dir)
		}
	}
}

func removeCgroup(dir string) {
	_ = filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() && p != dir {
			removeCgroup(p)
			return filepath.SkipDir
		}
		return nil
	})
	_ = os.Remove(dir)
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("not here: root, who may make namespaces")
	}
}

// check ends a helper that cannot do what it is for.
func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "stage:", err)
		os.Exit(3)
	}
}

func must[T any](v T, err error) T {
	check(err)
	return v
}
