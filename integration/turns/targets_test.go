package turns

import (
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"pinfold.dev/api"
	"pinfold.dev/client"
)

// playServer: SOCKET FILE. It leaves a daemon behind, in a session of its own,
// that answers on a unix socket, as tmux and build tools do.
func playServer(words []string) int {
	if len(words) == 2 {
		selfAs("server", &syscall.SysProcAttr{Setsid: true}, append(words, "daemon")...)
		return 0
	}
	l := must(net.Listen("unix", words[0]))
	go pulse(words[1]).forever()
	for {
		c := must(l.Accept())
		go func() {
			for b := make([]byte, 1); ; {
				if _, err := c.Read(b); err != nil {
					return
				}
				if _, err := c.Write(b); err != nil {
					return
				}
			}
		}()
	}
}

// playVisitor: SOCKET FILE [WORD]. It beats for as long as such a server answers it,
// and ends when that does not; with a word not when it is asked to.
func playVisitor(words []string) int {
	if len(words) > 2 {
		signal.Ignore(syscall.SIGTERM)
	}
	var c net.Conn
	var err error
	for range 30_000 { // a minute
		if c, err = net.Dial("unix", words[0]); err == nil {
			break
		}
		syscall.Nanosleep(&syscall.Timespec{Nsec: 2e6}, nil)
	}
	check(err)
	j := pulse(words[1])
	for b := []byte("x"); ; {
		_ = must(c.Write(b))
		_ = must(c.Read(b))
		_ = must(syscall.Write(j.fd, j.mark[:]))
		syscall.Nanosleep(&j.pause, nil)
	}
}

// beats are hearts that all beat.
func beats(t *testing.T, hearts ...heart) {
	t.Helper()
	for _, h := range hearts {
		h.beating(t)
	}
}

func hearts(files []string) (out []heart) {
	for _, f := range files {
		out = append(out, heart(f))
	}
	return out
}

// One launch of several is ended, with its descendants; or its descendants, and
// not itself. A rehearsal names the same processes, and touches none.
func TestEndOneProcess(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{})
		beside := newCanary(t, s)
		x := s.begin(t, api.BeginRequest{})
		h := hearts(files(t, "leader", "child", "spared", "its child", "other", "other child"))
		p := x.launch(helper(t, "setsid", string(h[0]), string(h[1])))
		q := x.launch(helper(t, "setsid", string(h[2]), string(h[3])))
		o := x.launch(helper(t, "setsid", string(h[4]), string(h[5])))
		beats(t, h...)
		plan, err := s.EndProcess(t.Context(), x.ID, p.ID, api.EndProcessRequest{DryRun: true})
		if err != nil || len(plan.Targets) != 2 || !slices.ContainsFunc(plan.Targets, func(g api.Target) bool { return g.PID == p.PID && g.Would == "signalled" }) {
			t.Errorf("a rehearsal: %+v (%v)", plan, err)
		}
		beats(t, h...)
		a, err := s.EndProcess(t.Context(), x.ID, p.ID, api.EndProcessRequest{GraceMS: new(int64(0))})
		if err != nil || !a.Complete || a.Ended != 2 || a.Status.State != api.ProcessSignaled {
			t.Errorf("%+v (%v)", a, err)
		}
		stopped(t, h[:2]...)
		if plan, err = s.EndProcess(t.Context(), x.ID, q.ID, api.EndProcessRequest{DryRun: true, DescendantsOnly: true}); err != nil || len(plan.Targets) != 2 {
			t.Errorf("a rehearsal: %+v (%v)", plan, err)
		}
		for _, g := range plan.Targets {
			if (g.Would == "kept") != (g.PID == q.PID) {
				t.Errorf("a rehearsal of what spares %d: %+v", q.PID, g)
			}
		}
		if a, err = s.EndProcess(t.Context(), x.ID, q.ID, api.EndProcessRequest{DescendantsOnly: true, GraceMS: new(int64(0))}); err != nil || !a.Complete || a.Status.State != api.ProcessRunning {
			t.Errorf("%+v (%v)", a, err)
		}
		stopped(t, h[3])
		beats(t, h[2], h[4], h[5])
		if a, err = s.EndProcess(t.Context(), x.ID, o.ID, api.EndProcessRequest{Epoch: x.Epoch + 1}); err == nil {
			t.Errorf("of another epoch: %+v", a)
		}
		beats(t, h[2], h[4], h[5])
		beside.lives()
		x.abandon(0)
	})
}

// An interactive shell in a terminal survives the timeout of what it runs, with
// its directory and its environment, and takes the next command.
func TestShellSurvivesItsCommand(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{})
		x := s.begin(t, api.BeginRequest{})
		dir := files(t, "work")[0]
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		p := x.launch(api.LaunchRequest{Argv: []string{"sh", "-i"}, Env: []string{"PATH=" + os.Getenv("PATH"), "PS1=ready> "},
			Stdio: stdio(api.StdioPTY, api.StdioPTY, api.StdioPTY)})
		says := func(text string) {
			t.Helper()
			eventually(t, text, func() bool { return strings.Contains(x.keptOutput(p.ID, client.OutputQuery{}), text) })
		}
		says("ready> ")
		x.types(p.ID, "cd "+dir+"; export KEPT=yes\n")
		for _, c := range []struct {
			command string
			alive   int // with the shell, once all of it runs
		}{{"sleep 3600", 2}, {"sh -c 'trap \"\" TERM HUP INT; while :; do sleep 1; done'", 2}, {"sleep 3600 | sleep 3601", 3}} {
			command := c.command
			x.types(p.ID, command+"\n")
			eventually(t, command, func() bool { return x.look().Alive >= c.alive })
			grace := int64(50)
			a, err := s.EndProcess(t.Context(), x.ID, p.ID, api.EndProcessRequest{DescendantsOnly: true, GraceMS: &grace})
			if err != nil || !a.Complete || a.Ended < 1 || a.Status.State != api.ProcessRunning {
				t.Errorf("%s: %+v (%v)", command, a, err)
			}
			if v := x.look(); v.Alive != 1 {
				t.Errorf("after the end of %s, %d are alive", command, v.Alive)
			}
		}
		x.types(p.ID, "echo \"<$PWD $KEPT>\"\n")
		says("<" + dir + " yes>")
		if now := x.look().Processes[0]; now.PID != p.PID || now.Status.State != api.ProcessRunning {
			t.Errorf("%+v", now)
		}
		x.abandon(0)
	})
}

// A server that a turn has founded, and that another turn uses, is shown before
// an ending. Made a job, with consent, it outlives its founder's abandonment, and
// so does what uses it.
func TestServerOutlivesItsFounder(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{})
		defer s.stopJobs()
		founder, other := s.begin(t, api.BeginRequest{Session: "f"}), s.begin(t, api.BeginRequest{Session: "o"})
		socket := files(t, "sock")[0]
		h := hearts(files(t, "server", "founder's", "visitor"))
		p := founder.launch(helper(t, "server", socket, string(h[0])))
		founder.launch(helper(t, "beat", string(h[1])))
		q := other.launch(helper(t, "visitor", socket, string(h[2])))
		beats(t, h...)
		founder.ended(p.ID) // the launched process was only to start it
		plan, err := s.Plan(t.Context(), founder.ID, api.AbandonRequest{})
		why, werr := s.Why(t.Context(), founder.ID)
		if err != nil || werr != nil || len(plan.Servers) != 1 || len(why.Servers) != 1 {
			t.Fatalf("plan %+v (%v), why %+v (%v)", plan, err, why.Servers, werr)
		}
		v := plan.Servers[0]
		if v.Socket != "unix:"+socket || v.Process != p.ID || len(v.Clients) != 1 || v.Clients[0].PID != q.PID {
			t.Errorf("the server: %+v", v)
		} else if c := v.Clients[0]; c.Comm == "" || c.PPID == 0 || c.RSS == 0 {
			t.Errorf("its client is told without what is known of it: %+v", c)
		}
		if n := len(plan.Targets); n != 2 {
			t.Errorf("%d targets: %+v", n, plan.Targets)
		}
		beats(t, h...)
		j, err := s.Promote(t.Context(), founder.ID, v.Process, api.PromoteRequest{PID: v.PID, Name: "server"})
		if err != nil || j.Origin != api.JobEjected || j.PID != v.PID || j.Alive != 1 {
			t.Fatalf("%+v (%v)", j, err)
		}
		r := founder.abandonKeeping(t)
		if len(r.Jobs) != 1 || r.Jobs[0].ID != j.ID {
			t.Errorf("the receipt's jobs: %+v", r.Jobs)
		}
		stopped(t, h[1])
		beats(t, h[0], h[2])
		s.kill()
		s.restart()
		beats(t, h[0], h[2])
		if j, err = s.Job(t.Context(), j.ID); err != nil || j.State != api.JobRunning {
			t.Errorf("after a restart: %+v (%v)", j, err)
		}
		if j, err = s.StopJob(t.Context(), j.ID, api.StopJobRequest{}); err != nil || j.State != api.JobEnded {
			t.Errorf("%+v (%v)", j, err)
		}
		if q := other.ended(q.ID); q.Status.State != api.ProcessExited { // it saw the server go
			t.Errorf("%+v", q.Status)
		}
		other.abandon(0)
	})
}

// abandonKeeping ends a turn of which a job lives on.
func (x *turn) abandonKeeping(t *testing.T) api.Receipt {
	t.Helper()
	r, err := x.s.Abandon(t.Context(), x.ID, api.AbandonRequest{GraceMS: new(int64(0))})
	if err != nil || !r.Complete || r.State != api.StateAbandoned {
		t.Fatalf("%+v (%v)", r, err)
	}
	if left := populated(filepath.Join(x.Cgroup, "work")); len(left) > 0 {
		t.Errorf("of the turn: %q", left)
	}
	return r
}
