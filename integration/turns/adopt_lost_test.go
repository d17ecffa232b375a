package turns

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"pinfold.dev/api"
	"pinfold.dev/pidfd"
)

// Without a cgroup, an adopted process that lives is the turn's still when keeper
// and service were both killed, and it had nobody else.
func TestAdoptedOutlivesItsKeeper(t *testing.T) {
	barely(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{})
		newCanary(t, s)
		x := s.begin(t, api.BeginRequest{})
		f := files(t, "one")
		one := outsider(t, nil, "beat", f[0])
		heart(f[0]).beating(t)
		p := x.adopt(one.pid, api.AdoptRequest{MinGrade: api.GradeToken})
		s.kill()
		keeper, err := pidfd.Open(x.KeeperPID)
		if err != nil {
			t.Fatal(err)
		}
		defer keeper.Close()
		if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", x.KeeperPID)); err != nil || !strings.Contains(string(b), x.ID) {
			t.Fatalf("process %d is no keeper of it: %q (%v)", x.KeeperPID, b, err)
		}
		if err := keeper.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := keeper.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.restart()
		if v, err := s.Process(t.Context(), x.ID, p.ID); err != nil || v.Status.State != api.ProcessRunning {
			t.Errorf("%+v (%v)", v, err)
		}
		r, err := s.Abandon(t.Context(), x.ID, api.AbandonRequest{GraceMS: new(int64(0))})
		if err != nil || len(r.Processes) != 1 || r.Processes[0].EndedBy != "kill" || r.Processes[0].Verdict != api.VerdictGone {
			t.Errorf("%+v (%v)", r, err)
		}
		<-one.gone
		stopped(t, heart(f[0]))
	})
}

// One that is exiting is not moved any more, though the kernel says no word of that: it
// is as good as gone, and stands in nobody's way. With much memory that takes its time.
func TestAdoptOneThatIsExiting(t *testing.T) {
	needCgroups(t, grades(t)[0])
	s := serve(t, grades(t)[0], options{})
	newCanary(t, s)
	x := s.begin(t, api.BeginRequest{})
	seen := 0
	for range 10 {
		c := hoarder(t)
		h, err := pidfd.Open(c.pid)
		if err != nil {
			t.Fatal(err)
		}
		id, f := named(t, c.pid)
		if err := h.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		for exiting := false; err == nil && !exiting; {
			exiting, err = h.Exiting()
		}
		if over, xerr := h.Exited(); xerr == nil && !over {
			seen++
		}
		_, err = s.Adopt(t.Context(), x.ID, api.AdoptRequest{Process: id}, f)
		wantNotAdopted(t, "one that is exiting", err, api.AdoptGone)
		f.Close()
		h.Close()
		<-c.gone
	}
	t.Logf("seen on its way out: %d times", seen)
	x.abandon(0)
}

// hoarder is a process that has written to 128 MB of its memory.
func hoarder(t *testing.T) *child {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	defer w.Close()
	cmd := exec.Command("dd", "if=/dev/zero", "bs=128M", "count=1", "status=none")
	cmd.Stdout = w
	c, err := run.kids.start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.kill)
	if _, err := r.Read(make([]byte, 1)); err != nil { // it has read all, and writes it now
		t.Fatal(err)
	}
	return c
}
