package integration

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// builds remembers what this process has built: each thing once.
var builds = struct {
	sync.Mutex
	done map[string]error
}{done: map[string]error{}}

// once runs build for a key that it did not run for yet.
func once(t *testing.T, key string, build func() error) {
	t.Helper()
	builds.Lock()
	defer builds.Unlock()
	err, ok := builds.done[key]
	if !ok {
		err = build()
		builds.done[key] = err
	}
	if err != nil {
		t.Fatalf("build %s: %v", key, err)
	}
}

// command runs a tool in the module's root and returns what it printed.
func command(t *testing.T, env []string, name string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = ".." // of this package's directory, where go test runs us
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", errors.Join(err, errors.New(string(out)))
	}
	return strings.TrimSpace(string(out)), nil
}

// executable is this test binary.
func executable(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return exe
}

// buildDir is beside this test binary: go test removes it with that.
func buildDir(t *testing.T) string {
	t.Helper()
	dir := executable(t) + ".beds"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// PackageTests compiles the tests of a package of this module, such as
// "systemd", and returns the binary's path.
func PackageTests(t *testing.T, pkg string) string {
	t.Helper()
	out := filepath.Join(buildDir(t), strings.ReplaceAll(pkg, "/", "-")+".test")
	once(t, out, func() error {
		_, err := command(t, []string{"CGO_ENABLED=0"}, "go", "test", "-c", "-o", out, "./"+pkg)
		return err
	})
	return out
}

// Binaries compiles pinfold and pinfold-init, as they are shipped, and returns
// the directory that has both.
func Binaries(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(buildDir(t), "bin")
	once(t, dir, func() error {
		_, err := command(t, []string{"CGO_ENABLED=0"}, "go", "build", "-trimpath",
			"-ldflags=pinfold.dev/cmd/pinfold-init=-s -w -E pinfold.dev/reaper/pid1.early", "-o", dir+"/",
			"./cmd/pinfold", "./cmd/pinfold-init")
		return err
	})
	return dir
}

// stage makes a directory that every user can read, in and out of beds, and
// removes it with the test.
func stage(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pinfold-stage.")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// stageFile links or copies a program into dir, once, and returns where it is.
func stageFile(t *testing.T, dir, from string) string {
	t.Helper()
	to := filepath.Join(dir, filepath.Base(from))
	if _, err := os.Stat(to); err == nil {
		return to
	}
	if os.Link(from, to) == nil {
		return to
	}
	err := func() error {
		in, err := os.Open(from)
		if err != nil {
			return err
		}
		defer in.Close()
		out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
		if err != nil {
			return err
		}
		_, err = io.Copy(out, in)
		return errors.Join(err, out.Close())
	}()
	if err != nil {
		t.Fatal(err)
	}
	return to
}

// stageBinaries puts pinfold and pinfold-init into dir, and returns the variable
// that tells tests so.
func stageBinaries(t *testing.T, dir string) string {
	t.Helper()
	from, to := Binaries(t), filepath.Join(dir, "bin")
	if err := os.Mkdir(to, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"pinfold", "pinfold-init"} {
		stageFile(t, to, filepath.Join(from, name))
	}
	return "PINFOLD_BIN_DIR=" + to
}

// bedCache is where root file systems and kernels are kept.
func bedCache(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("BED_CACHE"); dir != "" {
		return dir
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "beds")
}

// rootfs is a root file system of a Debian release, made where it is missing.
func rootfs(t *testing.T, suite string) string {
	t.Helper()
	dir := filepath.Join(bedCache(t), "root-"+suite)
	once(t, dir, func() error {
		_, err := command(t, nil, bedScript(t, "rootfs-build.sh"), suite, dir)
		return err
	})
	return dir
}

// kernel is a Debian kernel, fetched where it is missing, for InVM.
func kernel(t *testing.T, name string) string {
	t.Helper()
	link := filepath.Join(buildDir(t), "kernel-"+name)
	once(t, link, func() error {
		out, err := command(t, []string{"BED_CACHE=" + bedCache(t)}, bedScript(t, "vm-build.sh"), "--kernel", name)
		if err != nil {
			return err
		}
		lines := strings.Split(out, "\n") // the last is the directory
		return os.Symlink(lines[len(lines)-1], link)
	})
	dir, err := filepath.EvalSymlinks(link)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// onOwnThread runs f on a thread that lives as long as f does: the kernel sends
// a parent-death signal when the thread that forked ends, not the process.
func onOwnThread(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return f()
}
