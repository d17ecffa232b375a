package turns

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/pidfd"
)

// outsider starts a helper outside every turn, as a child of this process.
func outsider(t *testing.T, cred *syscall.Credential, name string, words ...string) *child {
	t.Helper()
	h := helper(t, name, words...)
	return outsiderCmd(t, cred, h.Env, h.Argv...)
}

func outsiderCmd(t *testing.T, cred *syscall.Credential, env []string, argv ...string) *child {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.Dir = env, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Credential: cred}
	c, err := run.kids.start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		select {
		case <-c.gone:
		default:
			c.kill()
		}
	})
	return c
}

// place makes a cgroup beside the turns' and moves processes there.
func place(t *testing.T, name string, pids ...int) string {
	t.Helper()
	dir := filepath.Join(run.cgroup, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeTree(dir) })
	for _, pid := range pids {
		if err := os.WriteFile(dir+"/cgroup.procs", []byte(strconv.Itoa(pid)), 0); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// named is a process as a caller sees it, with its pidfd.
func named(t *testing.T, pid int) (api.Identity, *os.File) {
	t.Helper()
	h, err := pidfd.Open(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	id, err := h.Identity()
	if err != nil {
		t.Fatal(err)
	}
	fd, err := h.Dup()
	if err != nil {
		t.Fatal(err)
	}
	return id, os.NewFile(uintptr(fd), "pidfd")
}

// tryAdopt adopts by pidfd.
func (x *turn) tryAdopt(pid int, req api.AdoptRequest) (api.Process, error) {
	x.t.Helper()
	id, f := named(x.t, pid)
	defer f.Close()
	req.Process = id
	return x.s.Adopt(x.t.Context(), x.ID, req, f)
}

func (x *turn) adopt(pid int, req api.AdoptRequest) api.Process {
	x.t.Helper()
	p, err := x.tryAdopt(pid, req)
	if err != nil {
		x.t.Fatalf("adopt %d: %v", pid, err)
	}
	return p
}

// wantNotAdopted checks why a process was not adopted, and that it is where it was.
func wantNotAdopted(t *testing.T, what string, err error, want api.AdoptRefusal) {
	t.Helper()
	e := wantCode(t, err, api.CodeAdoptRefused)
	if got := api.AdoptRefusal(e.Details["reason"]); got != want || e.Message == "" {
		t.Errorf("%s: refused as %q, want %q: %v", what, got, want, err)
	}
}

// childOf is the first child of a process, once it has one.
func childOf(t *testing.T, pid int) int {
	t.Helper()
	kid := 0
	eventually(t, "a child of "+strconv.Itoa(pid), func() bool {
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
		for _, f := range files {
			b, _ := os.ReadFile(f)
			if w := strings.Fields(string(b)); len(w) > 0 {
				kid, _ = strconv.Atoi(w[0])
			}
		}
		return kid > 0
	})
	return kid
}

// An adopted process stays its parent's child, is held in a leaf of its own, and
// ends with the turn, as does what it forks from then on. What it had forked before
// lives, unless it came along.
func TestAdopt(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		needCgroups(t, g)
		s := serve(t, g, options{})
		newCanary(t, s)
		x := s.begin(t, api.BeginRequest{})
		f := files(t, "alone", "before", "with", "along", "inside")
		alone, with := outsider(t, nil, "setsid", f[0], f[1]), outsider(t, nil, "setsid", f[2], f[3])
		for _, h := range f[:4] {
			heart(h).beating(t)
		}
		before := childOf(t, alone.pid)
		p := x.adopt(alone.pid, api.AdoptRequest{Labels: map[string]string{"by": "test"}})
		if p.PID != alone.pid || p.Adopted == nil || p.Adopted.Moved != 1 || p.Adopted.Stdio != api.StdioTheirs || len(p.Adopted.Evidence) == 0 ||
			p.Placement != "adopt" || p.Grade != g || p.InPlace || p.Labels["by"] != "test" || p.Status.State != api.ProcessRunning || len(p.Argv) == 0 {
			t.Errorf("%+v %+v", p, p.Adopted)
		}
		if in := cgroupOf(t, alone.pid); !strings.HasSuffix(in, "/work/"+p.ID) {
			t.Errorf("it is in %s", in)
		}
		if in := cgroupOf(t, before); strings.Contains(in, "/work/") {
			t.Errorf("its child came along, to %s", in)
		}
		q := x.adopt(with.pid, api.AdoptRequest{Tree: true})
		if q.Adopted.Moved != 2 {
			t.Errorf("with its child: %+v", q.Adopted)
		}
		if a, err := s.Signal(t.Context(), x.ID, p.ID, api.SignalRequest{Signal: "URG"}); err != nil || a.Verdict != api.VerdictOwned {
			t.Errorf("%+v (%v)", a, err)
		}
		if v := x.look(); v.Alive < 3 || len(v.Processes) != 2 {
			t.Errorf("%+v", v)
		}
		r := x.abandon(0)
		stopped(t, heart(f[0]), heart(f[2]), heart(f[3]))
		heart(f[1]).beating(t)
		if err := syscall.Kill(before, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
		<-alone.gone // its parent, we, got the status
		for _, p := range r.Processes {
			if !p.Adopted || p.EndedBy != "kill" || p.Status.SignalNumber != 9 || len(p.Evidence) == 0 {
				t.Errorf("%+v", p)
			}
		}
	})
}

// A tree that forks all the while comes along whole, with those of it that are in
// other cgroups, and without whoever is no descendant.
func TestAdoptATreeThatForks(t *testing.T) {
	needCgroups(t, grades(t)[0])
	s := serve(t, grades(t)[0], options{})
	newCanary(t, s)
	for round := range 3 {
		x := s.begin(t, api.BeginRequest{})
		f := files(t, "deep")
		script := `n=0; grow() { while [ $n -lt 40 ]; do n=$((n+1)); (exec sleep 3600) & (sleep 0.0$((n%7)); exec sleep 3600) & done; }
			(grow; (grow; (grow; exec ` + run.exe + ` ` + f[0] + `) & wait) & wait) & wait`
		useHelper("beat")
		c := outsiderCmd(t, nil, []string{helperEnv + "=beat", "PATH=" + os.Getenv("PATH")}, "sh", "-c", script)
		if round > 0 { // else amid its start
			heart(f[0]).beating(t)
			place(t, fmt.Sprintf("elsewhere%d", round), childOf(t, childOf(t, c.pid)))
		}
		p := x.adopt(c.pid, api.AdoptRequest{Tree: true})
		if p.Adopted.Moved < 1+round {
			t.Errorf("moved %d", p.Adopted.Moved)
		}
		if round > 0 {
			heart(f[0]).beating(t)
		}
		x.abandon(0)
		<-c.gone
		if round > 0 {
			stopped(t, heart(f[0]))
		}
		if left := run.kids.strangers(patience(time.Minute)); len(left) > 0 {
			t.Fatalf("round %d: not taken along: %q", round, left)
		}
	}
}

// A process whose main thread has exited, one that is stopped, and one that is in a
// PID namespace of its own are adopted, and ended.
func TestAdoptOddOnes(t *testing.T) {
	needCgroups(t, grades(t)[0])
	s := serve(t, grades(t)[0], options{})
	newCanary(t, s)
	x := s.begin(t, api.BeginRequest{})
	f := files(t, "headless", "outer", "inner", "stopped", "kid")
	odd := []*child{outsider(t, nil, "headless", f[0]), outsider(t, nil, "pidns", f[1], f[2]), outsider(t, nil, "stopped", f[3], f[4])}
	for _, h := range []string{f[0], f[1], f[2], f[3]} {
		heart(h).beating(t)
	}
	if err := syscall.Kill(odd[2].pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for _, c := range odd {
		x.adopt(c.pid, api.AdoptRequest{Tree: true})
	}
	x.abandon(0)
	stopped(t, heart(f[0]), heart(f[1]), heart(f[2]), heart(f[3]))
	for _, c := range odd {
		<-c.gone
	}
	if left := run.kids.strangers(patience(time.Minute)); len(left) > 0 {
		t.Errorf("not taken along: %q", left)
	}
}

// How it ends is told, whoever reaps it; with a grace it is asked first.
func TestStatusOfAdopted(t *testing.T) {
	needCgroups(t, grades(t)[0])
	s := serve(t, grades(t)[0], options{})
	x := s.begin(t, api.BeginRequest{})
	f := files(t, "go", "heeds")
	c := outsiderCmd(t, nil, []string{"PATH=" + os.Getenv("PATH")}, "sh", "-c", "while [ ! -e "+f[0]+" ]; do sleep 0.01; done; exit 7")
	// USR2: INT is ignored by whatever is started in the background of a shell, and cannot be trapped there.
	d := outsiderCmd(t, nil, []string{"PATH=" + os.Getenv("PATH")}, "sh", "-c", "trap 'exit 5' USR2; : >"+f[1]+"; while :; do sleep 0.01; done")
	eventually(t, "its trap", func() bool { return exists(f[1]) })
	p := x.adopt(c.pid, api.AdoptRequest{})
	q := x.adopt(d.pid, api.AdoptRequest{StopSignal: "USR2"})
	if err := os.WriteFile(f[0], nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience(time.Minute))
	defer cancel()
	v, err := s.WaitProcess(ctx, x.ID, p.ID)
	if err != nil || v.Status.State == api.ProcessRunning {
		t.Fatalf("%+v (%v)", v, err)
	}
	known := v.Status == api.Status{State: api.ProcessExited, Code: 7}
	if lost := v.Status.State == api.ProcessLost && v.Status.Why != ""; !known && !lost || !known && tellsExits(t) {
		t.Errorf("%+v", v.Status)
	}
	x.abandon(patience(time.Minute).Milliseconds())
	<-d.gone
	if d.cmd.ProcessState.ExitCode() != 5 {
		t.Errorf("%s was not asked first: %v", q.ID, d.cmd.ProcessState)
	}
}

// tellsExits tells whether the kernel tells how a process ended that somebody else
// has reaped (Linux 6.15).
func tellsExits(t *testing.T) bool {
	t.Helper()
	c := outsiderCmd(t, nil, nil, "true")
	h, err := pidfd.Open(c.pid)
	if err != nil {
		return false // it was too fast
	}
	defer h.Close()
	<-c.gone
	_, err = h.ExitStatus()
	return err == nil
}

// A turn without a cgroup holds an adopted process by its identity alone: it is
// listed, found again, and ended with the rest; what it had forked is not touched.
func TestAdoptWithoutACgroup(t *testing.T) {
	s := serve(t, api.GradeSubreaper, options{})
	newCanary(t, s)
	v, err := s.Begin(t.Context(), api.BeginRequest{})
	if err != nil || v.Grade != api.GradeSubreaper {
		t.Fatalf("%+v (%v)", v, err)
	}
	x := &turn{Turn: v, s: s, t: t}
	f := files(t, "one", "kid", "launched")
	one := outsider(t, nil, "setsid", f[0], f[1])
	x.launch(helper(t, "beat", f[2]))
	for _, h := range f {
		heart(h).beating(t)
	}
	kid := childOf(t, one.pid)
	_, err = x.tryAdopt(one.pid, api.AdoptRequest{MinGrade: api.GradeSubreaper})
	wantCode(t, err, api.CodeGradeUnavailable)
	p := x.adopt(one.pid, api.AdoptRequest{})
	if p.Grade != api.GradeToken || p.Adopted.Moved != 0 {
		t.Errorf("%+v %+v", p, p.Adopted)
	}
	_, err = x.tryAdopt(one.pid, api.AdoptRequest{})
	wantNotAdopted(t, "twice", err, api.AdoptHeld)
	s.kill()
	s.restart()
	if tree, err := s.Tree(t.Context(), x.ID); err != nil || len(tree.Members) != 2 {
		t.Errorf("%+v (%v)", tree.Members, err)
	}
	if w, err := s.Why(t.Context(), x.ID); err != nil || len(w.Targets) != 2 {
		t.Errorf("%+v (%v)", w.Targets, err)
	}
	r, err := s.Abandon(t.Context(), x.ID, api.AbandonRequest{GraceMS: new(int64(0))})
	if err != nil || !r.Complete || len(r.Processes) != 2 || !strings.Contains(r.Mechanism, "handles") {
		t.Errorf("%+v (%v)", r, err)
	}
	<-one.gone
	stopped(t, heart(f[0]), heart(f[2]))
	heart(f[1]).beating(t)
	if err := syscall.Kill(kid, syscall.SIGKILL); err != nil {
		t.Error(err)
	}
}
