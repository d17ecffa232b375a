package turns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
)

func inMS(d time.Duration) int64 { return patience(d).Milliseconds() }

// late is how late the service may act on a busy machine; it is measured, too.
func onTime(t *testing.T, r api.Receipt, due time.Time) {
	t.Helper()
	late := r.AskedAt.Sub(due)
	t.Logf("%s: acted %v after it was due, seen empty %v after that", r.Reason, late.Round(time.Microsecond), r.SeenEmptyAt.Sub(r.AskedAt).Round(time.Microsecond))
	if late < -20*time.Millisecond || late > patience(time.Minute) { // wall clocks are stamped a little later
		t.Errorf("acted %v after it was due", late)
	}
}

// A gateway that is stopped renews no lease: the service ends its turn on time.
// When it goes on it is told.
func TestStoppedGateway(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{})
		beside := newCanary(t, s)
		unhurried(t, patience(1500*time.Millisecond), func(lease time.Duration) error {
			gw, err := tryGateway(t, s, "touch", api.BeginRequest{LeaseMS: lease.Milliseconds()})
			if err != nil {
				return err
			}
			time.Sleep(2 * lease)
			gw.send(syscall.SIGSTOP)
			if err := gw.stillOpen("touched"); err != nil {
				return err
			}
			at := gw.touched()
			onTime(t, gw.ends(api.ReasonLeaseExpired), at.Add(lease))
			stopped(t, gw.hearts...)
			gw.send(syscall.SIGCONT)
			eventually(t, "the gateway is told", func() bool { return strings.Contains(gw.said(1), "is abandoned") })
			return nil
		})
		beside.lives()
	})
}

// A gateway that is killed: by its pidfd, and by its connection.
func TestKilledGateway(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{})
		_, beside := newNeighbour(t, s)
		window := patience(1500 * time.Millisecond)
		for _, c := range []struct {
			how   string
			bind  api.ClientBind
			after bool
		}{{"sleep", api.BindProcess, false}, {"sleep", api.BindProcess, true}, {"hold", api.BindConnection, true}} {
			unhurried(t, window, func(after time.Duration) error {
				client := api.Client{Bind: c.bind}
				if c.after {
					client.AfterMS = after.Milliseconds()
				}
				gw, err := tryGateway(t, s, c.how, api.BeginRequest{Client: client})
				if err != nil {
					return err // it did not hold its turn in time
				}
				time.Sleep(after + patience(500*time.Millisecond))
				gw.isOpen("its client is there")
				at := time.Now()
				gw.kill()
				onTime(t, gw.ends(api.ReasonClientGone), at.Add(time.Duration(client.AfterMS)*time.Millisecond))
				stopped(t, gw.hearts...)
				return nil
			})
		}
		gw := startGateway(t, s, "sleep", api.BeginRequest{Client: api.Client{Bind: api.BindProcess, OnGone: api.OnGoneDetach}})
		gw.kill()
		time.Sleep(window)
		gw.isOpen("detached")
		gw.abandon(0)
		beside.lives()
	})
}

// Who takes the turn in time is its client, and what the former one does late is
// refused.
func TestTakenOver(t *testing.T) {
	s := serve(t, grades(t)[0], options{})
	gw := startGateway(t, s, "touch", api.BeginRequest{Client: api.Client{Bind: api.BindProcess, AfterMS: inMS(3 * time.Second)}})
	gw.send(syscall.SIGSTOP)
	v, err := s.Take(t.Context(), gw.ID, gw.Epoch)
	if err != nil || v.Epoch != gw.Epoch+1 {
		t.Fatalf("%+v (%v)", v, err)
	}
	gw.send(syscall.SIGCONT)
	eventually(t, "the former client is refused", func() bool { return strings.Contains(gw.said(1), "nothing was touched") })
	gw.kill()
	time.Sleep(patience(4 * time.Second))
	gw.isOpen("its client, this process, is there")
	for _, h := range gw.hearts {
		h.beating(t)
	}
	gw.abandon(0)
	stopped(t, gw.hearts...)
}

// A gateway in a cgroup that gets next to no processor time delays nothing: the
// watchdog is in the service.
func TestThrottledGateway(t *testing.T) {
	s := serve(t, grades(t)[0], options{})
	v, err := s.Begin(t.Context(), api.BeginRequest{Limits: &api.Limits{CPUPercent: 50}})
	if errors.Is(err, api.ErrLimitUnavailable) {
		t.Skipf("skipped: no cpu controller: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	(&turn{v, s, t}).abandon(0)
	slow := filepath.Join(run.cgroup, "slow")
	for _, dir := range []string{run.mount, run.cgroup} {
		set(t, dir+"/cgroup.subtree_control", "+cpu")
	}
	if err := os.Mkdir(slow, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeTree(slow) })
	set(t, slow+"/cpu.max", "1000 1000000")
	wall := patience(4 * time.Second)
	gw := startGateway(t, s, "touch", api.BeginRequest{WallMS: wall.Milliseconds(), IdleMS: inMS(time.Minute)})
	set(t, slow+"/cgroup.procs", strconv.Itoa(gw.pid))
	onTime(t, gw.ends(api.ReasonWall), gw.CreatedAt.Add(wall))
	stopped(t, gw.hearts...)
}

// A build that says nothing for a long time is not idle while it uses the
// processor, nor is one that writes; when both are done it is.
func TestSilentBuildIsNotIdle(t *testing.T) {
	s := serve(t, grades(t)[0], options{})
	unhurried(t, patience(1500*time.Millisecond), func(idle time.Duration) error { return silentBuild(t, s, idle) })
}

func silentBuild(t *testing.T, s *service, idle time.Duration) error {
	x := s.begin(t, api.BeginRequest{IdleMS: idle.Milliseconds()})
	byTouch := s.begin(t, api.BeginRequest{IdleMS: idle.Milliseconds(), IdleBy: []api.Activity{api.ActivityTouch}})
	defer x.drop()
	defer byTouch.drop()
	silent := api.LaunchRequest{Argv: []string{"sh", "-c", "exec >/dev/null; while :; do :; done"}}
	build, err := s.Launch(t.Context(), x.ID, silent)
	if err == nil {
		_, err = s.Launch(t.Context(), byTouch.ID, silent)
	}
	if err != nil {
		return err
	}
	byTouch.ends(api.ReasonIdle)
	time.Sleep(2 * idle)
	if err := x.stillOpen("it uses the processor"); err != nil {
		return err
	}
	chatty, err := s.Launch(t.Context(), x.ID, api.LaunchRequest{Argv: []string{"sh", "-c", "while :; do echo x; sleep 0.2; done"}, Stdio: stdio("", api.StdioSpool, "")})
	if err != nil {
		return err
	}
	if _, err := s.Signal(t.Context(), x.ID, build.ID, api.SignalRequest{Signal: "KILL"}); err != nil {
		return err
	}
	time.Sleep(3 * idle)
	if err := x.stillOpen("it writes"); err != nil {
		return err
	}
	if _, err := s.Signal(t.Context(), x.ID, chatty.ID, api.SignalRequest{Signal: "KILL"}); err != nil {
		return err
	}
	at := time.Now()
	sleeper, err := s.Launch(t.Context(), x.ID, api.LaunchRequest{Argv: []string{"sleep", "3600"}})
	if err != nil {
		return err
	}
	r := x.ends(api.ReasonIdle)
	if took := r.AskedAt.Sub(at); took < idle {
		t.Errorf("idle after %v, may be so for %v", took, idle)
	}
	onTime(t, r, at.Add(idle))
	if p := r.Processes[2]; p.ID != sleeper.ID || p.EndedBy != "kill" {
		t.Errorf("%+v", p)
	}
	return nil
}

// A frozen turn does not run, and does not time out.
func TestFrozenTurn(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		needCgroups(t, g)
		s := serve(t, g, options{})
		beside := newCanary(t, s)
		unhurried(t, patience(3*time.Second), func(wall time.Duration) error { return frozenTurn(t, s, wall) })
		beside.lives()
	})
}

func frozenTurn(t *testing.T, s *service, wall time.Duration) error {
	x := s.begin(t, api.BeginRequest{WallMS: wall.Milliseconds(), LeaseMS: 2 * wall.Milliseconds(), IdleMS: 2 * wall.Milliseconds()})
	defer x.drop()
	f := files(t, "leader", "child")
	req := helper(t, "setsid", f...)
	req.DeadlineMS = 2 * wall.Milliseconds()
	hearts := []heart{heart(f[0]), heart(f[1])}
	_, err := s.Launch(t.Context(), x.ID, req)
	if err == nil {
		err = x.beatsIn(hearts...)
	}
	var v api.Turn
	if err == nil {
		v, err = s.Freeze(t.Context(), x.ID, 0)
	}
	if err != nil {
		return err
	}
	frozenAt := time.Now() // or a little earlier
	if !v.Frozen {
		t.Fatalf("%+v", v)
	}
	stopped(t, hearts...)
	time.Sleep(wall)
	s.kill()
	s.restart()
	time.Sleep(wall)
	x.isOpen("frozen")
	stopped(t, hearts...)
	if _, err := s.Launch(t.Context(), x.ID, api.LaunchRequest{Argv: []string{"true"}}); !errors.Is(err, api.ErrUnavailable) {
		t.Errorf("a launch meanwhile: %v", err)
	}
	stood := time.Since(frozenAt) // or a little longer
	if v, err := s.Thaw(t.Context(), x.ID, 0); err != nil || v.Frozen {
		t.Fatalf("%+v (%v)", v, err)
	}
	if err := x.beatsIn(hearts...); err != nil {
		return err // too little was left of its time
	}
	onTime(t, x.ends(api.ReasonWall), x.CreatedAt.Add(wall+stood))
	stopped(t, hearts...)
	return nil
}

// A frozen turn can be ended, with a grace, too.
func TestFrozenTurnIsEnded(t *testing.T) {
	s := serve(t, grades(t)[0], options{})
	freeze := func() (*turn, []heart) {
		x := s.begin(t, api.BeginRequest{})
		h := hearts(files(t, "leader", "child"))
		x.launch(helper(t, "termproof", string(h[0]), string(h[1])))
		beats(t, h...)
		if _, err := s.Freeze(t.Context(), x.ID, 0); err != nil {
			t.Fatal(err)
		}
		return x, h
	}
	x, h := freeze()
	if r := x.abandon(0); r.Processes[0].EndedBy != "kill" {
		t.Errorf("without a grace: ended by %s", r.Processes[0].EndedBy)
	}
	stopped(t, h...)
	unhurried(t, patience(2*time.Second), func(grace time.Duration) error { // all of which its child takes
		x, h := freeze()
		r := x.abandon(grace.Milliseconds())
		stopped(t, h...)
		if by := r.Processes[0].EndedBy; by != "term" {
			return fmt.Errorf("ended by %s", by)
		}
		return nil
	})
}
