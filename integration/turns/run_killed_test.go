package turns

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"pinfold.dev/api"
)

// `pinfold run` that is killed, as a caller's timeout does it, cannot pass that on:
// its turn is abandoned by the service, and whatever it has started ends. It goes
// on where that was asked for, and in a turn that somebody else has begun.
func TestRunIsKilled(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) { runIsKilled(t, g, options{}) })
}

const peerPidfd = "getsockopt/77" // SO_PEERPIDFD, unix(7)

// So it is where the kernel gives no handle of who connected (before Linux 6.5).
func TestRunIsKilledWithoutPeerPidfd(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) { runIsKilled(t, g, without(peerPidfd, syscall.ENOPROTOOPT)) })
}

func runIsKilled(t *testing.T, g api.Grade, o options) {
	s := serve(t, g, o)
	newCanary(t, s)
	for name, c := range map[string]struct {
		way          []string
		goesOn, down bool // down: it is killed while there is no service
	}{
		"its own turn":                {},
		"on a terminal":               {way: []string{"--tty"}},
		"said":                        {way: []string{"--on-client-gone", "abandon"}},
		"detached":                    {way: []string{"--on-client-gone", "detach"}, goesOn: true},
		"a turn that was open before": {way: []string{"--turn", s.begin(t, api.BeginRequest{Label: "before"}).ID}, goesOn: true},
		"while there is no service":   {down: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := files(t, "beat")
			words := append([]string{"--socket", s.dir + "/sock", "run", "--cwd", "/"}, c.way...)
			words = append(words, "--", "/bin/sh", "-c", `setsid sh -c 'while :; do printf . >>"$0"; sleep 0.01; done' "$0" & wait`, f[0])
			cmd := exec.Command(run.bin+"/pinfold", words...)
			cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
			child, err := run.kids.start(cmd)
			if err != nil {
				t.Fatal(err)
			}
			defer child.kill()
			heart(f[0]).beating(t)
			x := newest(t, s)
			if c.down {
				s.kill()
			}
			child.kill()
			if c.down {
				heart(f[0]).beating(t)
				s.restart()
			}
			if c.goesOn {
				heart(f[0]).beating(t)
				if v := x.look(); v.State != api.StateOpen || v.Alive < 1 {
					t.Errorf("it is %s, alive %d", v.State, v.Alive)
				}
				x.abandon(0)
				return
			}
			eventually(t, "it is abandoned", func() bool { return x.look().State == api.StateAbandoned })
			r, err := s.Receipt(context.Background(), x.ID)
			if err != nil || r.Reason != api.ReasonClientGone || !r.Complete {
				t.Errorf("ended for %s, complete %v (%v)", r.Reason, r.Complete, err)
			}
			stopped(t, heart(f[0]))
		})
	}
}

// newest is the turn that was begun last.
func newest(t *testing.T, s *service) *turn {
	t.Helper()
	list, err := s.Turns(context.Background(), false, "")
	if err != nil || len(list.Turns) == 0 {
		t.Fatalf("%d turns (%v)", len(list.Turns), err)
	}
	last := list.Turns[0]
	for _, v := range list.Turns {
		if v.CreatedAt.After(last.CreatedAt) {
			last = v
		}
	}
	return &turn{Turn: last, s: s, t: t}
}

// There the process that asks is moved into its turn by that proof, too.
func TestInPlaceWithoutPeerPidfd(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		needCgroups(t, g)
		s := serve(t, g, without(peerPidfd, syscall.ENOPROTOOPT))
		cmd := exec.Command(run.bin+"/pinfold", "--socket", s.dir+"/sock", "run", "--in-place", "--", "cat", "/proc/self/cgroup")
		cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
		out, err := run.kids.output(cmd)
		if err != nil || !strings.Contains(out, "/work/p1") {
			t.Errorf("%v: %s", err, out)
		}
	})
}
