package pidfd

import (
	"errors"
	"os"
	"slices"
	"syscall"
	"testing"

	"pinfold.dev/internal/sys"
	"pinfold.dev/internal/sys/systest"
)

// TestSignalRefuses tries what may never be signalled for real, with a signal
// that would be noticed.
func TestSignalRefuses(t *testing.T) {
	for _, pid := range []int{-5, 0, 1} {
		if h, err := Open(pid); !errors.Is(err, ErrRefused) || h != nil {
			t.Errorf("Open(%d): %v", pid, err)
		}
	}
	h, err := Open(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if err := h.Signal(syscall.SIGKILL); !errors.Is(err, ErrRefused) {
		t.Errorf("ourselves: %v", err)
	}
	for _, pid := range []int{0, 1, 1 << 20} { // whatever the sender said
		fd, err := sys.PidfdOpen(os.Getpid(), 0)
		if err != nil {
			t.Fatal(err)
		}
		h := FromFD(fd, pid)
		if err := h.Signal(syscall.SIGKILL); !errors.Is(err, ErrRefused) {
			t.Errorf("ourselves as %d: %v", pid, err)
		}
		h.Close()
	}
	fd, err := sys.PidfdOpen(1, 0)
	if err != nil {
		t.Fatal(err)
	}
	init := FromFD(fd, 1<<20)
	defer init.Close()
	if err := init.Signal(0); !errors.Is(err, ErrRefused) {
		t.Errorf("init under another number: %v", err)
	}
}

func TestOwnCgroups(t *testing.T) {
	ids, err := OwnCgroups()
	if errors.Is(err, sys.ErrNoCgroup2) || errors.Is(err, sys.ErrOutside) {
		systest.Lacking(t, "cgroup v2 that shows our own", err)
	}
	if err != nil || len(ids) == 0 {
		t.Fatal(ids, err)
	}
	h, err := Open(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	own, err := h.CgroupID()
	if err != nil || own != ids[0] {
		t.Errorf("own cgroup is %d (%v), chain %v", own, err, ids)
	}
	slices.Sort(ids)
	if len(slices.Compact(ids)) != len(ids) {
		t.Errorf("an id occurs twice: %v", ids)
	}
}
