package containment

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pinfold.dev/api"
)

// A turn that cannot be verified when the service starts is looked at again by
// itself, and goes on from where it was; while what the service needs otherwise is
// not there it is not, and nothing is signalled before it is verified.
func TestUnverifiedIsLookedAtAgain(t *testing.T) {
	serving(t, func(t *testing.T, s *service) {
		v, err := s.Begin(t.Context(), Caller{UID: 7}, api.BeginRequest{WallMS: 200_000})
		if err != nil {
			t.Fatal(err)
		}
		spare := true
		s.cfg.Spare = func() (func(), bool) {
			s.host.mu.Lock()
			defer s.host.mu.Unlock()
			return func() {}, spare
		}
		s.stop()
		s.host.mu.Lock()
		s.host.recover = false
		s.host.mu.Unlock()
		s.Manager = New(s.cfg)
		if err := s.Recover(t.Context()); err == nil {
			t.Fatal("it is found")
		}
		state := func() (api.Turn, api.TurnRecord) {
			t.Helper()
			synctest.Wait()
			now, err := s.Turn(t.Context(), v.ID)
			l, lerr := s.RecordsOf(t.Context(), nil)
			if err != nil || lerr != nil || len(l.Records) != 1 {
				t.Fatal(err, lerr, l.Records)
			}
			return now, l.Records[0]
		}
		shown := func(v api.Turn) bool {
			return slices.ContainsFunc(v.Degraded, func(n string) bool { return strings.HasPrefix(n, unverified) })
		}
		time.Sleep(100 * time.Second)
		if now, r := state(); !shown(now) || r.Standing != api.StandingUnverified {
			t.Errorf("%+v, %q", r, now.Degraded)
		}
		s.host.mu.Lock()
		s.host.recover, spare = true, false
		s.host.mu.Unlock()
		time.Sleep(2 * relookMost)
		if _, r := state(); r.Standing != api.StandingUnverified {
			t.Errorf("without what is needed otherwise: %+v", r)
		}
		s.host.mu.Lock()
		spare = true
		s.host.mu.Unlock()
		time.Sleep(relookMost + time.Second)
		if now, r := state(); shown(now) || r.Standing != api.StandingLive || now.State != api.StateOpen {
			t.Errorf("%s, %+v, %q", now.State, r, now.Degraded)
		}
		time.Sleep(100 * time.Second) // its clock has gone on all the while
		if r, _ := over(t, s.Manager, v.ID); r.Reason != api.ReasonWall || !r.Complete {
			t.Errorf("it ended for %s, complete %v", r.Reason, r.Complete)
		}
	})
}

// A turn that is over, and of which it is not known what of it lives, is listed with
// those that live: its leftovers cannot be counted now, or it could not be verified.
func TestOverAndUncounted(t *testing.T) {
	serving(t, func(t *testing.T, s *service) {
		v, err := s.Begin(t.Context(), Caller{UID: 7}, api.BeginRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Launch(t.Context(), v.ID, Caller{UID: 7}, api.LaunchRequest{Argv: []string{"x"}}, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Finish(t.Context(), v.ID, Caller{UID: 7}, api.FinishRequest{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		listed := func() (alive int) {
			t.Helper()
			l, err := s.Turns(t.Context(), TurnFilter{Live: true})
			if err != nil || len(l) != 1 || l[0].State != api.StateFinished {
				t.Fatalf("%+v (%v)", l, err)
			}
			return l[0].Alive
		}
		x := s.host.holds[0]
		unreleased := func(n int) {
			x.mu.Lock()
			defer x.mu.Unlock()
			x.slow.unreleased = n
		}
		if n := listed(); n != 1 {
			t.Errorf("%d alive", n)
		}
		unreleased(1)
		if n := listed(); n != -1 {
			t.Errorf("uncounted: %d alive", n)
		}
		unreleased(0)
		s.stop()
		s.host.recover = false
		s.Manager = New(s.cfg)
		_ = s.Recover(t.Context())
		if n := listed(); n != -1 {
			t.Errorf("unverified: %d alive", n)
		}
		l, err := s.RecordsOf(t.Context(), nil)
		if err != nil || len(l.Records) != 1 || l.Records[0].Standing != api.StandingUnverified {
			t.Errorf("%+v (%v)", l.Records, err)
		}
		s.host.mu.Lock()
		s.host.recover = true
		s.host.mu.Unlock()
		time.Sleep(relookMost + time.Second)
		if n := listed(); n != 1 {
			t.Errorf("verified again: %d alive", n)
		}
	})
}
