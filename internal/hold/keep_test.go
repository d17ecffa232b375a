//go:build linux

package hold

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys"
	"pinfold.dev/internal/sys/systest"
	"pinfold.dev/pidfd"
)

// shelf keeps descriptors as a service manager does: those that are old enough
// to be sent are sent at once.
type shelf struct {
	mu  sync.Mutex
	fds map[string]int
}

func (s *shelf) Store(name string, fd int, _ time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, twice := s.fds[name]; twice {
		closeFD(fd)
		return false
	}
	s.fds[name] = fd
	return true
}

func (s *shelf) Remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if fd, ok := s.fds[name]; ok {
		closeFD(fd)
		delete(s.fds, name)
	}
}

// hand gives a duplicate of all that is kept to a host, as a start of the service
// gets it.
func (s *shelf) hand(t *testing.T, h *Host) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	h.cfg.Kept = nil
	for name, fd := range s.fds {
		dup, err := sys.Dup(fd)
		if err != nil {
			t.Fatal(err)
		}
		h.cfg.Kept = append(h.cfg.Kept, Kept{Name: name, FD: dup})
	}
	h.takeKept()
}

func (s *shelf) has(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.fds[name]
	return ok
}

// Keeper and process end while there is no service: a kept handle tells how, if
// it is that process's. A stranger's tells nothing, and the stranger lives.
func TestKeptHandles(t *testing.T) {
	s := begin(t)
	keep := &shelf{fds: map[string]int{}}
	s.host.cfg.Keep = keep
	over := filepath.Join(t.TempDir(), "over")
	until := "until [ -e " + over + " ]; do sleep 0.05; done; exit "
	p1 := s.start("p1", "sh", "-c", until+"7")
	p2 := s.start("p2", "sh", "-c", until+"8")
	s.start("p3", "sleep", "1000") // holds the cgroup
	s.start("p4", "true")
	s.exit("p4")
	for _, p := range []string{"p1", "p2", "p3"} {
		if !keep.has(keptName(s.turn, p)) {
			t.Errorf("the handle of %s is not kept", p)
		}
	}
	if keep.has(keptName(s.turn, "p4")) {
		t.Error("the handle of one that has ended is kept")
	}
	stranger := systest.Start(t, exec.Command("sleep", "1000"))
	keep.Remove(keptName(s.turn, "p2"))
	keep.Store(keptName(s.turn, "p2"), openDup(t, stranger.PID()), 0)
	keep.Store(keptName("0123456789abcdef", "p1"), openDup(t, stranger.PID()), 0)
	if err := s.EndKeeper(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(over, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, pid := range []int{p1.PID, p2.PID} {
		systest.Until(t, "its parent's successor has reaped it", func() bool {
			h, err := pidfd.Open(pid)
			if err == nil {
				h.Close()
			}
			return errors.Is(err, pidfd.ErrGone)
		})
	}
	keep.hand(t, s.host)
	s.find()
	if st := s.exit("p1"); !(st.State == api.ProcessExited && st.Code == 7) && !(oldKernel(t) && st.State == api.ProcessLost) {
		t.Errorf("p1 exited with 7, it is told as %+v", st)
	}
	if st := s.exit("p2"); st.State != api.ProcessLost {
		t.Errorf("p2 is told as %+v, by a stranger's handle", st)
	}
	if n := s.host.ForgetKept(func(turn string) bool { return turn == s.turn }); n != 1 {
		t.Errorf("%d handles of unknown turns are dropped, not 1", n)
	}
	if len(keep.fds) != 1 || !keep.has(keptName(s.turn, "p3")) {
		t.Errorf("kept are %v, not only p3's", keep.fds)
	}
	if err := syscall.Kill(stranger.PID(), 0); err != nil {
		t.Errorf("the stranger is dead: %v", err)
	}
	if k, err := s.Kill(t.Context(), time.Minute); err != nil || k.EmptyAt.IsZero() {
		t.Errorf("%+v, %v", k, err)
	}
	s.exit("p3")
	s.endTurn()
	if len(keep.fds) != 0 {
		t.Errorf("of a turn that is gone, there is kept %v", keep.fds)
	}
}

func openDup(t *testing.T, pid int) int {
	t.Helper()
	fd, err := sys.Dup(openPidfd(t, pid))
	if err != nil {
		t.Fatal(err)
	}
	return fd
}
