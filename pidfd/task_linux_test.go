package pidfd

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"syscall"
	"testing"

	"pinfold.dev/internal/sys"
	"pinfold.dev/internal/sys/systest"
)

// pendingOf reads the signals that wait for one thread, of a mask in its status.
func pendingOf(t *testing.T, pid, tid int) uint64 {
	t.Helper()
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/task/" + strconv.Itoa(tid) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(b) {
		if v, ok := bytes.CutPrefix(line, []byte("SigPnd:")); ok {
			n, err := strconv.ParseUint(string(bytes.TrimSpace(v)), 16, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("no SigPnd")
	return 0
}

// A signal to a thread waits for that thread, and not for the other. The
// process is stopped meanwhile, so that it waits.
func TestSignalThread(t *testing.T) {
	p, canary := systest.Start(t, suite.Command(t, "threads")), sleeper(t)
	tid, err := strconv.Atoi(p.Line(t))
	if err != nil {
		t.Fatal(err)
	}
	th, err := OpenThread(tid)
	if errors.Is(err, ErrNotSupported) {
		systest.Feature(t, "handles of threads", "6.9", err)
	} else if err != nil {
		t.Fatal(err)
	}
	defer th.Close()
	if pid, err := th.PID(); err != nil || pid != p.PID() {
		t.Errorf("thread of %d, %v", pid, err)
	}
	h := open(t, p.PID())
	if err := h.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	systest.Until(t, "stopped", func() bool {
		b, err := sys.ProcFile(p.PID(), "stat")
		s, perr := sys.ParseStat(b)
		return err == nil && perr == nil && s.State == 'T'
	})
	if err := th.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	const usr1 = 1 << (uint(syscall.SIGUSR1) - 1)
	if got := pendingOf(t, p.PID(), tid); got&usr1 == 0 {
		t.Errorf("pending for the thread: %#x", got)
	}
	if got := pendingOf(t, p.PID(), p.PID()); got&usr1 != 0 {
		t.Errorf("pending for the main thread: %#x", got)
	}
	p.End()
	if err := th.Signal(syscall.SIGUSR1); !errors.Is(err, ErrGone) {
		t.Errorf("of a process that is gone: %v", err)
	}
	alive(t, canary)
}

// TestRefusedThreads: our own threads are never signalled.
func TestRefusedThreads(t *testing.T) {
	if _, err := OpenThread(1); !errors.Is(err, ErrRefused) {
		t.Errorf("init: %v", err)
	}
	th, err := OpenThread(syscall.Gettid())
	if errors.Is(err, ErrNotSupported) {
		systest.Feature(t, "handles of threads", "6.9", err)
	} else if err != nil {
		t.Fatal(err)
	}
	defer th.Close()
	if err := th.Signal(0); !errors.Is(err, ErrRefused) {
		t.Errorf("our own: %v", err)
	}
}
