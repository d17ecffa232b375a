//go:build linux

package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/internal/sys/systest"
	"pinfold.dev/pidfd"
)

var suite = systest.New(map[string]systest.Helper{
	"leaderless":           leaderless,
	"thread-mover":         threadMover,
	"daemonise":            daemonise,
	"storm":                storm,
	"zombie-parent":        zombieParent,
	"old":                  oldKernel,
	"no-kill":              noKillFile,
	"kill":                 func(args []string) error { return helperKill(args[0]) },
	"own":                  killOwn,
	"frozen-disk":          frozenDisk,
	"as-owner":             asOwner,
	"few-descriptors":      fewDescriptors,
	"no-descriptors":       noDescriptors,
	"still-no-descriptors": stillNoDescriptors,
	"old-move":             oldMove,
	"move-own":             moveOwn,
})

func TestMain(m *testing.M) {
	if os.Getenv("PINFOLD_TEST_HELPER") == "" { // to one in a PID namespace of its own everybody looks gone
		sweep()
	}
	suite.Main(m)
}

const testPrefix = "pinfold-test.cgroup."

// sweep removes what test binaries that were killed have left.
func sweep() {
	base, err := testBase()
	if err != nil {
		return
	}
	old, _ := filepath.Glob(filepath.Join(base, testPrefix+"*"))
	for _, path := range old {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(path), testPrefix), ".")
		n, err := strconv.Atoi(pid)
		if err != nil || n == os.Getpid() || n == os.Getppid() {
			continue
		}
		if h, err := pidfd.Open(n); !errors.Is(err, pidfd.ErrGone) {
			if err == nil {
				h.Close()
			}
			continue
		}
		if d, err := Open(path); err == nil {
			_, _ = d.Kill(context.Background(), 10*time.Second)
			_ = d.Remove(context.Background())
			d.Close()
		}
	}
}

func testBase() (string, error) {
	m, err := FindMount()
	if err != nil {
		return "", err
	}
	return m.Own()
}

var testNumber atomic.Int32

// testDir makes a cgroup, which is ended and removed when the test is over.
func testDir(t testing.TB) *Dir {
	t.Helper()
	systest.Root(t)
	base, err := testBase()
	if err != nil {
		t.Fatalf("no cgroup v2 to test in: %v", err)
	}
	d, err := Make(fmt.Sprintf("%s/%s%d.%d", base, testPrefix, os.Getpid(), testNumber.Add(1)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { discard(t, d) })
	return d
}

func discard(t testing.TB, d *Dir) {
	if _, err := d.Kill(context.Background(), bound); err != nil {
		t.Errorf("clean up: %v", err)
	}
	if err := d.Remove(context.Background()); err != nil {
		t.Errorf("clean up: %v", err)
	}
	d.Close()
	if _, err := os.Stat(d.Path()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("clean up: %s is still there: %v", d.Path(), err)
	}
}

// child makes a cgroup below d; it goes with d.
func child(t testing.TB, d *Dir, name string) *Dir {
	t.Helper()
	c, err := d.Make(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// into makes a command's process be born in d.
func into(d *Dir, cmd *exec.Cmd) *exec.Cmd {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, d.FD()
	return cmd
}

// born starts a sleeper in d.
func born(t testing.TB, d *Dir) *systest.Proc {
	t.Helper()
	return systest.Start(t, into(d, exec.Command("sleep", "1000")))
}

// canary is a process in a cgroup beside d that has to live.
type canary struct {
	t *testing.T
	h *pidfd.Handle
}

func newCanary(t *testing.T) canary {
	t.Helper()
	c := canary{t, handle(t, born(t, testDir(t)).PID())}
	// Registered after the process's end, so it runs before.
	t.Cleanup(c.sings)
	return c
}

func (c canary) sings() {
	c.t.Helper()
	if exited, err := c.h.Exited(); exited || err != nil {
		c.t.Errorf("the canary did not live: exited %v, %v", exited, err)
	}
}

func handle(t testing.TB, pid int) *pidfd.Handle {
	t.Helper()
	h, err := pidfd.Open(pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return h
}

// leaderless ends its main thread and lives on in another.
func leaderless([]string) error { return systest.EndMainThread() }

// threadMover moves one of its threads into the threaded cgroup args[0].
func threadMover(args []string) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- os.WriteFile(args[0]+"/cgroup.threads", []byte(strconv.Itoa(syscall.Gettid())), 0)
		time.Sleep(time.Hour)
	}()
	if err := <-done; err != nil {
		return err
	}
	fmt.Println("moved")
	select {}
}

// daemonise leaves a process behind that is in a session of its own and has
// lost its parent, and says its number.
func daemonise(args []string) error {
	if len(args) > 0 {
		cmd := exec.Command("sleep", "1000")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			return err
		}
		fmt.Println(cmd.Process.Pid)
		return nil
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(exe, "again")
	cmd.Env = append(os.Environ(), "PINFOLD_TEST_HELPER=daemonise")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd.Run()
}

// storm is init of a PID namespace in which chains of processes fork and exit:
// a moving target. It is bounded in number and in generations.
func storm([]string) error {
	const chain = `hop() { [ $1 -gt 0 ] || exit; ( hop $(($1 - 1)) ) & exit; }; hop 400`
	for range 10 {
		cmd := exec.Command("sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10; do ("+chain+") & done; wait")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			return err
		}
	}
	fmt.Println("storming")
	for {
		if _, err := syscall.Wait4(-1, nil, 0, nil); errors.Is(err, syscall.ECHILD) {
			return nil
		}
	}
}

// zombieParent has a child that has ended and that it does not reap.
func zombieParent([]string) error {
	cmd := exec.Command("true")
	if err := cmd.Start(); err != nil {
		return err
	}
	fmt.Println(cmd.Process.Pid)
	time.Sleep(time.Hour)
	return nil
}
