package containers

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/cgroup"
	"pinfold.dev/integration/guard"
)

const (
	// roleEnv names what this binary is to play.
	roleEnv = "PINFOLD_CONTAINERS_ROLE"
	// ours begins the names of what a run makes; its pid follows.
	ours = "pinfold-containers."
	// slowEnv has how many times slower than a usual machine this one is.
	slowEnv = "PINFOLD_TEST_SLOW"
)

// patience is for what happens soon on a usual machine.
func patience() time.Duration {
	n, _ := strconv.Atoi(os.Getenv(slowEnv))
	return time.Duration(max(n, 1)) * 60 * time.Second
}

var update = flag.Bool("update", false, "write the table of docs/containers.md anew")

// world is what all tests of a run share. The tests are in the namespaces.
type world struct {
	exe    string // this binary
	dir    string
	bin    string            // pinfold, pinfold-init
	cgroup string            // of the run
	v1     map[string]string // our cgroup of a controller, in cgroup v1
	image  image             // of packaging/images
	table  table
}

// run is this run's world; TestMain fills it in.
var run world

func TestMain(m *testing.M) {
	if spec := os.Getenv(guardEnv); spec != "" {
		os.Exit(guard.Play(spec))
	}
	switch role := os.Getenv(roleEnv); role {
	case "":
		flag.Parse()
		if os.Geteuid() != 0 || flag.Lookup("test.list").Value.String() != "" {
			os.Exit(m.Run()) // each skips by itself
		}
		os.Exit(outside())
	case "host":
		os.Exit(playHost())
	case "tests":
		flag.Parse()
		if err := run.enter(); err != nil {
			fmt.Println("enter the test's world:", err)
			os.Exit(1)
		}
		os.Exit(m.Run())
	default:
		os.Exit(play(role, os.Args[1:]))
	}
}

const (
	guardEnv = "PINFOLD_CONTAINERS_GUARD"
	dirEnv   = "PINFOLD_CONTAINERS_DIR"
)

// enter finds the world that outside has made.
func (w *world) enter() (err error) {
	w.dir = os.Getenv(dirEnv)
	w.exe, w.bin = filepath.Join(w.dir, "gateway"), filepath.Join(w.dir, "bin")
	w.cgroup, w.v1 = "/sys/fs/cgroup", map[string]string{}
	for _, c := range controllers() {
		if dir := filepath.Join(w.dir, "v1", c); exists(dir + "/cgroup.procs") {
			w.v1[c] = dir
		}
	}
	w.image, err = describe()
	return err
}

// controllers are those of cgroup v1 that tests use where a host has them there.
func controllers() []string { return []string{"pids", "memory"} }

// outside makes the world, has the tests run in there, and clears it away.
func outside() int {
	w := &run
	if err := w.build(); err != nil {
		fmt.Println("make the test's world:", err)
		_ = w.remove()
		return 1
	}
	self, err := os.Executable()
	if err != nil {
		fmt.Println("find this program:", err)
		return 1
	}
	g, err := guard.Start(self, guardEnv, w.cgroup, w.dir)
	if err != nil {
		fmt.Println(err)
		_ = w.remove()
		return 1
	}
	defer func() { _ = g.Done() }()
	code := w.boot(self)
	if err := w.remove(); err != nil {
		fmt.Println("after all tests:", err)
		code = max(code, 1)
	}
	return code
}

// build makes directories, cgroups and programs.
func (w *world) build() error {
	mount, err := cgroup.FindMount()
	if err != nil {
		return err
	}
	guard.Sweep(mount.Path, ours)
	sweep(os.TempDir())
	if w.dir, err = os.MkdirTemp("", fmt.Sprintf("%s%d.", ours, os.Getpid())); err != nil {
		return err
	}
	if err := os.Chmod(w.dir, 0o755); err != nil {
		return err
	}
	w.cgroup = filepath.Join(mount.Path, ours+strconv.Itoa(os.Getpid()))
	w.v1 = map[string]string{}
	made := []string{w.cgroup}
	for _, c := range controllers() {
		if parent := "/sys/fs/cgroup/" + c; exists(parent + "/cgroup.procs") {
			sweep(parent)
			w.v1[c] = filepath.Join(parent, ours+strconv.Itoa(os.Getpid()))
			made = append(made, w.v1[c])
		}
	}
	for _, dir := range made {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	if err := w.programs(); err != nil {
		return err
	}
	return layOut(filepath.Join(w.dir, "rootfs"), w.bin)
}

// programs builds what is shipped, and puts this binary where all may run it.
func (w *world) programs() error {
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(w.dir, "gateway"), self, 0o755); err != nil {
		return err
	}
	w.bin = filepath.Join(w.dir, "bin")
	if made := os.Getenv("PINFOLD_BIN_DIR"); made != "" {
		return os.Symlink(made, w.bin)
	}
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=pinfold.dev/cmd/pinfold-init=-E pinfold.dev/reaper/pid1.early",
		"-o", w.bin+"/", "pinfold.dev/cmd/pinfold", "pinfold.dev/cmd/pinfold-init")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the programs: %w\n%s", err, out)
	}
	return nil
}

// boot runs the tests as processes of a host of their own, all of which ends
// with it.
func (w *world) boot(self string) int {
	fd, err := syscall.Open(w.cgroup, syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		fmt.Println("open the run's cgroup:", err)
		return 1
	}
	defer syscall.Close(fd)
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), roleEnv+"=host", dirEnv+"="+w.dir)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, UseCgroupFD: true, CgroupFD: fd,
		Cloneflags:   syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWNET,
		Unshareflags: syscall.CLONE_NEWCGROUP}
	runtime.LockOSThread() // Pdeathsig is of the thread
	err = cmd.Run()
	if e, ok := errors.AsType[*exec.ExitError](err); ok && e.Exited() {
		return e.ExitCode()
	} else if err != nil {
		fmt.Println("run the tests in namespaces:", err)
		return 1
	}
	return 0
}

// remove clears the world away and tells what was still in it.
func (w *world) remove() error {
	var bad []string
	if exists(w.cgroup) {
		bad = guard.RemoveTree(w.cgroup)
	}
	for _, dir := range w.v1 {
		removeV1(dir)
	}
	if len(bad) > 0 {
		return fmt.Errorf("cgroups were still in use: %q", bad)
	}
	if w.dir == "" {
		return nil
	}
	return os.RemoveAll(w.dir)
}

// sweep removes what runs that were killed have left.
func sweep(in string) {
	old, _ := filepath.Glob(filepath.Join(in, ours+"*"))
	for _, path := range old {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(path), ours), ".")
		if exists("/proc/" + pid) {
			continue
		}
		if removeV1(path); exists(path) {
			_ = os.RemoveAll(path)
		}
	}
}

// removeV1 removes a cgroup and those in it. What has just ended still is there
// for a moment.
func removeV1(dir string) {
	for end := time.Now().Add(5 * time.Second); exists(dir+"/cgroup.procs") && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		var all []string
		_ = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				all = append(all, p)
			}
			return nil
		})
		for i := len(all) - 1; i >= 0; i-- {
			_ = os.Remove(all[i])
		}
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// missing is the one place that skips.
func missing(t testing.TB, what string) {
	t.Helper()
	if strings.Contains(what, "scripts/deps.sh") && os.Getenv("PINFOLD_TEST_DEPS") != "" {
		t.Fatalf("not here, though scripts/deps.sh was run: %s", what)
	}
	t.Skip("not here:", what)
}

// needHost skips where there is no host of our own.
func needHost(t testing.TB) {
	t.Helper()
	if run.dir == "" {
		missing(t, "root, who may make namespaces")
	}
}
