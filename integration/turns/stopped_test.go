package turns

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/pidfd"
)

// A keeper that is stopped when the service comes back costs nobody but its own
// turn: the others are there at once. It is greeted when it goes on, and has
// lost nothing; and one that stays stopped is killed by the ending, whose
// receipt has what its journal tells. (Without a cgroup it is made to go on.)
func TestStoppedKeeper(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{})
		newCanary(t, s)
		_, beside := newNeighbour(t, s)
		back, stays := s.begin(t, api.BeginRequest{Label: "goes on"}), s.begin(t, api.BeginRequest{Label: "stays"})
		f := files(t, "back", "stays")
		var before, after string
		for i, x := range []*turn{back, stays} {
			before = x.launch(helper(t, "beat", f[i])).ID
			heart(f[i]).beating(t)
			signalKeeper(t, x, syscall.SIGSTOP)
			t.Cleanup(func() { _ = syscall.Kill(x.KeeperPID, syscall.SIGCONT) })
		}
		s.kill()
		s.start()
		beside.lives()
		for _, x := range []*turn{back, stays} {
			if _, err := s.Launch(t.Context(), x.ID, helper(t, "exit", "0")); !errors.Is(err, api.ErrUnavailable) {
				t.Errorf("launch where the keeper is stopped: %v", err)
			}
			if p, err := s.Process(t.Context(), x.ID, before); errors.Is(err, api.ErrNotFound) {
				t.Errorf("a process that was answered, where the keeper is stopped: %+v, %v", p, err)
			}
			if w, err := s.Why(t.Context(), x.ID); err != nil || !strings.Contains(strings.Join(w.Because, "\n"), "does not answer") {
				t.Errorf("why, where the keeper is stopped: %q, %v", w.Because, err)
			}
		}

		signalKeeper(t, back, syscall.SIGCONT)
		eventually(t, "the keeper answers", func() bool {
			p, err := s.Launch(t.Context(), back.ID, helper(t, "exit", "5"))
			if err != nil {
				return false
			}
			after = p.ID
			return true
		})
		if p, err := s.WaitProcess(t.Context(), back.ID, after); err != nil || p.Status.Code != 5 {
			t.Errorf("a process after the keeper went on: %+v, %v", p.Status, err)
		}
		if r := back.abandon(0); !r.Complete || len(r.Processes) != 2 || r.Processes[0].Status.State != api.ProcessSignaled {
			t.Errorf("receipt of the turn whose keeper went on: %+v", r)
		}
		if r := stays.abandon(0); !r.Complete || len(r.Processes) != 1 || r.Processes[0].Status.State != api.ProcessLost && !isBare(g) {
			t.Errorf("receipt of the turn whose keeper stayed stopped: %+v", r)
		}
	})
}

// signalKeeper signals a turn's keeper, of which this test knows that it lives.
func signalKeeper(t *testing.T, x *turn, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(x.KeeperPID, sig); err != nil {
		t.Fatal(err)
	}
}

// A keeper that is stopped reads nothing, and the socket to it fills up. That
// holds up what is asked of it, never the ending.
func TestStoppedKeeperWithAFullSocket(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{})
		newCanary(t, s)
		x := s.begin(t, api.BeginRequest{Label: "full"})
		h := heart(files(t, "beats")[0])
		x.launch(helper(t, "beat", string(h)))
		h.beating(t)
		signalKeeper(t, x, syscall.SIGSTOP)

		var asked sync.WaitGroup
		defer asked.Wait()
		for range 8 {
			asked.Go(func() {
				req := helper(t, "exit", "0")
				req.Argv = append(req.Argv, strings.Repeat("x", 100_000))
				if p, err := s.Launch(context.Background(), x.ID, req); err == nil && !isBare(g) {
					t.Errorf("a stopped keeper launched %s", p.ID)
				}
			})
		}
		time.Sleep(patience(200 * time.Millisecond)) // by now they wait; if not, the test only shows less
		ctx, cancel := context.WithTimeout(t.Context(), patience(time.Minute))
		defer cancel()
		r, err := s.Abandon(ctx, x.ID, api.AbandonRequest{})
		if err != nil || !r.Complete {
			t.Errorf("abandon: complete %v, %v", r.Complete, err)
		}
		stopped(t, h)
	})
}

// Whose child an orphan is only its keeper tells where there is no cgroup. So one
// that is stopped is not killed with the orphans unfound: it goes on, or, where it is
// stopped again and again, all that can be found below it has ended before.
func TestStoppedKeeperLosesNobody(t *testing.T) {
	barely(t, func(t *testing.T, g api.Grade) {
		for _, again := range []bool{false, true} {
			var o options
			if again {
				o.args = []string{"--bound", patience(2 * time.Second).String()} // all of which it takes
				if g != api.GradeSubreaper && os.Getenv("PINFOLD_TEST_LONG") == "" {
					continue
				}
			}
			s := serve(t, g, o)
			newCanary(t, s)
			x := s.begin(t, api.BeginRequest{})
			f := files(t, "orphan", "beat")
			x.launch(helper(t, "daemon", f[0]))
			x.launch(helper(t, "beat", f[1]))
			hearts := []heart{heart(f[0]), heart(f[1])}
			for _, h := range hearts {
				h.beating(t)
			}
			signalKeeper(t, x, syscall.SIGSTOP)
			var stopper sync.WaitGroup
			over := make(chan struct{})
			if again {
				stopper.Go(func() { stopAgain(t, x.KeeperPID, over) })
			}
			r, err := s.Abandon(t.Context(), x.ID, api.AbandonRequest{GraceMS: new(int64(0))})
			close(over)
			stopper.Wait()
			if err != nil || !again && !r.Complete {
				t.Errorf("stopped again %v: %+v, %v", again, r, err)
			}
			eventually(t, "it is seen to be over", func() bool { return x.look().State.Terminal() })
			stopped(t, hearts...)
		}
	})
}

// stopAgain stops a process, of which a handle is held, whenever it goes on.
func stopAgain(t *testing.T, pid int, over chan struct{}) {
	h, err := pidfd.Open(pid)
	if err != nil {
		t.Error(err)
		return
	}
	defer h.Close()
	for h.Signal(syscall.SIGSTOP) == nil {
		select {
		case <-over:
			return
		case <-time.After(100 * time.Microsecond):
		}
	}
}
