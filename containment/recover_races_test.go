package containment

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"pinfold.dev/api"
)

// A turn that is found again may begin to end before all of it is looked at: because
// its keeper, which was slow to answer, tells that it was being ended, or because
// somebody asks. It is ended once.
func TestEndingBeginsWhileATurnIsFoundAgain(t *testing.T) {
	for name, begin := range map[string]func(*service, string){
		"by its keeper": func(s *service, _ string) { s.host.holds[0].hooks.Fenced() },
		"by its output": func(s *service, _ string) { s.host.holds[0].hooks.OutputMax() },
		"by a caller": func(s *service, id string) {
			tt, _ := s.live(id)
			if tt == nil {
				return // not before it is known
			}
			_, _ = s.Abandon(s.t.Context(), id, root, api.AbandonRequest{})
		},
	} {
		slowly(t, func(t *testing.T, s *service) {
			id := begun(t, s.Manager, api.BeginRequest{OutputMax: 1, OnOutputMax: api.OutputStop})
			launched(t, s.Manager, id)
			if _, err := s.Join(t.Context(), id, root, api.JoinRequest{}, nil); err != nil {
				t.Fatal(err)
			}
			x := s.host.holds[0]
			x.slow.rejoin = func() (api.Verdict, error) {
				begin(s, id)
				time.Sleep(sec)
				return api.VerdictOwned, nil
			}
			s.stop()
			s.Manager = New(s.cfg)
			if name == "by a caller" { // it was shown before
				s.host.recover = false
				_ = s.Recover(t.Context())
				s.host.mu.Lock()
				s.host.recover = true
				s.host.mu.Unlock()
			} else if err := s.Recover(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			r, err := s.Receipt(t.Context(), id)
			if err != nil || !r.Complete || len(r.Processes) != 2 {
				t.Errorf("%s: %+v (%v)", name, r, err)
			}
			if _, held := s.live(id); held || x.killed() != 1 || !x.removed {
				t.Errorf("%s: held %v, killed %d times, removed %v", name, held, x.killed(), x.removed)
			}
		})
	}
}

// A process that had joined and cannot be verified after a restart is not told as
// gone, and its turn is not finished for that.
func TestJoinedProcessThatCannotBeVerified(t *testing.T) {
	for _, v := range []api.Verdict{api.VerdictUnverifiable, api.VerdictOwned} {
		slowly(t, func(t *testing.T, s *service) {
			id := begun(t, s.Manager, api.BeginRequest{})
			p, err := s.Join(t.Context(), id, root, api.JoinRequest{FinishTurn: true}, nil)
			if err != nil {
				t.Fatal(err)
			}
			s.host.holds[0].slow.rejoin = func() (api.Verdict, error) { return v, errors.New("too many open files") }
			s.restart(sec)
			time.Sleep(time.Minute)
			now, err := s.Turn(t.Context(), id)
			if err != nil || now.State != api.StateOpen || now.Processes[0].Status.State != api.ProcessRunning ||
				!strings.Contains(strings.Join(now.Degraded, " "), p.ID+", which had joined, cannot be verified") {
				t.Errorf("%s: %+v (%v)", v, now, err)
			}
			if r, err := s.Abandon(t.Context(), id, root, api.AbandonRequest{}); err != nil || !r.Complete {
				t.Errorf("%+v (%v)", r, err)
			}
		})
	}
}

// What an earlier service had come to know of an ending is on the receipt once.
func TestOutsideIsToldOnce(t *testing.T) {
	slowly(t, func(t *testing.T, s *service) {
		id := begun(t, s.Manager, api.BeginRequest{})
		out := []api.Outside{{PID: 7, Comm: "c", Cgroup: "/elsewhere", Verdict: api.VerdictForeign}}
		s.host.holds[0].slow.outside = out
		s.stop()
		rec := s.cfg.Records.(*memRecords)
		r := rec.live[id]
		r.Turn.State, r.Ending = api.StateEnding, &EndRequest{Reason: api.ReasonStop, AskedAt: time.Now()}
		r.Draft = &api.Receipt{Turn: id, Reason: api.ReasonStop, State: api.StateEnding, Outside: out}
		rec.live[id] = r
		s.Manager = New(s.cfg)
		if err := s.Recover(context.Background()); err != nil {
			t.Fatal(err)
		}
		if got, _ := s.lasted(id, time.Now()); got > time.Minute {
			t.Errorf("after %v", got)
		}
		if got, err := s.Receipt(t.Context(), id); err != nil || len(got.Outside) != 1 {
			t.Errorf("%+v (%v)", got, err)
		}
	})
}

// A process that is taken back while somebody asks about it is an answer, not a crash.
func TestProcessThatIsTakenBackMeanwhile(t *testing.T) {
	m, h, _ := manager(0)
	id := begun(t, m, api.BeginRequest{})
	tt, _ := m.live(id)
	x := h.holds[0]
	if _, err := m.wouldEnd(t.Context(), tt, x, "p1", api.EndProcessRequest{}, api.EndProcessAnswer{}); err != nil {
		t.Error(err)
	}
	p := launched(t, m, id)
	tt.mu.Lock()
	tt.removeProcess(p)
	tt.mu.Unlock()
	err := m.moveJob(t.Context(), tt, x, newJob(JobRecord{Process: "p2", Origin: api.JobEjected}), p, api.PromoteRequest{PID: 5})
	if !errors.Is(err, api.ErrNotFound) {
		t.Error(err)
	}
	if _, err := m.Turn(t.Context(), id); err != nil { // the lock is free
		t.Error(err)
	}
}
