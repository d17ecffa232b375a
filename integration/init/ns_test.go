package inits

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience is for what happens soon on a usual machine.
const patience = 60 * time.Second

// box is an init that runs as PID 1 of a PID namespace, which ends with it.
type box struct {
	t    testing.TB
	cmd  *exec.Cmd
	out  output
	done chan struct{}
	stop string // a file that ends a listener
}

// output is what is written, by several at once.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// start starts an init on a stage. change may change the command before.
func start(t testing.TB, s stage, change ...func(*exec.Cmd)) *box {
	t.Helper()
	b := &box{t: t, done: make(chan struct{})}
	b.cmd = exec.Command(run.exe)
	b.cmd.Env = append(without(os.Environ(), "LISTEN_PID"), s.text())
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true, Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	b.cmd.Stdout, b.cmd.Stderr = &b.out, &b.out
	b.cmd.WaitDelay = 20 * time.Second
	for _, c := range change {
		c(b.cmd)
	}
	// The whole namespace must go with a test that is killed: Pdeathsig is of the
	// thread, so this one may not end.
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		started <- b.cmd.Start()
		_ = b.cmd.Wait()
		close(b.done)
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = b.cmd.Process.Kill()
		<-b.done
	})
	return b
}

// code waits for the end: the exit code, or 1000 + signal.
func (b *box) code() int {
	b.t.Helper()
	if !b.endsIn(patience) {
		b.t.Fatalf("it does not end; output:\n%s", b.out.String())
	}
	ws := b.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ws.Signaled() {
		return 1000 + int(ws.Signal())
	}
	return ws.ExitStatus()
}

func (b *box) endsIn(d time.Duration) bool {
	select {
	case <-b.done:
		return true
	case <-time.After(d):
		return false
	}
}

// says waits for a text in the output.
func (b *box) says(text string) {
	b.t.Helper()
	for end := time.Now().Add(patience); !strings.Contains(b.out.String(), text); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			b.t.Fatalf("%q was not said; output:\n%s", text, b.out.String())
		}
	}
}

// signal sends one to the init, from outside.
func (b *box) signal(s syscall.Signal) {
	b.t.Helper()
	if err := b.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		b.t.Fatal(err)
	}
}

// script is an init with a script for the shell.
func script(bin string, flags []string, text string) stage {
	return stage{Argv: append(append([]string{bin}, flags...), "--", "/bin/sh", "-c", text)}
}

// result runs one to its end.
func result(t testing.TB, s stage, change ...func(*exec.Cmd)) (code int, out string) {
	t.Helper()
	b := start(t, s, change...)
	code = b.code()
	return code, b.out.String()
}

// want runs a script and checks how it ends, and what it prints.
func want(t *testing.T, s stage, code int, out string) {
	t.Helper()
	if c, o := result(t, s); c != code || strings.TrimSpace(o) != out {
		t.Errorf("%q: code %d, want %d; output %q, want %q", s.Argv, c, code, o, out)
	}
}
