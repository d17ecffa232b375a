package turns

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/client"
)

// playJoiner: SOCKET TURN FILE WORD... It joins the turn, says what became of it
// in FILE, and executes the words.
func playJoiner(words []string) int {
	c := &client.Client{Socket: words[0]}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	p, err := c.Join(ctx, words[1], api.JoinRequest{Argv: words[3:], Labels: map[string]string{"by": "joiner"}})
	text := p.ID
	if err != nil {
		text = "error: " + err.Error()
	}
	check(os.WriteFile(words[2]+".new", []byte(text), 0o666))
	check(os.Rename(words[2]+".new", words[2]))
	if err != nil {
		return 5
	}
	exe := must(exec.LookPath(words[3]))
	check(syscall.Exec(exe, words[3:], []string{"PATH=" + os.Getenv("PATH")}))
	return 4 // not reached
}

// joiner starts a process of ours that joins the turn and then executes words.
// It returns the process's id there.
func (x *turn) joiner(cred *syscall.Credential, words ...string) (*child, string) {
	x.t.Helper()
	f := files(x.t, "joined")
	h := helper(x.t, "joiner", append([]string{x.s.dir + "/sock", x.ID, f[0]}, words...)...)
	cmd := exec.Command(run.exe, h.Argv[1:]...)
	cmd.Env, cmd.Dir = h.Env, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Credential: cred}
	c, err := run.kids.start(cmd)
	if err != nil {
		x.t.Fatal(err)
	}
	x.t.Cleanup(func() {
		select {
		case <-c.gone:
		default:
			c.kill()
		}
	})
	id := ""
	eventually(x.t, "the joiner's answer", func() bool {
		b, err := os.ReadFile(f[0])
		id = string(b)
		return err == nil
	})
	return c, id
}

// cgroupOf is the 0:: line of a process.
func cgroupOf(t *testing.T, pid int) string {
	t.Helper()
	f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if line, ok := strings.CutPrefix(s.Text(), "0::"); ok {
			return line
		}
	}
	return ""
}

// A process that joins stays its parent's child, is held in a leaf of its own,
// and ends with the turn; what it forks does, too.
func TestJoin(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{})
		x := s.begin(t, api.BeginRequest{})
		f := files(t, "child")
		c, id := x.joiner(nil, "sh", "-c", "sleep 3600 & echo $! >"+f[0]+"; wait")
		p, err := s.Process(t.Context(), x.ID, id)
		if err != nil || !p.InPlace || p.PID != c.pid || p.Placement != "join" || p.Labels["by"] != "joiner" || p.Status.State != api.ProcessRunning {
			t.Fatalf("%s: %+v (%v)", id, p, err)
		}
		if in := cgroupOf(t, c.pid); !strings.HasSuffix(in, "/work/"+id) {
			t.Errorf("it is in %s", in)
		}
		if v := x.look(); v.Alive < 1 || len(v.Processes) != 1 {
			t.Errorf("%+v", v)
		}
		if a, err := s.Signal(t.Context(), x.ID, id, api.SignalRequest{Signal: "URG"}); err != nil || a.Verdict != api.VerdictOwned {
			t.Errorf("%+v (%v)", a, err)
		}
		eventually(t, "its child", func() bool { b, err := os.ReadFile(f[0]); return err == nil && len(b) > 1 })
		r := x.abandon(0)
		if len(r.Processes) != 1 || r.Processes[0].EndedBy != "kill" || r.Processes[0].Status.SignalNumber != 9 || r.Counts.Ended < 2 {
			t.Errorf("%+v %+v", r.Processes, r.Counts)
		}
		<-c.gone // its parent, we, got the status
		if ws := c.cmd.ProcessState.Sys().(syscall.WaitStatus); !ws.Signaled() || ws.Signal() != syscall.SIGKILL {
			t.Errorf("%v", c.cmd.ProcessState)
		}
	})
}

// The status of one that joined is told, whether its parent reaps it at once or
// never.
func TestStatusOfJoined(t *testing.T) {
	s := serve(t, grades(t)[0], options{})
	x := s.begin(t, api.BeginRequest{})
	for script, want := range map[string]api.Status{
		"exit 7":        {State: api.ProcessExited, Code: 7},
		"exit 0":        {State: api.ProcessExited},
		"kill -TERM $$": {State: api.ProcessSignaled, Signal: "SIGTERM", SignalNumber: 15},
	} {
		_, id := x.joiner(nil, "sh", "-c", script)
		ctx, cancel := context.WithTimeout(t.Context(), patience(time.Minute))
		p, err := s.WaitProcess(ctx, x.ID, id)
		cancel()
		if err != nil || p.Status != want {
			t.Errorf("%s: %+v (%v)", script, p.Status, err)
		}
	}
	// A shell that never waits is the parent of one that joins.
	f := files(t, "zombie")
	h := helper(t, "joiner", s.dir+"/sock", x.ID, f[0], "sh", "-c", "exit 3")
	cmd := exec.Command("sh", "-c", fmt.Sprintf("%s %s & exec sleep 3600", run.exe, strings.Join(h.Argv[1:len(h.Argv)-1], " ")+" 'exit 3'"))
	cmd.Env = h.Env
	c, err := run.kids.start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	defer c.kill()
	eventually(t, "it has joined", func() bool { _, err := os.Stat(f[0]); return err == nil })
	b, err := os.ReadFile(f[0])
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience(time.Minute))
	defer cancel()
	if p, err := s.WaitProcess(ctx, x.ID, string(b)); err != nil || p.Status.Code != 3 || p.Status.State != api.ProcessExited {
		t.Errorf("unreaped: %s %+v (%v)", b, p.Status, err)
	}
	x.abandon(0)
}

// One that joined is found again after the service was killed, and its end is
// told.
func TestJoinedOutlivesTheService(t *testing.T) {
	s := serve(t, grades(t)[0], options{})
	x := s.begin(t, api.BeginRequest{})
	f := files(t, "go")
	_, id := x.joiner(nil, "sh", "-c", "while [ ! -e "+f[0]+" ]; do sleep 0.01; done; exit 9")
	_, lost := x.joiner(nil, "sleep", "3600")
	s.kill()
	v := s.lastPID(t, x, lost)
	if err := syscall.Kill(v, syscall.SIGKILL); err != nil { // it is our child
		t.Fatal(err)
	}
	eventually(t, "it is gone", func() bool { return syscall.Kill(v, 0) != nil })
	s.restart()
	if p, err := s.Process(t.Context(), x.ID, id); err != nil || p.Status.State != api.ProcessRunning || !p.InPlace {
		t.Fatalf("%+v (%v)", p, err)
	}
	if p, err := s.Process(t.Context(), x.ID, lost); err != nil || p.Status.State != api.ProcessLost {
		t.Errorf("ended meanwhile: %+v (%v)", p, err)
	}
	if err := os.WriteFile(f[0], nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience(time.Minute))
	defer cancel()
	if p, err := s.WaitProcess(ctx, x.ID, id); err != nil || p.Status.Code != 9 {
		t.Errorf("%+v (%v)", p, err)
	}
	x.launch(api.LaunchRequest{Argv: []string{"sleep", "3600"}}) // ids and leaves do not meet
	_, third := x.joiner(nil, "sleep", "3600")
	if third == id || third == lost || strings.HasPrefix(third, "error") {
		t.Errorf("%s after %s and %s", third, id, lost)
	}
	x.abandon(0)
}

// lastPID is the pid of a process, from its record: there is no service.
func (s *service) lastPID(t *testing.T, x *turn, process string) int {
	t.Helper()
	b, err := os.ReadFile(x.leaf(process) + "/cgroup.procs")
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatalf("%q: %v", b, err)
	}
	return pid
}

// Only the caller itself is moved, and not from one turn into another.
func TestWhoMayJoin(t *testing.T) {
	s := serve(t, grades(t)[0], options{})
	x, y := s.begin(t, api.BeginRequest{}), s.begin(t, api.BeginRequest{})
	stranger := &syscall.Credential{Uid: 54321, Gid: 54321}
	if _, text := x.joiner(stranger, "sleep", "3600"); !strings.Contains(text, "no turn") {
		t.Errorf("another user's: %s", text)
	}
	f := files(t, "inside", "other")
	h := helper(t, "joiner", s.dir+"/sock", y.ID, f[1], "sleep", "3600")
	p := x.launch(h)
	eventually(t, "its answer", func() bool { _, err := os.Stat(f[1]); return err == nil })
	if b, err := os.ReadFile(f[1]); err != nil || !strings.Contains(string(b), "is inside turn "+x.ID) {
		t.Errorf("from another turn: %s (%v)", b, err)
	}
	h = helper(t, "joiner", s.dir+"/sock", x.ID, f[0], "sleep", "3600")
	p = x.launch(h)
	eventually(t, "its answer", func() bool { _, err := os.Stat(f[0]); return err == nil })
	if b, err := os.ReadFile(f[0]); err != nil || !strings.Contains(string(b), "is "+p.ID+" of turn") {
		t.Errorf("what was launched in it: %s (%v)", b, err)
	}
	x.abandon(0)
	y.abandon(0)
	if _, text := x.joiner(nil, "sleep", "3600"); !strings.Contains(text, "nothing can be launched in it") {
		t.Errorf("into one that is over: %s", text)
	}
}
