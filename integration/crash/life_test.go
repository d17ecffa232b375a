package crash

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/client"
)

// payload is one launch of the test's turn.
type payload struct {
	key    string
	starts string // a file: one line for each time that it started
	req    api.LaunchRequest
	code   int    // that it exits with; -1: it runs until it is ended
	output string // that it writes; "" where nothing is kept
	id     string // once it is known
	pid    int    // with it
	cmd    *exec.Cmd
	joined chan struct{} // closed when cmd has ended
}

func (p *payload) reap() {
	if p.cmd != nil {
		_ = p.cmd.Process.Kill()
		<-p.joined
	}
}

// script is a shell's request. All that runs bears the life's token.
func (l *life) script(key string, code int, text string) *payload {
	p := &payload{key: key, code: code, starts: filepath.Join(l.dir, key)}
	p.req = api.LaunchRequest{IdempotencyKey: key, Cwd: "/", Labels: map[string]string{"key": key},
		Env:  []string{"PATH=" + os.Getenv("PATH"), l.token},
		Argv: []string{"/bin/sh", "-c", "echo start >>" + p.starts + "; " + text}}
	return p
}

// numbers is what the talker writes.
func numbers() string {
	var b strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&b, "line %d\n", i)
	}
	return b.String()
}

// payloads are what is launched, in order.
func (l *life) payloads() []*payload {
	spool := api.Stream{Mode: api.StdioSpool}
	talker := l.script("talker", 5, `i=0; while [ $i -lt 2000 ]; do echo "line $i"; i=$((i+1)); done; exit 5`)
	talker.req.Stdio.Stdout, talker.output = spool, numbers()
	tty := l.script("terminal", 6, `stty -echo -onlcr; echo ready; read x; echo "got $x"; exit 6`)
	pty := api.Stream{Mode: api.StdioPTY}
	tty.req.Stdio, tty.output = api.Stdio{Stdin: pty, Stdout: pty, Stderr: pty}, "ready\ngot go\n"
	pipe := l.script("pipe", 9, `read x; echo "got $x"; exit 9`)
	pipe.req.Stdio, pipe.output = api.Stdio{Stdin: api.Stream{Mode: api.StdioPipe}, Stdout: spool}, "got go\n"
	survivor := l.script("survivor", -1, `setsid sleep 100000 & exec sleep 100000`)
	escapee := l.script("escapee", -1, `echo $$ >`+l.out+`/cgroup.procs; exec sleep 100000`)
	all := []*payload{talker, tty, pipe, survivor, escapee}
	if l.plan.lasting {
		all = []*payload{survivor, tty, escapee, talker, pipe}
	}
	if l.plan.bare != "" {
		all = append(all, l.orphan())
	}
	if l.plan.beside {
		p, at := l.script("beside", -1, ""), l.turn.Cgroup+"/beside"
		p.req.Argv[2] = `mkdir ` + at + `; sh -c 'echo $$ >` + at + `/cgroup.procs; echo start >>` + p.starts + `; exec sleep 100000' & exec sleep 100000`
		all = append(all, p)
	}
	return all
}

// call does what a client does: when the service goes, it looks again, and asks
// again. A request that its client gave up is asked again, too.
func (l *life) call(what string, f func(ctx context.Context) error) error {
	l.t.Helper()
	var err error
	for n, end := 0, time.Now().Add(time.Minute); n < 5 || time.Now().Before(end); n++ {
		ctx, cancel := context.WithTimeout(l.t.Context(), time.Minute)
		l.calls.Lock()
		l.calls.cancel = cancel
		l.calls.Unlock()
		err = f(ctx)
		cancel()
		switch {
		case errors.Is(err, api.ErrUnavailable):
			l.revive()
		case errors.Is(err, context.Canceled) && l.plan.mode == gone:
		default:
			return err
		}
	}
	l.t.Fatalf("%s: %v, whatever is done (%s)", what, err, l.describe())
	return err
}

// must is call where no error is right.
func (l *life) must(what string, f func(ctx context.Context) error) {
	l.t.Helper()
	if err := l.call(what, f); err != nil {
		l.t.Fatalf("%s: %v (%s)", what, err, l.describe())
	}
}

// leave has the client go in the middle of its call, and one that sends half a
// request, with a descriptor; others are answered meanwhile.
func (l *life) leave() {
	half, err := net.Dial("unix", l.dir+"/sock")
	if err == nil {
		head := fmt.Sprintf("POST /v1/turns/%s/processes HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{", l.neighbour.ID)
		_, _, err = half.(*net.UnixConn).WriteMsgUnix([]byte(head), syscall.UnixRights(0), nil)
	}
	if err != nil {
		l.t.Errorf("send half a request: %v", err)
	}
	l.calls.Lock()
	l.calls.cancel()
	l.calls.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := l.Turn(ctx, l.neighbour.ID); err != nil {
		l.t.Errorf("while a request is held at the point, another: %v", err)
	}
	if half != nil {
		half.Close()
	}
}

// begin begins a turn, unless it turns out to be there. One whose keeper died
// before it was told of is of no use.
func (l *life) begin(label string) (v api.Turn) {
	l.t.Helper()
	l.must("begin the turn "+label, func(ctx context.Context) error {
		l.begunAfter = l.reached()
		known, err := l.labelled(ctx, label)
		if err != nil {
			return err
		}
		if len(known) > 1 {
			l.t.Errorf("two turns of one begin: %v", known)
		}
		for _, v = range known {
			if len(v.Degraded) == len(l.neighbour.Degraded) {
				return nil
			}
			if _, err := l.Abandon(ctx, v.ID, api.AbandonRequest{}); err != nil {
				return err
			}
		}
		v, err = l.Begin(ctx, api.BeginRequest{Label: label})
		return err
	})
	return v
}

// labelled are the live turns of that label.
func (l *life) labelled(ctx context.Context, label string) (out []api.Turn, err error) {
	list, err := l.Turns(ctx, false, "")
	for _, v := range list.Turns {
		if v.Label == label {
			out = append(out, v)
		}
	}
	return out, err
}

// launch launches it, once, whatever happens; it tells whether it runs, or ran.
func (l *life) launch(p *payload) bool {
	l.t.Helper()
	l.procs[p.key], l.order = p, append(l.order, p.key)
	err := l.call("launch "+p.key, func(ctx context.Context) error {
		v, err := l.Launch(ctx, l.turn.ID, p.req, os.Stdin)
		if err == nil {
			p.id, p.pid = v.ID, v.PID
		}
		return err
	})
	if l.lostWithKeeper(err) {
		return false
	}
	if err != nil {
		l.t.Fatalf("launch %s: %v (%s)", p.key, err, l.describe())
	}
	return true
}

// lostWithKeeper tells that something cannot be had of a turn since its keeper is
// dead. A turn of which nothing can be found without one is over.
func (l *life) lostWithKeeper(err error) bool {
	return l.keeperLost() && (errors.Is(err, api.ErrKeeperLost) || l.plan.bare != "" && errors.Is(err, api.ErrTurnOver))
}

// exited waits for its end.
func (l *life) exited(p *payload) {
	l.t.Helper()
	l.must("wait for "+p.key, func(ctx context.Context) error {
		v, err := l.WaitProcess(ctx, l.turn.ID, p.id)
		if err == nil {
			l.statusIs(p, v.Status)
		}
		return err
	})
}

// say writes a line to a process's stdin, a terminal's once its echo is off. One
// that has taken it already may be gone.
func (l *life) say(p *payload) {
	l.t.Helper()
	if p.req.Stdio.Stdin.Mode == api.StdioPTY {
		eventually(l.t, "the terminal is ready", func() bool { return l.keeperLost() || bytes.Contains(l.outputOf(p), []byte("ready")) })
	}
	err := l.call("write to "+p.key, func(ctx context.Context) error {
		_, err := l.WriteStdin(ctx, l.turn.ID, p.id, bytes.NewReader([]byte("go\n")), false)
		return err
	})
	again := l.reached()
	switch {
	case err == nil:
	case errors.Is(err, api.ErrStdinClosed) && again:
	case l.lostWithKeeper(err):
	default:
		l.t.Fatalf("write to %s: %v (%s)", p.key, err, l.describe())
	}
}

// refused launches what cannot be executed.
func (l *life) refused() {
	err := l.call("launch nothing", func(ctx context.Context) error {
		_, err := l.Launch(ctx, l.turn.ID, api.LaunchRequest{Argv: []string{"/nonexistent"}, Cwd: "/"})
		return err
	})
	if !errors.Is(err, api.ErrExecFailed) && !l.lostWithKeeper(err) {
		l.t.Fatalf("launch nothing: %v (%s)", err, l.describe())
	}
}

// join has a child of the test's own join the turn; when the service dies, it
// ends, and another one does.
func (l *life) join() {
	p := l.script("joiner", -1, "")
	l.procs[p.key], l.order = p, append(l.order, p.key)
	for range 4 {
		p.reap()
		cmd := exec.Command(run.bin+"/pinfold", "--socket", l.dir+"/sock", "run", "--in-place", "--turn", l.turn.ID, "--",
			"/bin/sh", "-c", "echo start >>"+p.starts+"; exec env "+l.token+" sleep 100000")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		before := l.startsOf(p)
		if err := cmd.Start(); err != nil {
			l.t.Fatal(err)
		}
		p.cmd, p.joined = cmd, make(chan struct{})
		go func() { _ = cmd.Wait(); close(p.joined) }()
		l.calls.Lock()
		l.calls.cancel = func() { _ = cmd.Process.Kill() }
		l.calls.Unlock()
		for l.startsOf(p) == before {
			select {
			case <-p.joined:
			case <-time.After(2 * time.Millisecond):
				continue
			}
			break
		}
		if l.startsOf(p) > before {
			return
		}
		if strings.Contains(stderr.String(), "keeper") && l.keeperLost() {
			return // nothing joins a turn without one
		}
		if !l.revive() && l.plan.mode != gone {
			l.t.Fatalf("join: %s (%s)", stderr.String(), l.describe())
		}
	}
	l.t.Fatalf("join: in vain (%s)", l.describe())
}

// outputOf is what was kept of its output.
func (l *life) outputOf(p *payload) (got []byte) {
	l.t.Helper()
	err := l.call("read the output of "+p.key, func(ctx context.Context) error {
		o, err := l.Output(ctx, l.turn.ID, p.id, client.OutputQuery{})
		if err != nil {
			return err
		}
		defer o.Close()
		got, err = io.ReadAll(o)
		return err
	})
	if err != nil {
		l.t.Errorf("read the output of %s: %v (%s)", p.key, err, l.describe())
	}
	return got
}

// read checks what was kept of its output.
func (l *life) read(p *payload) {
	l.t.Helper()
	if l.keeperLost() && l.startsOf(p) == 0 {
		return // it never ran
	}
	got := l.outputOf(p)
	whole := string(got) == p.output
	if l.keeperLost() && strings.HasPrefix(p.output, string(got)) {
		whole = true // it was lost in the pipe
	}
	if !whole {
		l.t.Errorf("the output of %s is %q, want %q (%s)", p.key, cut(string(got)), cut(p.output), l.describe())
	}
}

func cut(s string) string {
	if len(s) > 200 {
		return fmt.Sprintf("%s… (%d bytes)", s[:200], len(s))
	}
	return s
}

// end ends the turn as the plan says, and returns its receipt.
func (l *life) end() (r api.Receipt) {
	l.t.Helper()
	if l.plan.finish {
		l.must("finish", func(ctx context.Context) (err error) {
			r, err = l.Finish(ctx, l.turn.ID, api.FinishRequest{Leftovers: api.LeftoversKeep})
			return err
		})
		if len(l.procs) > 0 && r.State == api.StateFinished {
			l.recorded()
		}
	}
	l.must("abandon", func(ctx context.Context) (err error) {
		r, err = l.Abandon(ctx, l.turn.ID, api.AbandonRequest{Reason: api.ReasonStop, GraceMS: new(l.plan.grace), Leftovers: true})
		return err
	})
	if l.job.ID != "" {
		l.endJob()
	}
	return r
}

// promote makes a job of the survivor, with the child in a session of its own.
func (l *life) promote() {
	l.t.Helper()
	l.must("promote", func(ctx context.Context) (err error) {
		l.job, err = l.Promote(ctx, l.turn.ID, l.procs["survivor"].id, api.PromoteRequest{Name: "kept"})
		return err
	})
}

// endJob checks that the job, and nothing else, has outlived its turn, and ends
// it.
func (l *life) endJob() {
	l.t.Helper()
	l.recorded()
	eventually(l.t, "the end of who was on his way out", func() bool { return len(l.bearers()) <= 2 })
	if n := len(l.bearers()); n != 2 {
		l.t.Errorf("%d processes outlive the turn, the job has two: %v (%s)", n, l.bearers(), l.describe())
	}
	l.must("stop the job", func(ctx context.Context) error {
		j, err := l.StopJob(ctx, l.job.ID, api.StopJobRequest{GraceMS: new(int64(0))})
		if err == nil && j.State != api.JobEnded {
			l.t.Errorf("the job that was stopped is %s (%s)", j.State, l.describe())
		}
		return err
	})
}
