package turns

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/client"
)

// held is a script that ends, or is ended, while somebody else goes on holding
// its streams.
type held struct {
	name, script string
	killed       bool // it does not end by itself
	bash         bool // it needs bash
	tty          bool // it needs a terminal
}

// helds is the table: who may hold a stream, and how. HUP is ignored because a
// terminal sends it when its session's leader ends.
func helds() []held {
	return []held{
		{name: "sleep; true", script: "sleep 3600; true", killed: true},
		{name: "background", script: "sleep 3600 & exit 5"},
		{name: "background, waited for", script: "sleep 3600 & wait", killed: true},
		{name: "subshell", script: "(sleep 3600; true) & exit 5"},
		{name: "foreground subshell", script: "(sleep 3600; true); true", killed: true},
		{name: "pipe to a grandchild", script: "(sleep 3600 | cat) & exit 5"},
		{name: "pipeline", script: "sleep 3600 | cat", killed: true},
		{name: "process substitution", script: "exec > >(sleep 3600; cat); exit 5", bash: true},
		{name: "coprocess", script: "coproc sleep 3600; exit 5", bash: true},
		{name: "daemon holds stdout", script: "setsid sleep 3600 </dev/null 2>/dev/null & exit 5"},
		{name: "daemon holds stderr", script: "setsid sleep 3600 </dev/null >/dev/null & exit 5"},
		{name: "daemon holds a copy", script: "setsid sleep 3600 </dev/null 9>&1 >/dev/null 2>&1 & exit 5"},
		{name: "daemon holds the terminal", script: "exec 9<>/dev/tty; setsid sleep 3600 </dev/null >/dev/null 2>&1 & exit 5", tty: true},
		{name: "reads the inherited stdin", script: "exec 3<&0; (read x <&3; sleep 3600) & exit 5"},
		{name: "daemon reads the inherited stdin", script: "exec 3<&0; setsid sh -c 'read x <&3; sleep 3600' & exit 5"},
	}
}

// streamsOf are the ways in which a process may have its streams.
func streamsOf() map[string]api.Stdio {
	return map[string]api.Stdio{
		"kept":              stdio("", api.StdioSpool, api.StdioSpool),
		"merged":            stdio("", api.StdioSpool, api.StdioStdout),
		"terminal":          stdio(api.StdioPTY, api.StdioPTY, api.StdioPTY),
		"written to":        stdio(api.StdioPipe, api.StdioSpool, api.StdioSpool),
		"thrown away":       stdio(api.StdioPipe, "", ""),
		"passed":            {Stdin: api.Stream{Mode: api.StdioPass}, Stdout: api.Stream{Mode: api.StdioPass, FD: 1}, Stderr: api.Stream{Mode: api.StdioPass, FD: 1}},
		"kept and a passed": {Stdin: api.Stream{Mode: api.StdioPass}, Stdout: api.Stream{Mode: api.StdioSpool}, Stderr: api.Stream{Mode: api.StdioPass, FD: 1}},
	}
}

// The end of a process is told at once, whoever holds its streams, in whatever
// shell; what was said is there; the holders are held, and end with the turn.
func TestExitIsNotHeldUpByAnybody(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{})
		newCanary(t, s)
		newNeighbour(t, s)
		for _, shell := range []string{"bash", "dash"} {
			path, err := exec.LookPath(shell)
			if err != nil {
				t.Fatal(err) // both are in every Debian
			}
			for mode, streams := range streamsOf() {
				t.Run(shell+"/"+mode, func(t *testing.T) { holdAll(t, s, path, streams) })
			}
		}
	})
}

// holdAll runs the table with one shell and one kind of streams, in one turn.
func holdAll(t *testing.T, s *service, shell string, streams api.Stdio) {
	x := s.begin(t, api.BeginRequest{})
	p := newPassed(t)
	var ids []string
	var slowest time.Duration
	for _, h := range helds() {
		if h.bash && !strings.HasSuffix(shell, "bash") || h.tty && streams.Stdout.Mode != api.StdioPTY {
			continue
		}
		v, late := h.ends(t, x, shell, streams, p)
		ids, slowest = append(ids, v.ID), max(slowest, late)
	}
	t.Logf("%d scripts; the slowest answer came %v after the end", len(ids), slowest)
	x.abandon(0)
	for _, id := range ids {
		v, err := s.Process(t.Context(), x.ID, id)
		for name, o := range v.Output {
			if !o.EOF {
				t.Errorf("%s of %s has not ended with its last writer: %+v (%v)", name, id, o, err)
			}
		}
	}
	p.ended(t)
}

// ends launches one, sees it end, and looks at what it leaves. It returns how
// long after the end that was told.
func (h held) ends(t *testing.T, x *turn, shell string, streams api.Stdio, pass *passed) (api.Process, time.Duration) {
	t.Helper()
	req := api.LaunchRequest{Argv: []string{shell, "-c", "trap '' HUP; echo said; " + h.script}, Stdio: streams}
	var files []*os.File
	if streams.Stderr.Mode == api.StdioPass {
		files = []*os.File{pass.in[0], pass.out[1]}
	}
	p, err := x.s.Launch(t.Context(), x.ID, req, files...)
	if err != nil {
		t.Fatal(err)
	}
	leaf := x.leaf(p.ID) + "/cgroup.procs"
	if h.killed {
		eventually(t, h.name+" has children", func() bool { return members(leaf) >= 2 })
		x.signal(p.ID, syscall.SIGKILL)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience(time.Minute))
	defer cancel()
	v, err := x.s.WaitProcess(ctx, x.ID, p.ID)
	late := time.Since(p.StartedAt)
	if v.EndedAt != nil {
		late = time.Since(*v.EndedAt)
	}
	if code := 5; err != nil || h.killed && v.Status.Signal != "SIGKILL" || !h.killed && (v.Status.State != api.ProcessExited || v.Status.Code != code) {
		t.Fatalf("%s: %+v (%v)", h.name, v.Status, err)
	}
	if members(leaf) == 0 {
		t.Errorf("%s: nobody is left who could hold anything", h.name)
	}
	if streams.Stdout.Mode == api.StdioSpool || streams.Stdout.Mode == api.StdioPTY {
		x.endsOpen(t, h.name, p.ID)
	}
	return v, late
}

// endsOpen reads what a process has said, with its end, from a stream that
// somebody may hold.
func (x *turn) endsOpen(t *testing.T, name, process string) {
	t.Helper()
	drain := patience(50 * time.Millisecond)
	l, err := x.s.OutputLines(t.Context(), x.ID, process, client.OutputQuery{Follow: true, Drain: &drain})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var text []byte
	for {
		line, err := l.Next()
		if err != nil {
			t.Fatalf("%s: %q, then %v", name, text, err)
		}
		if text = append(text, line.Data...); line.Next != nil {
			if line.Exit == nil || strings.TrimSpace(string(text)) != "said" {
				t.Errorf("%s: %q, %+v", name, text, line)
			}
			return
		}
	}
}

// members counts the processes of a cgroup.
func members(procs string) int {
	b, _ := os.ReadFile(procs)
	return len(strings.Fields(string(b)))
}

// passed are two pipes of a caller's own, one of which it throws away: both
// stay open as long as somebody in the turn has them.
type passed struct {
	in, out [2]*os.File
	eof     chan int64
}

func newPassed(t *testing.T) *passed {
	t.Helper()
	p := &passed{eof: make(chan int64, 1)}
	for _, pair := range []*[2]*os.File{&p.in, &p.out} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		pair[0], pair[1] = r, w
		t.Cleanup(func() { r.Close(); w.Close() })
	}
	go func() {
		n, _ := io.Copy(io.Discard, p.out[0])
		p.eof <- n
	}()
	return p
}

// ended checks that only this process had the output pipe.
func (p *passed) ended(t *testing.T) {
	t.Helper()
	p.out[1].Close()
	select {
	case <-p.eof:
	case <-time.After(patience(time.Minute)):
		t.Error("somebody holds the pipe that was passed after the turn has ended")
	}
}

// Nobody writes to its stdin: a process that reads has the end at once where
// nothing was said, and its deadline otherwise.
func TestStdinThatNobodyWritesTo(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{})
		x := s.begin(t, api.BeginRequest{})
		in := newPassed(t)
		for _, shell := range []string{"bash", "dash"} {
			for _, c := range []struct {
				name   string
				stream api.Stream
				waits  bool
			}{
				{"nothing said", api.Stream{}, false},
				{"no bytes", api.Stream{Mode: api.StdioData}, false},
				{"pipe", api.Stream{Mode: api.StdioPipe}, true},
				{"terminal", api.Stream{Mode: api.StdioPTY}, true},
				{"passed", api.Stream{Mode: api.StdioPass}, true},
			} {
				req := api.LaunchRequest{Argv: []string{shell, "-c", "read x || exit 6; exit 7"}, Stdio: api.Stdio{Stdin: c.stream, Stderr: api.Stream{Mode: api.StdioSpool}}}
				var files []*os.File
				if c.stream.Mode == api.StdioPass {
					files = in.in[:1]
				}
				if c.waits {
					req.DeadlineMS = 300
				}
				p, err := s.Launch(t.Context(), x.ID, req, files...)
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), patience(time.Minute))
				v, err := s.WaitProcess(ctx, x.ID, p.ID)
				cancel()
				by := fmt.Sprintf("%s %d %s", v.Status.State, v.Status.Code, v.Status.EndedBy)
				if want := "exited 6 "; err != nil || !c.waits && by != want || c.waits && v.Status.EndedBy != api.EndedByDeadline {
					t.Errorf("%s, %s: %+v (%v) %s", shell, c.name, v.Status, err, x.keptOutput(p.ID, client.OutputQuery{Stream: "stderr"}))
				}
			}
		}
		in.out[1].Close()
		x.abandon(0)
	})
}
