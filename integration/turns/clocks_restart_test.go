package turns

import (
	"fmt"
	"testing"
	"time"

	"pinfold.dev/api"
)

// The service is killed in the middle of each clock, stays away for longer than
// some have left, and goes on: what ran out meanwhile is acted on, what could
// not be renewed meanwhile gets its time for that, and the rest stands.
func TestRestartAmidstEachClock(t *testing.T) {
	s := serve(t, grades(t)[0], options{})
	beside := newCanary(t, s)
	unhurried(t, patience(2*time.Second), func(short time.Duration) error { return restartAmidst(t, s, short) })
	beside.lives()
}

// restartAmidst has clocks that run out shortly after the service was killed, and
// others.
func restartAmidst(t *testing.T, s *service, clock time.Duration) error {
	short, long := clock.Milliseconds(), inMS(time.Hour)
	var all []*turn
	begin := func(req api.BeginRequest) *turn {
		x := s.begin(t, req)
		all = append(all, x)
		_, _ = s.Launch(t.Context(), x.ID, api.LaunchRequest{Argv: []string{"sleep", "3600"}}) // unless it is over by now
		return x
	}
	held, err := tryGateway(t, s, "hold", api.BeginRequest{Client: api.Client{Bind: api.BindConnection, AfterMS: short}})
	if err != nil {
		return err // it did not hold its turn in time
	}
	dead := startGateway(t, s, "sleep", api.BeginRequest{Client: api.Client{Bind: api.BindProcess}})
	alive := startGateway(t, s, "sleep", api.BeginRequest{Client: api.Client{Bind: api.BindProcess}})
	lives := []*turn{
		begin(api.BeginRequest{WallMS: long, LeaseMS: long, IdleMS: long}),
		begin(api.BeginRequest{Client: api.Client{Bind: api.BindProcess}}), // this process
	}
	began := time.Now()
	leased := begin(api.BeginRequest{LeaseMS: 4 * short})
	over := map[api.Reason]*turn{
		api.ReasonWall:         begin(api.BeginRequest{WallMS: short}),
		api.ReasonLeaseExpired: begin(api.BeginRequest{LeaseMS: short}),
		api.ReasonIdle:         begin(api.BeginRequest{IdleMS: short}),
	}
	left := begin(api.BeginRequest{LeftoversMaxMS: short})
	if r, err := s.Finish(t.Context(), left.ID, api.FinishRequest{}); err != nil || len(r.Leftovers) != 1 {
		t.Fatalf("%+v (%v)", r, err)
	}
	s.kill()
	if took := time.Since(began); took > clock { // some clock has run out before
		s.restart()
		for _, x := range append(all, held.turn, dead.turn, alive.turn) {
			x.drop()
		}
		return fmt.Errorf("to begin all took %v", took)
	}
	dead.kill()
	time.Sleep(clock + patience(time.Second))
	back := time.Now()
	s.restart()
	if _, err := s.Touch(t.Context(), leased.ID, 1); err != nil {
		t.Errorf("there is no time to renew the lease: %v", err)
	}
	for why, x := range over {
		if r := x.ends(why); why != api.ReasonWall && r.AskedAt.Before(back.Add(patience(2*time.Second))) {
			t.Errorf("%s: the clients were given %v to come back", why, r.AskedAt.Sub(back))
		}
	}
	dead.ends(api.ReasonClientGone)
	stopped(t, dead.hearts...)
	held.ends(api.ReasonClientGone) // its gateway does not hold it again
	stopped(t, held.hearts...)
	eventually(t, "the leftovers are ended", func() bool {
		r, err := s.Receipt(t.Context(), left.ID)
		return err == nil && r.LeftoversEndedAt != nil && r.State == api.StateFinished
	})
	for _, x := range append(lives, alive.turn) {
		x.isOpen("after the restart")
	}
	alive.kill()
	alive.ends(api.ReasonClientGone)
	stopped(t, alive.hearts...)
	leased.ends(api.ReasonLeaseExpired)
	for _, x := range lives {
		x.abandon(0)
	}
	return nil
}
