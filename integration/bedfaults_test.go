package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/client"
)

// endsWithin abandons a turn: whatever the manager does, that is to work, and not
// to wait for it.
func endsWithin(t *testing.T, c *client.Client, turn string, bound time.Duration) api.Receipt {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	r, err := c.Abandon(ctx, turn, api.AbandonRequest{GraceMS: new(int64)})
	if err != nil || !r.Complete {
		t.Errorf("abandon %s: complete %v, %v", turn, r.Complete, err)
	}
	return r
}

// endAtOnce abandons turns, one after the other, of which the fastest shows that none
// waits for the manager: that would take all of them 5 s.
func endAtOnce(t *testing.T, c *client.Client, turns []api.Turn) {
	t.Helper()
	fastest := time.Hour
	for _, x := range turns {
		began := time.Now()
		endsWithin(t, c, x.ID, time.Minute)
		fastest = min(fastest, time.Since(began))
	}
	if fastest > 4*time.Second {
		t.Errorf("the fastest of %d endings took %v", len(turns), fastest)
	}
}

// busyTurns are some with two processes.
func busyTurns(t *testing.T, c *client.Client) (out []api.Turn) {
	t.Helper()
	for range 3 {
		x := begin(t, c, api.BeginRequest{})
		launch(t, c, x.ID, shell("sleep 300 & exec sleep 300"))
		out = append(out, x)
	}
	return out
}

// canaryTurn is a turn that nothing is to happen to.
func canaryTurn(t *testing.T, c *client.Client) (check func()) {
	t.Helper()
	x := begin(t, c, api.BeginRequest{})
	p := launch(t, c, x.ID, shell("exec sleep 300"))
	return func() {
		t.Helper()
		if v, err := c.Turn(t.Context(), x.ID); err != nil || v.State != api.StateOpen || v.Alive != 1 || !alive(p.PID) {
			t.Errorf("the canary's turn is %s, %d alive, %v", v.State, v.Alive, err)
		}
	}
}

// The manager is executed anew, reads its units again and loses its bus, one after
// the other, while turns begin and end. Each begin and each ending is answered,
// and no ending waits; descriptors are as many afterwards as before.
func TestFaultsStormThere(t *testing.T) {
	needBed(t, "service")
	u := installUnit(t)
	u.systemctl("start", "pinfold")
	c := u.client()
	canary := canaryTurn(t, c)
	u.kept(2)
	endsWithin(t, c, begin(t, c, api.BeginRequest{}).ID, time.Minute)
	u.noOther(1)
	pid := u.pid()
	files := openFiles(t, pid)

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var begun, refused, degraded atomic.Int64
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for ctx.Err() == nil {
				x, err := c.Begin(t.Context(), api.BeginRequest{})
				if err != nil {
					refused.Add(1)
					if _, ok := errors.AsType[*api.Error](err); !ok {
						t.Errorf("begin: %v", err)
					}
					continue
				}
				begun.Add(1)
				if x.Grade != api.GradeScope {
					degraded.Add(1)
				}
				p, err := c.Launch(t.Context(), x.ID, shell("sleep 300 & exec sleep 300"))
				if err != nil {
					t.Errorf("launch: %v", err)
				}
				endsWithin(t, c, x.ID, time.Minute)
				if alive(p.PID) {
					t.Errorf("%d lives after its turn", p.PID)
				}
			}
		})
	}
	rounds := 0
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end) || rounds < 3 || begun.Load() == 0 && time.Now().Before(end.Add(time.Minute)); rounds++ {
		switch rounds % 5 {
		case 0, 2:
			u.systemctl("daemon-reexec")
		case 4:
			u.systemctl("reset-failed", "dbus.service") // and its start limit
			u.systemctl("restart", "dbus.service")
		default:
			u.systemctl("daemon-reload")
		}
	}
	stop()
	wg.Wait()
	t.Logf("%d rounds; %d turns begun, %d of them not at grade scope, %d refused", rounds, begun.Load(), degraded.Load(), refused.Load())
	if begun.Load() == 0 || rounds < 3 {
		t.Error("it shows nothing")
	}
	if degraded.Load()*2 > begun.Load() { // a busy machine's manager takes long, and then scopes are left alone for a while, at most a minute
		end := time.Now().Add(150 * time.Second) // once more, should it take as long at the first begin after that
		for grade := api.Grade(""); grade != api.GradeScope; time.Sleep(time.Second) {
			if time.Now().After(end) {
				t.Fatal("a manager that came back costs turns their grade for good")
			}
			x := begin(t, c, api.BeginRequest{})
			grade = x.Grade
			endsWithin(t, c, x.ID, time.Minute)
		}
	}
	canary()
	u.noOther(1)
	u.kept(2)
	u.soon("no more files are open than before", func() bool { return openFiles(t, pid) <= files+2 })
	if now := u.pid(); now != pid {
		t.Errorf("the service has died: it is %d, was %d", now, pid)
	}
}

// noOther waits until so many turns have a scope.
func (u *unit) noOther(want int) {
	u.t.Helper()
	u.soon(fmt.Sprintf("%d turns have a scope", want), func() bool {
		return strings.Count(u.systemctl("list-units", "--all", "--plain", "--no-legend", "pinfold-*.scope"), "pinfold-") == want
	})
}

// The manager hangs: PID 1 is frozen, as it takes no SIGSTOP from inside. Turns
// that there are can be used and ended; a new one begins in bounded time, or is
// refused in that. What the manager is to hear it hears when it goes on.
func TestFaultsManagerHangsThere(t *testing.T) {
	needBed(t, "service")
	u := installUnit(t)
	u.systemctl("start", "pinfold")
	c := u.client()
	canary := canaryTurn(t, c)
	x, ys := begin(t, c, api.BeginRequest{}), busyTurns(t, c)
	u.kept(2 + len(ys))
	thaw := freezeManager(t)
	wantStatus(t, c, x.ID, launch(t, c, x.ID, shell("exit 3")).ID, api.Status{State: api.ProcessExited, Code: 3})
	long := launch(t, c, x.ID, shell("exec sleep 300"))
	endAtOnce(t, c, ys)
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	z, err := c.Begin(ctx, api.BeginRequest{})
	t.Logf("with the manager frozen, a begin took %v: grade %q, %v", time.Since(began), z.Grade, err)
	if ctx.Err() != nil {
		t.Error("it does not return")
	}
	if err == nil {
		if z.Grade == api.GradeScope || len(z.Degraded) == 0 {
			t.Errorf("it is held at grade %s, and tells %q", z.Grade, z.Degraded)
		}
		endsWithin(t, c, z.ID, time.Minute)
	}
	if !alive(long.PID) {
		t.Error("a launch in a turn that there is does not live")
	}
	thaw()
	canary()
	u.kept(3) // the socket, the canary, the long one
	endsWithin(t, c, x.ID, time.Minute)
	u.noOther(1)
	u.kept(2)
}

// freezeManager freezes PID 1, for three minutes at most, whatever becomes of us. Who
// waited for it would do so until then.
func freezeManager(t *testing.T) (thaw func()) {
	t.Helper()
	const file = "/sys/fs/cgroup/init.scope/cgroup.freeze"
	guard := exec.Command("/bin/sh", "-c", "sleep 180; echo 0 >"+file)
	guard.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := guard.Start(); err != nil {
		t.Fatal(err)
	}
	thaw = sync.OnceFunc(func() {
		if err := os.WriteFile(file, []byte("0"), 0); err != nil {
			t.Errorf("thaw the manager: %v", err)
		}
		_ = syscall.Kill(-guard.Process.Pid, syscall.SIGKILL)
		_ = guard.Wait()
	})
	t.Cleanup(thaw)
	if err := os.WriteFile(file, []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		b, err := os.ReadFile(filepath.Dir(file) + "/cgroup.events")
		if err == nil && strings.Contains(string(b), "frozen 1") {
			return thaw
		}
		if time.Now().After(end) {
			t.Fatalf("the manager does not freeze: %q, %v", b, err)
		}
	}
}

// The manager takes the call, and the scope's job never completes.
func TestFaultsJobNeverCompletesThere(t *testing.T) {
	needBed(t, "service")
	u := installUnit(t)
	u.systemctl("start", "pinfold")
	c := u.client()
	canary := canaryTurn(t, c)
	ys := busyTurns(t, c)
	never := u.dropIn("never.service", "[Service]\nType=oneshot\nExecStart=/bin/sleep 3600\nTimeoutStartSec=infinity\n")
	if err := os.WriteFile(filepath.Join(u.dir(), "never.service"), []byte("[Unit]\nDescription=never\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	undo := u.dropIn("pinfold-.scope", "[Unit]\nAfter=never.service\nRequires=never.service\n")
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	z, err := c.Begin(ctx, api.BeginRequest{})
	t.Logf("with a job that never completes, a begin took %v: grade %q, %v", time.Since(began), z.Grade, err)
	if jobs := u.systemctl("list-jobs"); !strings.Contains(jobs, "never.service") {
		t.Errorf("there is no such job, and nothing is shown:\n%s", jobs)
	}
	switch {
	case ctx.Err() != nil:
		t.Error("it does not return")
	case err == nil:
		if z.Grade == api.GradeScope || len(z.Degraded) == 0 {
			t.Errorf("it is held at grade %s, and tells %q", z.Grade, z.Degraded)
		}
		endsWithin(t, c, z.ID, time.Minute)
	}
	endAtOnce(t, c, ys)
	canary()
	undo()
	u.systemctl("stop", "never.service")
	never()
	_ = os.Remove(filepath.Join(u.dir(), "never.service"))
	u.systemctl("daemon-reload")
	u.noOther(1)
	canary()
}

// The manager calls a scope dead whose members live: the cgroup is what counts.
func TestFaultsScopeThoughtDeadThere(t *testing.T) {
	needBed(t, "service")
	u := installUnit(t)
	u.systemctl("start", "pinfold")
	c := u.client()
	canary := canaryTurn(t, c)
	undo := u.dropIn("pinfold-.scope", "[Scope]\nKillMode=none\n")
	x := begin(t, c, api.BeginRequest{})
	p := launch(t, c, x.ID, shell("sleep 300 & exec sleep 300"))
	u.soon("both run", func() bool {
		v, err := c.Turn(t.Context(), x.ID)
		return err == nil && v.Alive == 2
	})
	u.systemctl("stop", x.Unit)
	if out, _ := exec.Command("systemctl", "is-active", x.Unit).Output(); strings.TrimSpace(string(out)) == "active" || !alive(p.PID) {
		t.Fatalf("the scope is %s, its process alive: %v; nothing is shown", out, alive(p.PID))
	}
	undo()
	wantStatus(t, c, x.ID, launch(t, c, x.ID, shell("exit 4")).ID, api.Status{State: api.ProcessExited, Code: 4})
	u.systemctl("restart", "pinfold")
	if v, err := c.Turn(t.Context(), x.ID); err != nil || v.State != api.StateOpen || v.Alive != 2 {
		t.Errorf("after a restart the turn is %s, %d alive, %v", v.State, v.Alive, err)
	}
	u.soon("its keeper has answered the new service", func() bool {
		var err error
		p, err = c.Launch(t.Context(), x.ID, shell("exit 5"))
		return !errors.Is(err, api.ErrUnavailable)
	})
	wantStatus(t, c, x.ID, p.ID, api.Status{State: api.ProcessExited, Code: 5})
	if r := endsWithin(t, c, x.ID, time.Minute); r.Counts.Ended != 2 {
		t.Errorf("the receipt counts %d ended", r.Counts.Ended)
	}
	u.soon("its cgroup is gone", func() bool {
		_, err := os.Stat(x.Cgroup)
		return os.IsNotExist(err)
	})
	canary()
}

// A scope that fails, by a limit that an administrator has set, leaves a failed
// unit where he wants that: how its process ended is told all the same, the turn
// is ended, and the unit is forgotten.
func TestFaultsFailedUnitThere(t *testing.T) {
	needBed(t, "service")
	u := installUnit(t)
	u.systemctl("start", "pinfold")
	c := u.client()
	var x api.Turn
	var p api.Process
	for most := 2; ; most *= 3 {
		undo := u.dropIn("pinfold-.scope", fmt.Sprintf("[Unit]\nCollectMode=inactive\n[Scope]\nRuntimeMaxSec=%ds\nTimeoutStopSec=1s\n", most))
		var err error
		if x, err = c.Begin(t.Context(), api.BeginRequest{}); err == nil {
			p, err = c.Launch(t.Context(), x.ID, shell("exec sleep 300"))
		}
		if err == nil {
			break
		}
		if most > 60 {
			t.Fatalf("begin and launch: %v", err)
		}
		t.Logf("%d s were over before the launch: %v", most, err)
		if x.ID != "" {
			endsWithin(t, c, x.ID, time.Minute)
		}
		undo()
	}
	u.soon("the manager has ended the scope", func() bool { return !alive(p.PID) && u.try("is-failed", x.Unit) == nil })
	wantStatus(t, c, x.ID, p.ID, api.Status{State: api.ProcessSignaled, Signal: "SIGTERM"})
	endsWithin(t, c, x.ID, time.Minute)
	u.noOther(0)
}
