package containment

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
)

// memSlow is what a memHold of a busy machine does late, or not at all.
type memSlow struct {
	fence, census time.Duration // how long they take
	quiet         bool          // ends are told by the census only
	untold        []string
	outside       []api.Outside
	hopeless      bool                        // Kill: nobody will ever tell whether all has ended
	unseen        bool                        // EndLaunch sees neither an end nor a survivor
	unreleased    int                         // so many lettings go fail, and nobody can count
	state         string                      // of members
	waitErr       func() error                // of WaitEmpty, at once
	rejoin        func() (api.Verdict, error) // Rejoin
	promote       func() error                // while a process is moved
	endKeeper     func()                      // with the lock held
	usage         func()                      // after the counters were read
}

func (s *memSlow) pass(ctx context.Context, d time.Duration) error {
	if d == 0 {
		return nil
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (x *memHold) Census(ctx context.Context) ([]api.Outside, error) {
	if err := x.slow.pass(ctx, x.slow.census); err != nil {
		return nil, err
	}
	x.mu.Lock()
	ids := x.slow.untold
	x.slow.untold = nil
	x.mu.Unlock()
	for _, id := range ids {
		x.hooks.Exit(Exit{Process: id, At: time.Now(), Status: api.Status{State: api.ProcessSignaled, SignalNumber: int(syscall.SIGKILL)}})
	}
	return x.slow.outside, nil
}

// slowly is a test, in fake time, of a service with the usual bound.
func slowly(t *testing.T, test func(t *testing.T, s *service)) {
	t.Helper()
	serving(t, func(t *testing.T, s *service) {
		s.stop()
		s.cfg.Bound = 10 * time.Second
		s.Manager = New(s.cfg)
		test(t, s)
	})
}

// A keeper that is slow, and not dead, is waited for: it is neither killed, nor is
// what it has not told yet lost.
func TestASlowKeeperLosesNothing(t *testing.T) {
	slowly(t, func(t *testing.T, s *service) {
		id := begun(t, s.Manager, api.BeginRequest{})
		launched(t, s.Manager, id)
		s.host.holds[0].slow = memSlow{census: 4 * sec, quiet: true}
		r, err := s.Abandon(t.Context(), id, root, api.AbandonRequest{})
		if err != nil || !r.Complete || r.Processes[0].Status.State != api.ProcessSignaled || len(r.Notes) > 0 {
			t.Errorf("%+v (%v)", r, err)
		}
	})
}

func TestASlowKeeperOfLeftoversLives(t *testing.T) {
	slowly(t, func(t *testing.T, s *service) {
		id := begun(t, s.Manager, api.BeginRequest{})
		launched(t, s.Manager, id)
		x := s.host.holds[0]
		x.slow.fence = 4 * sec
		r, err := s.Finish(t.Context(), id, root, api.FinishRequest{})
		if err != nil || len(r.Leftovers) != 1 || len(r.Notes) > 0 || x.keeperDead {
			t.Errorf("finish: its keeper is dead: %v; %+v (%v)", x.keeperDead, r, err)
		}
		_, _ = s.Abandon(t.Context(), id, root, api.AbandonRequest{Leftovers: true})
	})
}

func TestASlowKeeperTellsOfAnEnd(t *testing.T) {
	slowly(t, func(t *testing.T, s *service) {
		id := begun(t, s.Manager, api.BeginRequest{})
		p := launched(t, s.Manager, id)
		x := s.host.holds[0]
		time.AfterFunc(4*sec, func() { x.exit(p, 3) })
		x.mu.Lock()
		delete(x.live, p) // it has ended, and nobody has told
		x.mu.Unlock()
		a, err := s.EndProcess(t.Context(), id, p, root, api.EndProcessRequest{})
		if err != nil || !a.Complete || a.Status.State == api.ProcessRunning {
			t.Errorf("%+v (%v)", a, err)
		}
	})
}

// What was not seen to end is not told as ended.
func TestEndThatIsNotSeenIsNotComplete(t *testing.T) {
	slowly(t, func(t *testing.T, s *service) {
		id := begun(t, s.Manager, api.BeginRequest{})
		p := launched(t, s.Manager, id)
		s.host.holds[0].slow.unseen = true
		if a, err := s.EndProcess(t.Context(), id, p, root, api.EndProcessRequest{}); err != nil || a.Complete || a.Survivors == nil {
			t.Errorf("%+v (%v)", a, err)
		}
	})
}

// A turn that was seen empty, and is not any more, is not told as seen empty.
func TestSeenEmptyTooSoon(t *testing.T) {
	timed(t, func(t *testing.T, m *Manager, h *memHost, _ *memRecords) {
		id := begun(t, m, api.BeginRequest{})
		launched(t, m, id)
		x := h.holds[0]
		x.fenceStuck, x.gone = true, make(chan struct{})
		x.slow.endKeeper = func() { x.stuck, x.live["p9"] = true, 9 } // launched before the fence held
		r, err := m.Abandon(t.Context(), id, root, api.AbandonRequest{})
		if err != nil || r.State != api.StateUnkillable || r.SeenEmptyAt != nil {
			t.Errorf("%s, seen empty %v (%v)", r.State, r.SeenEmptyAt, err)
		}
		close(x.gone)
		if r, _ := over(t, m, id); !r.Complete || r.SeenEmptyAt == nil {
			t.Errorf("%+v", r)
		}
	})
}

// A job in a hold of its own of which nobody will ever tell is over, and who waits for
// it is told why.
func TestJobOfAHopelessHold(t *testing.T) {
	slowly(t, func(t *testing.T, s *service) {
		j, err := s.StartJob(t.Context(), root, api.JobRequest{Launch: api.LaunchRequest{Argv: []string{"x"}}})
		if err != nil {
			t.Fatal(err)
		}
		s.host.holds[0].slow.hopeless = true
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		got, err := s.StopJob(ctx, j.ID, root, api.StopJobRequest{})
		if err != nil || got.State != api.JobEnded || got.Reason != api.ReasonStop || !strings.Contains(strings.Join(got.Notes, " "), "its keeper was gone") {
			t.Errorf("%+v (%v)", got, err)
		}
	})
}

// The hold of a job whose service was killed before the job was entered is nobody's:
// it goes.
func TestHoldOfAJobThatWasNeverEntered(t *testing.T) {
	slowly(t, func(t *testing.T, s *service) {
		v, err := s.beginNew(t.Context(), root, api.BeginRequest{}, nil, api.KindJob)
		if err != nil {
			t.Fatal(err)
		}
		s.restart(sec)
		time.Sleep(time.Minute)
		if _, held := s.live(v.ID); held || !s.host.holds[0].removed {
			t.Errorf("it is held: %v", held)
		}
	})
}

// Of a job that cannot be verified nobody says that its ending goes on.
func TestStopOfAnUnverifiedJob(t *testing.T) {
	slowly(t, func(t *testing.T, s *service) {
		j, err := s.StartJob(t.Context(), root, api.JobRequest{Launch: api.LaunchRequest{Argv: []string{"x"}}})
		if err != nil {
			t.Fatal(err)
		}
		s.host.recover = false
		s.stop()
		s.Manager = New(s.cfg)
		if err := s.Recover(t.Context()); err == nil {
			t.Fatal("it is found")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if got, err := s.StopJob(ctx, j.ID, root, api.StopJobRequest{}); !errors.Is(err, api.ErrUnavailable) {
			t.Errorf("%+v (%v)", got, err)
		}
	})
}

// A look that was begun before the turn may be taken for idle, and ended after that,
// has not seen what came meanwhile: it ends nothing.
func TestASlowLookEndsNothing(t *testing.T) {
	timed(t, func(t *testing.T, m *Manager, h *memHost, _ *memRecords) {
		start := time.Now()
		id := begun(t, m, api.BeginRequest{IdleMS: 10_000, IdleBy: []api.Activity{api.ActivityCPU}})
		launched(t, m, id)
		hold := h.holds[0]
		hold.burn(0)
		stalled := false
		hold.mu.Lock()
		hold.slow.usage = func() {
			if at := time.Since(start); !stalled && at > 7*sec {
				stalled = true
				time.Sleep(sec)
				hold.burn(sec) // at 8.5 s
				time.Sleep(2 * sec)
			}
		}
		hold.mu.Unlock()
		time.Sleep(12 * sec)
		open(t, m, id, "active 8.5 s after its begin")
		if r, took := over(t, m, id); r.Reason != api.ReasonIdle || took < 6*sec || took > 12*sec {
			t.Errorf("%s after %v", r.Reason, took)
		}
	})
}

// What cannot be looked at is looked at again, and not without a pause.
func TestAWaitThatFailsAtOnce(t *testing.T) {
	slowly(t, func(t *testing.T, s *service) {
		id := begun(t, s.Manager, api.BeginRequest{})
		p := launched(t, s.Manager, id)
		x := s.host.holds[0]
		tries, start := 0, time.Now()
		x.slow.waitErr = func() error {
			if tries++; tries > 20 {
				return nil
			}
			return syscall.EMFILE
		}
		if _, err := s.Finish(t.Context(), id, root, api.FinishRequest{}); err != nil {
			t.Fatal(err)
		}
		x.exit(p, 0)
		time.Sleep(time.Minute)
		if _, held := s.live(id); held || tries < 20 {
			t.Errorf("held %v after %d tries", held, tries)
		}
		r, err := s.Receipt(t.Context(), id)
		if err != nil || r.LeftoversEndedAt == nil || r.LeftoversEndedAt.Sub(start) < 19*pauseTime {
			t.Errorf("%d tries, over after %v (%v)", tries, r.LeftoversEndedAt, err)
		}
	})
}

// A turn that cannot be let go of when its leftovers have gone is let go of a little
// later, or much.
func TestLettingGoIsTriedAgain(t *testing.T) {
	for fails, within := range map[int]time.Duration{20: 5 * sec, 200: 3 * time.Minute} {
		slowly(t, func(t *testing.T, s *service) {
			id := begun(t, s.Manager, api.BeginRequest{})
			p := launched(t, s.Manager, id)
			if _, err := s.Finish(t.Context(), id, root, api.FinishRequest{}); err != nil {
				t.Fatal(err)
			}
			x := s.host.holds[0]
			x.mu.Lock()
			x.slow.unreleased = fails
			x.mu.Unlock()
			x.exit(p, 0)
			time.Sleep(within)
			if _, held := s.live(id); held || !x.released {
				t.Error("it is still held")
			}
			if r, err := s.Receipt(t.Context(), id); err != nil || !r.Complete || r.LeftoversEndedAt == nil {
				t.Errorf("%d: %+v (%v)", fails, r, err)
			}
		})
	}
}

// A process whose main thread has ended runs on all the same, and is kept as others
// are.
func TestLeftoverWithoutAMainThread(t *testing.T) {
	timed(t, func(t *testing.T, m *Manager, h *memHost, _ *memRecords) {
		id := begun(t, m, api.BeginRequest{})
		launched(t, m, id)
		h.holds[0].slow.state = "Z"
		r, err := m.Finish(t.Context(), id, root, api.FinishRequest{})
		if err != nil || len(r.Leftovers) != 1 || h.holds[0].killed() > 0 {
			t.Errorf("killed %d times: %+v (%v)", h.holds[0].killed(), r, err)
		}
		_, _ = m.Abandon(t.Context(), id, root, api.AbandonRequest{Leftovers: true})
	})
}

// A promotion of what a turn has left that fails leaves the turn as it was: held until
// that has gone.
func TestFailedPromotionOfALeftover(t *testing.T) {
	slowly(t, func(t *testing.T, s *service) {
		id := begun(t, s.Manager, api.BeginRequest{})
		p := launched(t, s.Manager, id)
		if _, err := s.Finish(t.Context(), id, root, api.FinishRequest{}); err != nil {
			t.Fatal(err)
		}
		x := s.host.holds[0]
		x.slow.promote = func() error {
			time.Sleep(sec) // it is seen empty meanwhile
			return errors.New("one does not move")
		}
		if _, err := s.Promote(t.Context(), id, p, root, api.PromoteRequest{}); err == nil {
			t.Fatal("promoted")
		}
		time.Sleep(sec)
		if v, err := s.Turn(t.Context(), id); err != nil || v.Alive != 1 {
			t.Errorf("%+v (%v)", v, err)
		}
		x.exit(p, 0)
		time.Sleep(3 * time.Minute)
		if _, held := s.live(id); held || !x.released {
			t.Error("it is still held")
		}
	})
}
