package pidfd

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/internal/sys/systest"
)

// endedBy starts a shell whose child runs script when it is told to; the shell
// reaps it at once, or not before the test is over.
func endedBy(t *testing.T, script string, late bool) syscall.WaitStatus {
	t.Helper()
	reap := "wait"
	if late {
		reap = "exec sleep 60" // a shell that waits reaps whatever comes
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", "sh -c 'read x; "+script+"' <&3 & echo $!; "+reap)
	cmd.ExtraFiles = []*os.File{r}
	p := systest.Start(t, cmd)
	r.Close()
	pid, err := strconv.Atoi(p.Line(t))
	if err != nil {
		t.Fatal(err)
	}
	h := open(t, pid)
	defer h.Close()
	if _, err := h.ExitStatus(); !errors.Is(err, errNotExited) {
		t.Errorf("of a live one: %v", err)
	}
	w.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := h.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	for !late && h.held() == nil {
		time.Sleep(time.Millisecond)
	}
	st, err := h.ExitStatus()
	if !late {
		systest.Feature(t, "PIDFD_INFO_EXIT", "6.15", err)
	} else if err != nil {
		t.Errorf("%q (late %v): %v", script, late, err)
	}
	return st
}

func TestExitStatusOfOthersChildren(t *testing.T) {
	for _, late := range []bool{true, false} {
		if st := endedBy(t, "exit 7", late); !st.Exited() || st.ExitStatus() != 7 {
			t.Errorf("exit 7 (late %v): %#x", late, uint32(st))
		}
		if st := endedBy(t, "exit 0", late); !st.Exited() || st.ExitStatus() != 0 {
			t.Errorf("exit 0 (late %v): %#x", late, uint32(st))
		}
		if st := endedBy(t, "kill -KILL $$", late); !st.Signaled() || st.Signal() != syscall.SIGKILL {
			t.Errorf("killed (late %v): %#x", late, uint32(st))
		}
	}
}
