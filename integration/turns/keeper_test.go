package turns

import (
	"syscall"
	"testing"

	"pinfold.dev/api"
	"pinfold.dev/pidfd"
)

// A turn whose keeper is gone, or hangs, is still held and can be ended. What
// nobody saw is told as lost.
func TestKeeperGone(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		needCgroups(t, g)
		for _, c := range []struct {
			name    string
			disturb func(t *testing.T, x *turn)
			lost    bool // the service is to know, before the end, that there is no keeper
			journal bool // statuses come from the journal only
		}{
			{"killed", func(t *testing.T, x *turn) { x.signalKeeper(t, syscall.SIGKILL) }, true, true},
			{"killed, then the service", func(t *testing.T, x *turn) {
				x.signalKeeper(t, syscall.SIGKILL)
				x.s.kill()
				x.s.restart()
			}, true, true},
			{"killed while there is no service", func(t *testing.T, x *turn) {
				x.s.kill()
				x.signalKeeper(t, syscall.SIGKILL)
				x.s.restart()
			}, true, true},
			{"stopped", func(t *testing.T, x *turn) { x.signalKeeper(t, syscall.SIGSTOP) }, false, true},
			{"frozen with its turn", func(t *testing.T, x *turn) { set(t, x.Cgroup+"/cgroup.freeze", "1") }, false, true},
			{"asked to end", func(t *testing.T, x *turn) { x.signalKeeper(t, syscall.SIGTERM) }, false, false},
		} {
			t.Run(c.name, func(t *testing.T) {
				s := serve(t, g, options{})
				newCanary(t, s)
				newNeighbour(t, s)
				x := s.begin(t, api.BeginRequest{})
				f := files(t, "leader", "child")
				done := x.launch(helper(t, "exit", "7"))
				if _, err := s.WaitProcess(t.Context(), x.ID, done.ID); err != nil {
					t.Fatal(err)
				}
				x.launch(helper(t, "setsid", f[0], f[1]))
				heart(f[0]).beating(t)
				heart(f[1]).beating(t)
				c.disturb(t, x)
				if c.lost {
					x.wantLost(t)
					heart(f[0]).beating(t) // nothing is ended by that alone
				}
				r := x.abandon(0)
				stopped(t, heart(f[0]), heart(f[1]))
				if p := r.Processes[0]; p.Status.State != api.ProcessExited || p.Status.Code != 7 {
					t.Errorf("p1 exited with 7, the receipt says %+v", p.Status)
				}
				switch p := r.Processes[1]; {
				case p.Status.State == api.ProcessSignaled && p.Status.Signal == "SIGKILL":
				case c.journal && p.Status.State == api.ProcessLost && p.Status.Why != "" && p.Status.Code == 0 && p.Status.ShellCode() == 255:
				default:
					t.Errorf("p2 was killed, the receipt says %+v", p.Status)
				}
			})
		}
	})
}

// wantLost checks that the service knows, and says, that the keeper is gone.
func (x *turn) wantLost(t *testing.T) {
	t.Helper()
	eventually(t, "the turn tells that its keeper is gone", func() bool { return len(x.look().Degraded) > len(x.Degraded) })
	if v := x.look(); v.State != api.StateOpen || v.Alive != 2 {
		t.Errorf("the turn is %s, alive %d", v.State, v.Alive)
	}
	_, err := x.s.Launch(t.Context(), x.ID, helper(t, "exit", "0"))
	wantCode(t, err, api.CodeKeeperLost)
}

// signalKeeper signals the turn's keeper, through a handle that was verified.
func (x *turn) signalKeeper(t *testing.T, sig syscall.Signal) {
	t.Helper()
	h, err := pidfd.Open(x.KeeperPID)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if line, err := h.CgroupPath(); err != nil || line[len(line)-len("/keeper"):] != "/keeper" {
		t.Fatalf("pid %d is no keeper: %q %v", x.KeeperPID, line, err)
	}
	if err := h.Signal(sig); err != nil {
		t.Fatal(err)
	}
	if sig == syscall.SIGKILL {
		if err := h.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
