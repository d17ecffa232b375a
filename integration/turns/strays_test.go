package turns

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"pinfold.dev/api"
)

// stray is a way to outlive one's turn. Launch starts it in a turn and returns
// the files into which its processes beat.
type stray struct {
	name   string
	grace  int64 // of the abandon, in ms
	launch func(t *testing.T, x *turn) []string
	// status is what the receipt is to say of p1; empty: killed.
	status api.ProcessState
	// atLeast is how many processes the receipt is to count, at least.
	atLeast int
}

// strays are those that every service must be able to end.
func strays() []stray {
	return []stray{
		{name: "setsid", atLeast: 2, launch: plain("setsid", "leader", "child")},
		{name: "double fork", status: api.ProcessExited, atLeast: 1, launch: plain("daemon", "daemon")},
		{name: "env -i", status: api.ProcessExited, atLeast: 1, launch: launchBare},
		{name: "TERM-ignorer, leader exits on TERM", grace: 300, status: api.ProcessExited, atLeast: 2,
			launch: plain("termproof", "leader", "ignorer")},
		{name: "TERM-ignorer, no grace", atLeast: 2, launch: plain("termproof", "leader", "ignorer")},
		{name: "main thread exited", atLeast: 1, launch: plain("headless", "threads")},
		{name: "main thread exited, moved in", launch: launchMovedIn},
		{name: "stopped", atLeast: 3, launch: launchStopped},
		{name: "stopped, with grace", grace: 300, atLeast: 3, launch: launchStopped},
		{name: "frozen", atLeast: 2, launch: launchFrozen},
		// Its parent is told of its end only when the tracer lets go: ptrace(2).
		{name: "traced from outside", status: api.ProcessLost, atLeast: 1, launch: launchTraced},
		{name: "nested cgroups", atLeast: 11, launch: launchNested},
		{name: "another user", atLeast: 1, launch: launchAsNobody},
		{name: "set-uid root", atLeast: 2, launch: launchSetuid},
		{name: "nested PID namespace", atLeast: 5, launch: plain("pidns", "outer", "inner")},
	}
}

// plain launches a helper that gets its heartbeat files as words.
func plain(name string, hearts ...string) func(*testing.T, *turn) []string {
	return func(t *testing.T, x *turn) []string {
		f := files(t, append([]string(nil), hearts...)...)
		x.launch(helper(t, name, f...))
		return f
	}
}

func TestStrays(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{})
		for _, c := range strays() {
			t.Run(c.name, func(t *testing.T) { c.end(t, s) })
		}
	})
}

// end launches the stray, abandons its turn and looks whether it, and nothing
// else, is gone.
func (c stray) end(t *testing.T, s *service) api.Receipt {
	newCanary(t, s)
	newNeighbour(t, s)
	for {
		r := c.endOnce(t, s)
		if len(r.Processes) > 0 {
			if c.status == api.ProcessExited && c.grace > 0 && c.grace < 20_000 && r.Processes[0].Status.State == api.ProcessSignaled {
				t.Logf("p1 is %+v: the machine is busy, and %d ms were too short", r.Processes[0].Status, c.grace)
				c.grace *= 4
				continue
			}
			c.checkStatus(t, r.Processes[0])
		}
		if r.Counts.Ended < c.atLeast {
			t.Errorf("the receipt counts %d ended, want at least %d", r.Counts.Ended, c.atLeast)
		}
		return r
	}
}

func (c stray) endOnce(t *testing.T, s *service) api.Receipt {
	x := s.begin(t, api.BeginRequest{Label: c.name})
	var hearts []heart
	for _, f := range c.launch(t, x) {
		hearts = append(hearts, heart(f))
	}
	for _, h := range hearts {
		eventually(t, "a first beat in "+filepath.Base(string(h)), func() bool { return h.size(t) > 0 })
	}
	eventually(t, "as many processes as there are to be", func() bool { return x.look().Alive >= max(c.atLeast, 1) })
	if c.status == api.ProcessExited && c.grace == 0 {
		eventually(t, "the launcher has exited", func() bool { return x.look().Processes[0].Status.State == api.ProcessExited })
	}
	r := x.abandon(c.grace)
	stopped(t, hearts...)
	return r
}

func (c stray) checkStatus(t *testing.T, p api.ReceiptProcess) {
	t.Helper()
	switch {
	case c.status == api.ProcessExited:
		if p.Status.State != api.ProcessExited || p.Status.Code != 0 {
			t.Errorf("p1 is %+v, want exited with 0", p.Status)
		}
	case c.status == api.ProcessLost:
		if p.Status.State != api.ProcessLost || p.Status.Why == "" || p.EndedBy != "unknown" {
			t.Errorf("p1 is %+v, ended by %s, want lost, with the reason", p.Status, p.EndedBy)
		}
	case c.grace > 0: // who gets TERM may end of it, or of the KILL after it
		if p.Status.State != api.ProcessSignaled {
			t.Errorf("p1 is %+v, want ended by a signal", p.Status)
		}
	case p.Status.State != api.ProcessSignaled || p.Status.Signal != "SIGKILL" || p.EndedBy != "kill":
		t.Errorf("p1 is %+v, ended by %s, want killed", p.Status, p.EndedBy)
	}
}

// launchBare hides from whoever looks for a terminal, an environment or a name.
func launchBare(t *testing.T, x *turn) []string {
	f := files(t, "hidden")
	x.launch(api.LaunchRequest{Argv: []string{"sh", "-c",
		`env -i sh -c 'while :; do printf . >>"$0"; sleep 0.01; done' "$0" </dev/null >/dev/null 2>&1 &`, f[0]}})
	return f
}

// launchMovedIn puts a process whose main thread has exited into the turn: it
// is in no cgroup.procs.
func launchMovedIn(t *testing.T, x *turn) []string {
	f := files(t, "threads", "resident")
	x.launch(helper(t, "beat", f[1]))
	h := helper(t, "headless", f[0])
	cmd := exec.Command(run.exe, h.Argv[1:]...)
	cmd.Env = h.Env
	p, err := run.kids.start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	heart(f[0]).beating(t)
	eventually(t, "its main thread has exited", func() bool { return stateOf(p.pid) == 'Z' })
	heart(f[0]).beating(t)
	if err := os.WriteFile(x.leaf("p1")+"/cgroup.procs", []byte(strconv.Itoa(p.pid)), 0); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(x.leaf("p1") + "/cgroup.procs")
	if err != nil || strings.Contains(string(b), strconv.Itoa(p.pid)) {
		t.Logf("this kernel lists a process without a main thread: %q %v", b, err)
	}
	return f
}

func launchStopped(t *testing.T, x *turn) []string {
	f := files(t, "beats", "stopped", "own")
	x.launch(helper(t, "beat", f[2]))
	heart(f[2]).beating(t)
	x.signal("p1", syscall.SIGSTOP)
	x.launch(helper(t, "stopped", f[0], f[1]))
	return f
}

// launchFrozen has one member in a frozen cgroup that somebody made inside.
func launchFrozen(t *testing.T, x *turn) []string {
	f := files(t, "frozen", "free")
	p := x.launch(helper(t, "beat", f[0]))
	x.launch(helper(t, "beat", f[1]))
	heart(f[0]).beating(t)
	ice := x.leaf("p1") + "/ice"
	if err := os.Mkdir(ice, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, w := range [][2]string{{"cgroup.procs", strconv.Itoa(p.PID)}, {"cgroup.freeze", "1"}} {
		if err := os.WriteFile(filepath.Join(ice, w[0]), []byte(w[1]), 0); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "it is frozen", func() bool {
		b, err := os.ReadFile(ice + "/cgroup.events")
		return err == nil && strings.Contains(string(b), "frozen 1")
	})
	return f
}

// launchTraced has a tracer outside that never lets its tracee go on. The
// tracer must live.
func launchTraced(t *testing.T, x *turn) []string {
	f := files(t, "traced", "tracer")
	p := x.launch(helper(t, "beat", f[0]))
	heart(f[0]).beating(t)
	h := helper(t, "tracer", strconv.Itoa(p.PID), f[1])
	cmd := exec.Command(run.exe, h.Argv[1:]...)
	cmd.Env = h.Env
	tr, err := run.kids.start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.kill)
	c := &canary{t: t, name: "the tracer", heart: heart(f[1])}
	c.beating(t)
	t.Cleanup(c.lives)
	eventually(t, "it is stopped by its tracer", func() bool { return stateOf(p.PID) == 't' })
	return f[:1]
}

func launchNested(t *testing.T, x *turn) []string {
	f := files(t, "nested")
	x.launch(helper(t, "nest", x.leaf("p1"), "10", f[0]))
	deepest := x.leaf("p1") + strings.Repeat("/nested", 10)
	eventually(t, "ten cgroups, one in the other, with a member each", func() bool {
		b, err := os.ReadFile(deepest + "/cgroup.procs")
		return err == nil && len(strings.Fields(string(b))) == 2
	})
	return f
}

func launchAsNobody(t *testing.T, x *turn) []string {
	f := files(t, "nobody")
	req := helper(t, "beat", f[0])
	req.User = "nobody"
	p := x.launch(req)
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID))
	if err != nil || !strings.Contains(string(b), "\nUid:\t65534\t65534\t65534\t65534\n") {
		t.Errorf("it does not run as nobody: %v\n%s", err, b)
	}
	return f
}

// launchSetuid has a process of another user whose child is root's, by a
// set-uid program.
func launchSetuid(t *testing.T, x *turn) []string {
	f := files(t, "root", "program", "stderr")
	b, err := os.ReadFile(run.exe)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(f[1], b, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(f[1], 0o755|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	stderr, err := os.Create(f[2])
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	req := helper(t, "suid", f[0], f[1])
	req.User = "nobody"
	req.Stdio.Stderr = api.Stream{Mode: api.StdioPass}
	if _, err := x.s.Launch(t.Context(), x.ID, req, stderr); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the set-uid program beats", func() bool {
		if b, _ := os.ReadFile(f[2]); len(b) > 0 {
			t.Fatalf("the set-uid program: %s", b)
		}
		return heart(f[0]).size(t) > 0
	})
	return f[:1]
}
