//go:build linux

package hold

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/internal/sys"
)

// sleeper is a process beside the turn.
func sleeper() *exec.Cmd { return exec.Command("sleep", "1000") }

func openPidfd(t *testing.T, pid int) int {
	t.Helper()
	fd, err := sys.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sys.Close(fd) })
	return fd
}

// family is DEPTH WIDTH: so many generations of so many children, each in a
// session of its own, and one daemon that has lost its parent. Each but that says
// "here" when it has its children.
func family(args []string) error {
	depth, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	width, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	if len(args) == 2 {
		if err := exec.Command("sh", "-c", "setsid sleep 1000 & exit 0").Run(); err != nil {
			return err
		}
	}
	for range width {
		if depth == 0 {
			break
		}
		if err := again("family", &syscall.SysProcAttr{Setsid: true}, strconv.Itoa(depth-1), args[1], "child"); err != nil {
			return err
		}
	}
	fmt.Println("here")
	time.Sleep(time.Hour)
	return nil
}

// again starts this binary as a helper.
func again(name string, attr *syscall.SysProcAttr, args ...string) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(exe, args...)
	cmd.Env = append(os.Environ(), "PINFOLD_TEST_HELPER="+name)
	cmd.SysProcAttr = attr
	cmd.Stdout = os.Stdout
	return cmd.Start()
}

// storm runs a storm of forks in a PID namespace, whose init lives on.
func storm(args []string) error {
	if len(args) > 0 {
		return stormInit()
	}
	if err := again("storm", &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}, "init"); err != nil {
		return err
	}
	time.Sleep(time.Hour)
	return nil
}

// stormInit has chains of processes fork and exit: moving targets, bounded in
// number and generations.
func stormInit() error {
	const chain = `hop() { [ $1 -gt 0 ] || exit; ( hop $(($1 - 1)) ) & exit; }; hop 300`
	for range 4 {
		cmd := exec.Command("sh", "-c", "for i in 1 2 3 4 5; do ("+chain+") & done; wait")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			return err
		}
	}
	fmt.Println("storming")
	for {
		if _, err := syscall.Wait4(-1, nil, 0, nil); errors.Is(err, syscall.ECHILD) {
			break
		}
	}
	fmt.Println("over")
	time.Sleep(time.Hour)
	return nil
}

// beat writes a line each few milliseconds: a number that counts up.
func beat([]string) error {
	for i := 0; ; i++ {
		fmt.Println(i)
		time.Sleep(3 * time.Millisecond)
	}
}

// herd forks a sleeper every few milliseconds, and after a hundred more slowly, for a
// minute: it is to go on when somebody looks who was held up. It says each number.
func herd([]string) error {
	for i := range 400 {
		cmd := exec.Command("sleep", "1000")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			return err
		}
		fmt.Println(cmd.Process.Pid)
		go func() { _ = cmd.Wait() }()
		time.Sleep(5 * time.Millisecond)
		if i >= 100 {
			time.Sleep(200 * time.Millisecond)
		}
	}
	time.Sleep(time.Hour)
	return nil
}
