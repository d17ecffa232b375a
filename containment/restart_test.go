package containment

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pinfold.dev/api"
)

// service is a manager that can be restarted: its host, its records and the
// host's clock stay.
type service struct {
	*Manager
	t    *testing.T
	cfg  Config
	host *memHost
}

// serving runs a test with a service, in fake time.
func serving(t *testing.T, test func(t *testing.T, s *service)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		base, h := time.Now(), &memHost{recover: true}
		s := &service{t: t, host: h, cfg: Config{Host: h, Records: newMemRecords(), Users: memUsers{}, Boot: "b", Bound: time.Second,
			Clock: func() time.Duration { return time.Since(base) }}}
		s.Manager = New(s.cfg)
		defer s.stop()
		test(t, s)
	})
}

func (s *service) stop() {
	if err := s.Close(s.t.Context()); err != nil {
		s.t.Error(err)
	}
	synctest.Wait()
}

// restart stops the service for a while.
func (s *service) restart(down time.Duration) {
	s.t.Helper()
	s.stop()
	time.Sleep(down)
	s.Manager = New(s.cfg)
	if err := s.Recover(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	synctest.Wait()
}

// lasted tells how long after start the turn was over, and why.
func (s *service) lasted(id string, start time.Time) (time.Duration, api.Receipt) {
	s.t.Helper()
	r, _ := over(s.t, s.Manager, id)
	return time.Since(start), r
}

func TestClocksGoOnOverARestart(t *testing.T) {
	touch := func(s *service, id string) {
		if _, err := s.Touch(s.t.Context(), id, api.TouchRequest{}); err != nil {
			s.t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name     string
		req      api.BeginRequest
		up, down time.Duration
		then     func(*service, string) // after the restart
		want     time.Duration
		why      api.Reason
	}{
		{"wall", api.BeginRequest{WallMS: 100_000}, 60 * sec, 10 * sec, nil, 100 * sec, api.ReasonWall},
		{"wall, over meanwhile", api.BeginRequest{WallMS: 100_000}, 60 * sec, 90 * sec, nil, 150 * sec, api.ReasonWall},
		{"lease", api.BeginRequest{LeaseMS: 80_000}, 30 * sec, 10 * sec, nil, 90 * sec, api.ReasonLeaseExpired},
		{"lease, over meanwhile", api.BeginRequest{LeaseMS: 80_000}, 30 * sec, 500 * sec, nil, 540 * sec, api.ReasonLeaseExpired},
		{"lease, renewed afterwards", api.BeginRequest{LeaseMS: 80_000}, 30 * sec, 500 * sec, touch, 610 * sec, api.ReasonLeaseExpired},
		{"idle", api.BeginRequest{IdleMS: 80_000, IdleBy: byTouch}, 30 * sec, 10 * sec, nil, 90 * sec, api.ReasonIdle},
		{"idle, over meanwhile", api.BeginRequest{IdleMS: 80_000}, 30 * sec, 500 * sec, nil, 540 * sec, api.ReasonIdle},
		{"connection", api.BeginRequest{Client: api.Client{Bind: api.BindConnection, AfterMS: 60_000}}, 30 * sec, 500 * sec, nil, 540 * sec, api.ReasonClientGone},
		{"connection, a short time", byConnection, sec, 500 * sec, nil, 506 * sec, api.ReasonClientGone},
	} {
		serving(t, func(t *testing.T, s *service) {
			id, start := begun(t, s.Manager, c.req), time.Now()
			launched(t, s.Manager, id)
			time.Sleep(c.up)
			s.restart(c.down)
			if c.then != nil {
				c.then(s, id)
			}
			if took, r := s.lasted(id, start); took != c.want || r.Reason != c.why || !r.Complete || r.Actor.Name != "pinfold" {
				t.Errorf("%s: %s after %v, want %v", c.name, r.Reason, took, c.want)
			}
		})
	}
}

// What renewed a clock counts over a restart, though not every touch is on disk.
func TestTouchesBeforeARestartCount(t *testing.T) {
	serving(t, func(t *testing.T, s *service) {
		id, start := begun(t, s.Manager, api.BeginRequest{LeaseMS: 80_000}), time.Now()
		for range 100 {
			time.Sleep(7 * sec)
			if _, err := s.Touch(t.Context(), id, api.TouchRequest{}); err != nil {
				t.Fatal(err)
			}
		}
		s.restart(sec)
		took, r := s.lasted(id, start)
		if least := 700*sec + 80*sec; took < least || took > least+10*sec || r.Reason != api.ReasonLeaseExpired {
			t.Errorf("%s after %v", r.Reason, took)
		}
	})
}

func TestClientsOverARestart(t *testing.T) {
	for _, c := range []struct {
		name  string
		down  func(*memWatch)
		state api.State
		note  string
	}{
		{"alive", func(*memWatch) {}, api.StateOpen, ""},
		{"gone", func(w *memWatch) { w.exit(7) }, api.StateAbandoned, ""},
		{"not to be verified", func(w *memWatch) { w.doubt = true }, api.StateOpen, "cannot be verified"},
	} {
		serving(t, func(t *testing.T, s *service) {
			id := begunBy(t, s.Manager, s.host.caller(7), boundTo(0))
			s.stop()
			c.down(&s.host.watch)
			s.Manager = New(s.cfg)
			if err := s.Recover(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			v, err := s.Turn(t.Context(), id)
			if err != nil || v.State != c.state || !strings.Contains(strings.Join(v.Degraded, " "), c.note) || (c.note == "") != (len(v.Degraded) == 0) {
				t.Errorf("%s: %+v (%v)", c.name, v, err)
			}
			if c.name != "alive" {
				return
			}
			s.host.watch.exit(7)
			if r, took := over(t, s.Manager, id); took != 0 || r.Reason != api.ReasonClientGone {
				t.Errorf("%+v after %v", r, took)
			}
		})
	}
}

func TestLeftoversTimeOverARestart(t *testing.T) {
	for down, want := range map[time.Duration]time.Duration{10 * sec: 60 * sec, 100 * sec: 130 * sec} {
		serving(t, func(t *testing.T, s *service) {
			id := begun(t, s.Manager, api.BeginRequest{LeftoversMaxMS: 60_000, Policy: api.EndPolicy{api.ReasonStop: {Processes: api.FateKeep}}})
			launched(t, s.Manager, id)
			if _, err := s.Abandon(t.Context(), id, root, api.AbandonRequest{}); err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			time.Sleep(30 * sec)
			s.restart(down)
			for n := 1; n > 0; n, _ = s.host.holds[0].Alive() {
				time.Sleep(sec)
				synctest.Wait()
			}
			if took := time.Since(start); took < want || took > want+sec {
				t.Errorf("ended after %v, want %v", took, want)
			}
			r, err := s.Receipt(t.Context(), id)
			if err != nil || r.LeftoversEndedAt == nil || r.State != api.StateAbandoned {
				t.Errorf("%+v (%v)", r, err)
			}
		})
	}
}

func TestFrozenOverARestart(t *testing.T) {
	serving(t, func(t *testing.T, s *service) {
		id, start := begun(t, s.Manager, api.BeginRequest{WallMS: 100_000}), time.Now()
		if _, err := s.Launch(t.Context(), id, root, api.LaunchRequest{Argv: []string{"x"}, DeadlineMS: 20_000}, nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * sec)
		if _, err := s.Freeze(t.Context(), id, root, api.FreezeRequest{}); err != nil {
			t.Fatal(err)
		}
		x := s.host.holds[0]
		if err := x.Thaw(t.Context()); err != nil { // as if it had been cut short
			t.Fatal(err)
		}
		s.restart(1000 * sec)
		if !x.isFrozen() {
			t.Error("it is not frozen again")
		}
		time.Sleep(1000 * sec)
		open(t, s.Manager, id, "frozen")
		if _, err := s.Thaw(t.Context(), id, root, api.FreezeRequest{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(9 * sec)
		s.restart(0)
		time.Sleep(sec - 1)
		if x.endings() != 0 {
			t.Error("the deadline did not stand still")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if x.endings() != 1 {
			t.Error("the deadline is still standing")
		}
		if took, r := s.lasted(id, start); took != 2100*sec || r.Reason != api.ReasonWall {
			t.Errorf("%s after %v", r.Reason, took)
		}
	})
}

// An ending that keeps the processes, cut short, keeps them.
func TestLeavingCutShort(t *testing.T) {
	serving(t, func(t *testing.T, s *service) {
		id := begun(t, s.Manager, api.BeginRequest{})
		launched(t, s.Manager, id)
		s.stop()
		list, _ := s.cfg.Records.Load()
		list[0].Turn.State = api.StateEnding
		list[0].Ending = &EndRequest{Reason: api.ReasonStop, AskedAt: time.Now(), Keep: true}
		if err := s.cfg.Records.Save(list[0]); err != nil {
			t.Fatal(err)
		}
		s.Manager = New(s.cfg)
		if err := s.Recover(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		r, err := s.Receipt(t.Context(), id)
		if n, _ := s.host.holds[0].Alive(); err != nil || n != 1 || len(r.Leftovers) != 1 || r.State != api.StateAbandoned {
			t.Errorf("%d alive, %+v (%v)", n, r, err)
		}
	})
}

// A turn that nobody can verify is shown, and no clock ends it.
func TestUnverifiableTurnIsEndedByNoClock(t *testing.T) {
	serving(t, func(t *testing.T, s *service) {
		id := begun(t, s.Manager, api.BeginRequest{WallMS: 1000})
		s.stop()
		s.host.recover = false
		s.Manager = New(s.cfg)
		if err := s.Recover(t.Context()); err == nil {
			t.Error("nothing was said")
		}
		time.Sleep(time.Hour)
		open(t, s.Manager, id, "unverifiable")
		if s.host.holds[0].killed() != 0 {
			t.Error("it was killed")
		}
	})
}

// A turn whose keeper launches nothing more, because an ending was under way that
// nobody could write down, is ended when the next service is there, also when it
// hears of that late. One whose ending was written down ends for that reason.
func TestFencedBeforeARestart(t *testing.T) {
	for _, late := range []bool{false, true} {
		serving(t, func(t *testing.T, s *service) {
			id, start := begun(t, s.Manager, api.BeginRequest{Policy: api.EndPolicy{api.ReasonOperator: {Processes: api.FateKeep}}}), time.Now()
			launched(t, s.Manager, id)
			x := s.host.holds[0]
			x.fenced = !late
			s.restart(sec)
			if late {
				x.hooks.Fenced()
			}
			took, r := s.lasted(id, start)
			if r.Reason != api.ReasonOperator || r.Actor.Name != "pinfold" || !r.Complete || len(r.Leftovers) > 0 {
				t.Errorf("after %v: %+v", took, r)
			}
		})
	}
}
