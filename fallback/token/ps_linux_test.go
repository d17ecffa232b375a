package token

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys"
	"pinfold.dev/pidfd"
)

// sleeper dies with the tests.
func sleeper() *exec.Cmd {
	cmd := exec.Command("sleep", "600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// TestPS asks this system's ps(1), which has the same columns, about a process
// that starts, has started, and is gone. Linux's own seconds may be one off.
func TestPS(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("/bin/ps"); err != nil {
		t.Fatalf("%v: package procps has it", err)
	}
	cmd := sleeper()
	before := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	after := time.Now()
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	pid := cmd.Process.Pid
	young := 0
	var e sys.ProcEntry
	for {
		var err error
		if e, err = readPS(pid); err == nil {
			break
		}
		if young++; !errors.Is(err, errYoung) || young > 500 {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	started := time.UnixMicro(int64(e.StartUS))
	if started.Before(before.Add(-3*time.Second)) || started.After(after.Add(3*time.Second)) || e.PID != pid || e.Zombie {
		t.Errorf("%+v: started %v, not from %v to %v", e, started, before, after)
	}
	if time.Now().Unix() <= started.Unix() {
		t.Error("its second was not over yet")
	}
	_ = cmd.Process.Kill()
	for !e.Zombie {
		var err error
		if e, err = readPS(pid); err != nil {
			t.Fatal(err)
		}
	}
	_ = cmd.Wait()
	if _, err := readPS(pid); !errors.Is(err, sys.ErrNoEntry) {
		t.Errorf("once it is gone: %v", err)
	}
}

// TestSlowPS: a ps that has read in the second of the start, and takes longer than
// that to tell, proves no more than a quick one.
func TestSlowPS(t *testing.T) {
	slow := filepath.Join(t.TempDir(), "ps")
	script := "#!/bin/sh\nLC_ALL=C TZ=UTC0 date +\"$2 1 $2 S %a %b %e %H:%M:%S %Y\"\nsleep 1.1\n"
	if err := os.WriteFile(slow, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Parallel() // not before: a fork of another test would have it open, and a busy file is not executed
	if e, err := readBy(slow, os.Getpid()); !errors.Is(err, errYoung) {
		t.Errorf("%+v, %v", e, err)
	}
}

// TestSettle waits for a second to be over, and not for ever.
func TestSettle(t *testing.T) {
	t.Parallel()
	start := time.Now()
	reads := 0
	id, life, err := settle(func() (api.Identity, pidfd.Life, error) {
		if reads++; time.Now().Unix() <= start.Unix() {
			return api.Identity{}, pidfd.Unknown, errYoung
		}
		return api.Identity{PID: 5}, pidfd.Alive, nil
	})
	if id.PID != 5 || life != pidfd.Alive || err != nil || reads > 2 {
		t.Errorf("%+v, %d, %v after %d reads", id, life, err, reads)
	}
}

// TestNothingIsHeldHere: on Linux the packages that can do better have to.
func TestNothingIsHeldHere(t *testing.T) {
	t.Parallel()
	cmd := sleeper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	if p, err := Hold(cmd.Process.Pid); p != nil || !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("%v, %v", p, err)
	}
	if p, v, why := Recall(api.Identity{PID: cmd.Process.Pid, Boot: "b", StartUS: 1}); p != nil || v != api.VerdictUnverifiable {
		t.Errorf("%v, %s, %q", p, v, why)
	}
}
