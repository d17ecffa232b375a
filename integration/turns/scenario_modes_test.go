package turns

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
)

// whereabouts writes down, in FILE.self and FILE.child, the cgroups of a process
// and of a grandchild of it in a session of its own, whose parent has gone; both
// beat into FILE.
const whereabouts = `where() { while read -r l; do case $l in 0::*) echo "$l" >"$1.new"; esac; done </proc/self/cgroup; mv "$1.new" "$1"; }
beat() { while :; do printf . >>"$1"; sleep 0.02; done; }
case $1 in
child) where "$0.child"; beat "$0";;
*) (setsid sh -c "$ME" "$0" child </dev/null & )
where "$0.self"; beat "$0";;
esac`

// Whatever way a process is started, it and what it starts are in its leaf of
// the turn, and end with the turn; the canaries beside do not.
func TestEveryWayOfLaunchingIsHeld(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{})
		newCanary(t, s)
		newNeighbour(t, s)
		deadline := int64(3600_000)
		for mode, streams := range streamsOf() {
			t.Run(mode, func(t *testing.T) {
				heldIn(t, s, func(x *turn, file string) {
					req := api.LaunchRequest{Argv: []string{"/bin/sh", "-c", whereabouts, file}, Stdio: streams, EnvAdd: []string{"ME=" + whereabouts}}
					var files []*os.File
					if streams.Stderr.Mode == api.StdioPass {
						p := newPassed(t)
						files = []*os.File{p.in[0], p.out[1]}
					}
					if _, err := s.Launch(t.Context(), x.ID, req, files...); err != nil {
						t.Fatal(err)
					}
				})
			})
		}
		for name, change := range map[string]func(*api.LaunchRequest){
			"as another user": func(r *api.LaunchRequest) { r.User, r.Cwd = "nobody", "/" },
			"with a deadline": func(r *api.LaunchRequest) { r.DeadlineMS = deadline },
			"after a restart": func(*api.LaunchRequest) { s.kill(); s.restart() },
		} {
			t.Run(name, func(t *testing.T) {
				heldIn(t, s, func(x *turn, file string) {
					req := api.LaunchRequest{Argv: []string{"/bin/sh", "-c", whereabouts, file}, EnvAdd: []string{"ME=" + whereabouts}}
					change(&req)
					x.launch(req)
				})
			})
		}
		for _, way := range [][]string{{"run"}, {"run", "--tty"}, {"run", "--detach"}, {"run", "--tty", "--detach"}, {"run", "--in-place"}} {
			t.Run(strings.Join(way, " "), func(t *testing.T) {
				heldIn(t, s, func(x *turn, file string) { x.command(way, file) })
			})
		}
	})
}

// command starts pinfold for a process of the turn; it ends with that.
func (x *turn) command(way []string, file string) {
	words := append([]string{"--socket", x.s.dir + "/sock"}, way...)
	cmd := exec.Command(run.bin+"/pinfold", append(words, "--turn", x.ID, "--", "/bin/sh", "-c", whereabouts, file)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "ME=" + whereabouts}
	c, err := run.kids.start(cmd)
	if err != nil {
		x.t.Fatal(err)
	}
	x.t.Cleanup(func() {
		select {
		case <-c.gone:
		case <-time.After(patience(time.Minute)):
			x.t.Errorf("pinfold %q goes on after its turn", way)
			c.kill()
		}
	})
}

// heldIn has a launch write down where it is, checks that, and ends it.
func heldIn(t *testing.T, s *service, launch func(x *turn, file string)) {
	t.Helper()
	x := s.begin(t, api.BeginRequest{})
	f := files(t, "beat")
	launch(x, f[0])
	for _, who := range []string{"self", "child"} {
		in := ""
		eventually(t, "where its "+who+" is", func() bool {
			b, err := os.ReadFile(f[0] + "." + who)
			in = strings.TrimSpace(string(b))
			return err == nil
		})
		if want := filepath.Base(x.Cgroup) + "/work/p1"; !strings.HasSuffix(in, want) {
			t.Errorf("%s is in %s, not in %s", who, in, want)
		}
	}
	heart(f[0]).beating(t)
	if r := x.abandon(0); r.Counts.Ended < 2 || len(r.Processes) != 1 {
		t.Errorf("%+v %+v", r.Counts, r.Processes)
	}
	stopped(t, heart(f[0]))
}

// An interrupt ends what is in the foreground, whole: a pipeline that reads a
// here document, all of it. What has gone into a session of its own goes on, is
// held, and ends with the turn.
func TestInterrupt(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{wrap: []string{"dirty"}}) // it has INT ignored itself, and blocked
		newCanary(t, s)
		for _, how := range []string{"typed", "signalled", "stop signal"} {
			t.Run(how, func(t *testing.T) {
				x := s.begin(t, api.BeginRequest{})
				f := files(t, "one", "two", "away", "code")
				h := helper(t, "beat")
				req := api.LaunchRequest{Argv: append([]string{"bash", "-c", `setsid -f "$0" "$3" </dev/null # not &, for which a shell has INT ignored
"$0" "$1" <<-EOF | "$0" "$2"
	a document
	EOF
echo not reached >"$4"`, run.exe}, f...), Env: h.Env, StopSignal: "INT"}
				if how == "typed" {
					req.Stdio = stdio(api.StdioPTY, api.StdioPTY, api.StdioPTY)
				}
				p := x.launch(req)
				for _, name := range f[:3] {
					heart(name).beating(t)
				}
				switch how {
				case "typed":
					x.types(p.ID, "\x03")
				case "signalled":
					if _, err := s.Signal(t.Context(), x.ID, p.ID, api.SignalRequest{Signal: "INT", Group: true}); err != nil {
						t.Fatal(err)
					}
				}
				if how == "stop signal" { // goes to every member, and all of them end of it
					r := x.abandon(patience(time.Minute).Milliseconds())
					if st := r.Processes[0].Status; st.Signal != "SIGINT" || r.Processes[0].EndedBy != "term" {
						t.Errorf("%+v", r.Processes[0])
					}
				} else {
					ctx, cancel := context.WithTimeout(t.Context(), patience(time.Minute))
					v, err := s.WaitProcess(ctx, x.ID, p.ID)
					cancel()
					if err != nil || v.Status.Signal != "SIGINT" {
						t.Errorf("%+v (%v)", v.Status, err)
					}
					stopped(t, heart(f[0]), heart(f[1]))
					heart(f[2]).beating(t)
					x.abandon(0)
				}
				stopped(t, heart(f[0]), heart(f[1]), heart(f[2]))
				if b, err := os.ReadFile(f[3]); err == nil {
					t.Errorf("the script went on: %s", b)
				}
			})
		}
	})
}

// What programs do to go on without their terminal, which an agent's own tools
// do for it, does not take them out of the turn.
func TestDetachedFromItsTerminal(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{})
		newCanary(t, s)
		newNeighbour(t, s)
		ways := map[string]string{
			"nohup":        `nohup "$0" "$1" >/dev/null 2>&1 &`,
			"disown":       `trap '' HUP; "$0" "$1" & disown`,
			"nohup setsid": `nohup setsid "$0" "$1" </dev/null >/dev/null 2>&1 &`,
			"double fork":  `( ( trap '' HUP; exec "$0" "$1" ) & )`,
			"script":       `setsid script -qc "$0 $1" /dev/null </dev/null >/dev/null 2>&1 &`,
		}
		if path, err := exec.LookPath("tmux"); err == nil {
			ways["tmux"] = path + ` -S "$1.sock" -f /dev/null new-session -d "exec $0 $1"`
		}
		for name, script := range ways {
			for _, tty := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, terminal %v", name, tty), func(t *testing.T) {
					x := s.begin(t, api.BeginRequest{})
					f := files(t, "beat")
					h := helper(t, "beat")
					req := api.LaunchRequest{Argv: []string{"bash", "-c", script + "\nwhile [ ! -s \"$1\" ]; do sleep 0.01; done", run.exe, f[0]}, Env: h.Env,
						Stdio: stdio("", api.StdioSpool, api.StdioStdout)}
					if tty {
						req.Stdio = stdio(api.StdioPTY, api.StdioPTY, api.StdioPTY)
					}
					p := x.launch(req)
					ctx, cancel := context.WithTimeout(t.Context(), patience(time.Minute))
					v, err := s.WaitProcess(ctx, x.ID, p.ID)
					cancel()
					if err != nil || v.Status.State != api.ProcessExited || v.Status.Code != 0 {
						t.Fatalf("%+v (%v)", v.Status, err)
					}
					heart(f[0]).beating(t)
					x.abandon(0)
					stopped(t, heart(f[0]))
				})
			}
		}
	})
}

// A process that signals its parent, or its group, hits nothing but what is its
// own: its parent is the keeper, which goes on.
func TestSignalsToParentAndGroup(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{})
		newCanary(t, s)
		newNeighbour(t, s)
		for _, user := range []string{"root", "nobody"} {
			t.Run(user, func(t *testing.T) {
				x := s.begin(t, api.BeginRequest{})
				f := files(t, "beside")
				x.launch(helper(t, "beat", f[0]))
				for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT, syscall.SIGUSR1, syscall.SIGPIPE} {
					p := x.launch(api.LaunchRequest{Argv: []string{"sh", "-c", fmt.Sprintf("kill -%d $PPID; sleep 3600 & kill -%[1]d 0; sleep 0.2; kill -9 0", sig)}, User: user, Cwd: "/"})
					ctx, cancel := context.WithTimeout(t.Context(), patience(time.Minute))
					v, err := s.WaitProcess(ctx, x.ID, p.ID)
					cancel()
					if err != nil || v.Status.State != api.ProcessSignaled {
						t.Errorf("%s: %+v (%v)", sig, v.Status, err)
					}
				}
				heart(f[0]).beating(t)
				if v := x.look(); v.State != api.StateOpen || len(v.Degraded) > len(x.Degraded) {
					t.Errorf("%s %q", v.State, v.Degraded)
				}
				x.abandon(0)
				stopped(t, heart(f[0]))
			})
		}
	})
}
