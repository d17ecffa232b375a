package inits

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// earlySpan is how long after its execve an init may be sent its first signal.
const earlySpan = 3 * time.Millisecond

// executed waits until the kernel is through with the execve, whose last step it
// is to lay out the arguments. What comes before that the kernel drops for any
// PID 1, and no program can have it otherwise.
func executed(pid int) {
	for range 10_000 {
		if b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline"); err != nil || len(b) > 0 {
			return
		}
	}
}

// playEarly: N INIT ARG... As PID 1 it starts the init N times as its child, sends
// it TERM soon, and tells how often that was lost. The command sleeps for some time.
func playEarly(words []string) int {
	n, err := strconv.Atoi(words[0])
	check(err)
	check(syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""))
	check(syscall.Mount("proc", "/proc", "proc", 0, ""))
	lost, broken := 0, 0
	for range n {
		cmd := exec.Command(words[1], words[2:]...)
		check(cmd.Start())
		executed(cmd.Process.Pid)
		time.Sleep(rand.N(earlySpan)) // without giving up the processor it would not get there
		_ = cmd.Process.Signal(syscall.SIGTERM)
		count(cmd, patience, &lost, &broken)
	}
	fmt.Println("lost", lost, "broken", broken)
	return 0
}

// count waits for an init that was told to end: if that was lost, until the command
// has slept enough, or for so long.
func count(cmd *exec.Cmd, most time.Duration, lost, broken *int) {
	late := time.AfterFunc(most, func() { _ = cmd.Process.Kill() })
	_ = cmd.Wait()
	ws := cmd.ProcessState.Sys().(syscall.WaitStatus)
	switch {
	case !late.Stop(), ws.Exited() && ws.ExitStatus() == 0:
		*lost++
	case ws.Signaled() && ws.Signal() == syscall.SIGTERM: // before there was a command
	case ws.ExitStatus() != 143:
		*broken++
	}
}

// earlyAsPID1 does the same with the init as PID 1. Lost too early are those that
// were sent before its first system call.
func earlyAsPID1(t testing.TB, n int, argv ...string) (lost, tooEarly, broken int) {
	t.Helper()
	for range n {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		executed(cmd.Process.Pid)
		time.Sleep(rand.N(earlySpan)) // without giving up the processor it would not get there
		to, most := &tooEarly, 3*time.Second
		if heeds(cmd.Process.Pid) {
			to, most = &lost, patience
		}
		_ = cmd.Process.Signal(syscall.SIGTERM)
		count(cmd, most, to, &broken)
	}
	return lost, tooEarly, broken
}

// heeds tells whether an init has begun: its first system call blocks every signal
// that can be, and when it sleeps it waits for one.
func heeds(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	return err == nil && (strings.Contains(string(b), "SigBlk:\tfffffffffffbfeff") || strings.Contains(string(b), "State:\tS"))
}

func earlyAsChild(t testing.TB, n int, argv ...string) (lost, broken int) {
	t.Helper()
	cmd := exec.Command(run.exe, append([]string{"early", strconv.Itoa(n)}, argv...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(string(out), "lost %d broken %d", &lost, &broken); err != nil {
		t.Fatalf("%v in %q", err, out)
	}
	return lost, broken
}

// 600 random moments in the first 3 ms, 100 for each way to start it: no signal is
// lost, and the init does not die of one. (The fallback cannot have that.) What comes
// before the first instruction the kernel drops for any PID 1; that takes some 10 µs,
// and longer only where the processor goes to somebody else then: on a busy machine
// that is often.
func TestEarlySignals(t *testing.T) {
	needRoot(t)
	const n = 100
	for _, flags := range [][]string{{"-q", "--"}, {"-q", "-g", "--"}, {"-q", "-g", "--session", "--"}} {
		argv := append(append([]string{run.early}, flags...), "sleep", "20")
		if lost, tooEarly, broken := earlyAsPID1(t, n, argv...); lost > 0 || tooEarly > n/2 || broken > 0 {
			t.Errorf("%q as PID 1: of %d, %d were lost, %d before it ran, %d ended it otherwise", flags, n, lost, tooEarly, broken)
		}
		if lost, broken := earlyAsChild(t, n, argv...); lost+broken > 0 {
			t.Errorf("%q as a child: %d of %d were lost, %d ended it otherwise", flags, lost, n, broken)
		}
	}
}
