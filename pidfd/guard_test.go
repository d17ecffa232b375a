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

func TestRefuse(t *testing.T) {
	const self, group = 500, 400
	for _, test := range []struct {
		what   string
		err    error
		refuse bool
	}{
		{"pid 0 (read from cgroup.procs)", RefusePID(0, self), true},
		{"pid -1 (everything)", RefusePID(-1, self), true},
		{"pid -500 (our own group)", RefusePID(-self, self), true},
		{"pid 1", RefusePID(1, self), true},
		{"ourselves", RefusePID(self, self), true},
		{"another", RefusePID(self+1, self), false},
		{"pid 2", RefusePID(2, self), false},
		{"group 0 (our own)", RefuseGroup(0, group), true},
		{"group 1 (kill(-1) is everything)", RefuseGroup(1, group), true},
		{"negative group", RefuseGroup(-7, group), true},
		{"our own group", RefuseGroup(group, group), true},
		{"another group", RefuseGroup(group+1, group), false},
		{"no cgroup", RefuseCgroup(0, []uint64{9, 5, 1}), true},
		{"our own cgroup", RefuseCgroup(9, []uint64{9, 5, 1}), true},
		{"its parent", RefuseCgroup(5, []uint64{9, 5, 1}), true},
		{"the root", RefuseCgroup(1, []uint64{9, 5, 1}), true},
		{"another cgroup", RefuseCgroup(7, []uint64{9, 5, 1}), false},
		{"a cgroup that holds us", RefuseHolding(slices.Values([]int{7, self, 9}), self), true},
		{"a cgroup that does not", RefuseHolding(slices.Values([]int{7, 0, 9}), self), false},
		{"an empty cgroup", RefuseHolding(slices.Values([]int{}), self), false},
		{"any cgroup where ours is unknown", RefuseCgroup(7, nil), false},
	} {
		if got := errors.Is(test.err, ErrRefused); got != test.refuse || (test.err == nil) == test.refuse {
			t.Errorf("%s: %v", test.what, test.err)
		}
	}
}

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
