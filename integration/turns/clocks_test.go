package turns

import (
	"errors"
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
	if late < -20*time.Millisecond || late > patience(10*time.Second) { // wall clocks are stamped a little later
		t.Errorf("acted %v after it was due", late)
	}
}

// A gateway that is stopped renews no lease: the service ends its turn on time.
// When it goes on it is told.
func TestStoppedGateway(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{})
		beside := newCanary(t, s)
		gw := startGateway(t, s, "touch", api.BeginRequest{LeaseMS: inMS(1500 * time.Millisecond)})
		time.Sleep(patience(3 * time.Second))
		gw.isOpen("touched")
		gw.send(syscall.SIGSTOP)
		at := time.Now()
		r := gw.ends(api.ReasonLeaseExpired)
		if r.AskedAt.Before(at.Add(patience(time.Second))) { // 100 ms are for the last touch
			t.Errorf("ended %v after the gateway was stopped", r.AskedAt.Sub(at))
		}
		onTime(t, r, at.Add(patience(1500*time.Millisecond)).Add(-100*time.Millisecond))
		stopped(t, gw.hearts...)
		gw.send(syscall.SIGCONT)
		eventually(t, "the gateway is told", func() bool { return strings.Contains(gw.said(1), "is abandoned") })
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
			how    string
			client api.Client
			after  time.Duration
		}{
			{"sleep", api.Client{Bind: api.BindProcess}, 0},
			{"sleep", api.Client{Bind: api.BindProcess, AfterMS: window.Milliseconds()}, window},
			{"hold", api.Client{Bind: api.BindConnection, AfterMS: window.Milliseconds()}, window},
		} {
			gw := startGateway(t, s, c.how, api.BeginRequest{Client: c.client})
			time.Sleep(window + patience(500*time.Millisecond))
			gw.isOpen("its client is there")
			at := time.Now()
			gw.kill()
			onTime(t, gw.ends(api.ReasonClientGone), at.Add(c.after))
			stopped(t, gw.hearts...)
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
	idle := patience(1500 * time.Millisecond)
	x := s.begin(t, api.BeginRequest{IdleMS: idle.Milliseconds()})
	byTouch := s.begin(t, api.BeginRequest{IdleMS: idle.Milliseconds(), IdleBy: []api.Activity{api.ActivityTouch}})
	silent := api.LaunchRequest{Argv: []string{"sh", "-c", "exec >/dev/null; while :; do :; done"}}
	build := x.launch(silent)
	byTouch.launch(silent)
	byTouch.ends(api.ReasonIdle)
	time.Sleep(2 * idle)
	x.isOpen("it uses the processor")
	chatty := x.launch(api.LaunchRequest{Argv: []string{"sh", "-c", "while :; do echo x; sleep 0.2; done"}, Stdio: stdio("", api.StdioSpool, "")})
	x.signal(build.ID, syscall.SIGKILL)
	time.Sleep(3 * idle)
	x.isOpen("it writes")
	x.signal(chatty.ID, syscall.SIGKILL)
	at := time.Now()
	sleeper := x.launch(api.LaunchRequest{Argv: []string{"sleep", "3600"}})
	r := x.ends(api.ReasonIdle)
	if took := r.AskedAt.Sub(at); took < idle {
		t.Errorf("idle after %v, may be so for %v", took, idle)
	}
	onTime(t, r, at.Add(idle))
	if p := r.Processes[2]; p.ID != sleeper.ID || p.EndedBy != "kill" {
		t.Errorf("%+v", p)
	}
}

// A frozen turn does not run, and does not time out.
func TestFrozenTurn(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		needCgroups(t, g)
		s := serve(t, g, options{})
		beside := newCanary(t, s)
		wall := patience(3 * time.Second)
		x := s.begin(t, api.BeginRequest{WallMS: wall.Milliseconds(), LeaseMS: 2 * wall.Milliseconds(), IdleMS: 2 * wall.Milliseconds()})
		f := files(t, "leader", "child")
		req := helper(t, "setsid", f...)
		req.DeadlineMS = 2 * wall.Milliseconds()
		x.launch(req)
		hearts := []heart{heart(f[0]), heart(f[1])}
		for _, h := range hearts {
			h.beating(t)
		}
		if v, err := s.Freeze(t.Context(), x.ID, 0); err != nil || !v.Frozen {
			t.Fatalf("%+v (%v)", v, err)
		}
		stopped(t, hearts...)
		frozenAt := time.Now()
		time.Sleep(wall)
		s.kill()
		s.restart()
		time.Sleep(wall)
		x.isOpen("frozen")
		stopped(t, hearts...)
		if _, err := s.Launch(t.Context(), x.ID, api.LaunchRequest{Argv: []string{"true"}}); !errors.Is(err, api.ErrUnavailable) {
			t.Errorf("a launch meanwhile: %v", err)
		}
		if v, err := s.Thaw(t.Context(), x.ID, 0); err != nil || v.Frozen {
			t.Fatalf("%+v (%v)", v, err)
		}
		stood := time.Since(frozenAt)
		for _, h := range hearts {
			h.beating(t)
		}
		onTime(t, x.ends(api.ReasonWall), x.CreatedAt.Add(wall+stood-100*time.Millisecond))
		stopped(t, hearts...)
		beside.lives()
	})
}

// A frozen turn can be ended, with a grace, too.
func TestFrozenTurnIsEnded(t *testing.T) {
	s := serve(t, grades(t)[0], options{})
	for _, grace := range []int64{0, inMS(5 * time.Second)} {
		x := s.begin(t, api.BeginRequest{})
		f := files(t, "leader", "child")
		x.launch(helper(t, "termproof", f...))
		heart(f[0]).beating(t)
		heart(f[1]).beating(t)
		if _, err := s.Freeze(t.Context(), x.ID, 0); err != nil {
			t.Fatal(err)
		}
		r := x.abandon(grace)
		if want := map[bool]string{true: "kill", false: "term"}[grace == 0]; r.Processes[0].EndedBy != want {
			t.Errorf("grace %d: ended by %s", grace, r.Processes[0].EndedBy)
		}
		stopped(t, heart(f[0]), heart(f[1]))
	}
}
