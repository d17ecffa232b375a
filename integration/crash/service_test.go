package crash

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/client"
	"pinfold.dev/integration/guard"
	"pinfold.dev/pidfd"
)

// life is one service with its directories, and what a client does with it.
type life struct {
	*client.Client
	t      *testing.T
	plan   plan
	dir    string
	parent string // cgroup of its turns
	out    string // cgroup that somebody escapes to
	token  string // in the environment of all that is launched
	rules  string

	mu   sync.Mutex
	proc *proc

	crashes atomic.Int64 // of the service
	killed  sync.Map     // pids of the keepers that the test has killed
	calls   struct {     // the call under way, for a client that leaves
		sync.Mutex
		cancel context.CancelFunc
	}

	neighbour, turn api.Turn
	begunAfter      bool        // the turn was begun once the point had been reached: its keeper lives
	beside          api.Process // the neighbour's
	job             api.Job
	procs           map[string]*payload
	order           []string
	adoptees        []*pidfd.Handle
	fds             int
}

// proc is one process of the service.
type proc struct {
	cmd  *exec.Cmd
	gone chan struct{}
}

func newLife(t *testing.T, p plan) *life {
	t.Helper()
	dir, err := os.MkdirTemp(run.dir, "l.")
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Base(dir)
	l := &life{t: t, plan: p, dir: dir, parent: filepath.Join(run.cgroup, name), out: filepath.Join(run.cgroup, name+".out"),
		token: "PINFOLD_CRASH_LIFE=" + dir, procs: map[string]*payload{}, Client: &client.Client{Socket: dir + "/sock"}}
	for _, d := range []string{l.parent, l.out} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	l.rules = l.ruleList()
	t.Cleanup(l.clean)
	return l
}

// point, first and along are files: while one is there, that point of the plan
// acts.
func (l *life) point() string { return l.dir + "/armed" }
func (l *life) first() string { return l.dir + "/armed.first" }
func (l *life) along() string { return l.dir + "/armed.along" }

// ruleList is what PINFOLD_FAULT says of the plan.
func (l *life) ruleList() string {
	p := l.plan
	if p.point == "" {
		return ""
	}
	act := "kill"
	if p.mode == other || p.mode == late || p.mode == gone {
		act = "hold"
	}
	rules := []string{p.point + "#1=" + act + ":" + l.point()} // the others that come there go on
	if p.first != "" {
		rules = append(rules, p.first+"=kill:"+l.first())
	}
	if p.along != "" {
		rules = append(rules, p.along+"=exit:"+l.along())
	}
	return strings.Join(rules, ",")
}

func touch(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func (l *life) reached() bool { return exists(l.point() + ".reached") }

// keeperLost tells that the turn's keeper is, or may be, dead by now.
func (l *life) keeperLost() bool {
	_, killed := l.killed.Load(l.turn.KeeperPID)
	dies := l.plan.in == keeper && (l.plan.mode == itself || l.plan.mode == both)
	return killed || dies && l.reached() && !l.begunAfter
}

// start runs a service until it answers. One that dies at the armed point is
// started again.
func (l *life) start() {
	l.t.Helper()
	for range 4 {
		if l.startOnce() {
			return
		}
		l.disarm()
	}
	l.t.Fatalf("the service does not start\n%s", l.log())
}

func (l *life) startOnce() bool {
	log, err := os.OpenFile(l.dir+"/log", os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		l.t.Fatal(err)
	}
	defer log.Close()
	before, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		l.t.Fatal(err)
	}
	cmd := exec.Command(run.bin+"/pinfold", "serve", "--socket", l.dir+"/sock", "--runtime-dir", l.dir+"/run", "--state-dir", l.dir+"/state",
		"--grace", "0", "--bound", "30s", "--log-level", "debug")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "PINFOLD_FAULT=" + l.rules}
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	defer l.place(cmd)()
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	p := &proc{cmd, make(chan struct{})}
	go func() { _ = cmd.Wait(); close(p.gone) }()
	l.mu.Lock()
	l.proc = p
	l.mu.Unlock()
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if _, err := l.Host(context.Background()); err == nil && l.answered(before) {
			return true
		}
		select {
		case <-p.gone:
			l.crashes.Add(1)
			return false
		default:
		}
	}
	l.t.Fatalf("the service does not answer\n%s", l.log())
	return false
}

// answered tells that all those keepers have answered that the service has not waited
// for when it started. One that waits at a point goes on by then, or is dead.
func (l *life) answered(before int64) bool {
	b, _ := os.ReadFile(l.dir + "/log")
	return len(guard.Unanswered(string(b[min(before, int64(len(b))):]))) == 0
}

// place has a service know its grade, and, where that needs no cgroups, run in the
// life's own. What it returns is to be called once it runs.
func (l *life) place(cmd *exec.Cmd) func() {
	if l.plan.bare == "" {
		cmd.Args = append(cmd.Args, "--grade", "cgroup", "--cgroup-parent", l.parent)
		return func() {}
	}
	cmd.Args = append(cmd.Args, "--grade", string(l.plan.bare))
	d, err := os.Open(l.parent)
	if err != nil {
		l.t.Fatal(err)
	}
	cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(d.Fd())
	return func() { d.Close() }
}

func (l *life) service() *proc {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.proc
}

// kill ends the service with SIGKILL.
func (l *life) kill() {
	p := l.service()
	_ = p.cmd.Process.Kill()
	<-p.gone
	l.crashes.Add(1)
}

// killKeepers ends the keepers of the test's turn, not the neighbour's, through
// handles.
func (l *life) killKeepers() {
	for _, pid := range l.bareKeepers() {
		l.killKeeper(pid, func(*pidfd.Handle) bool { return l.isBareKeeper(pid) })
	}
	l.eachKeeper(l.killKeeper)
}

// eachKeeper calls do with the number of each keeper in a cgroup, the neighbour's left
// out, and with what tells whether a handle is still that of one.
func (l *life) eachKeeper(do func(pid int, is func(*pidfd.Handle) bool)) {
	lists, _ := filepath.Glob(l.parent + "/*/*/keeper/cgroup.procs")
	for _, f := range lists {
		if l.neighbour.ID == "" || strings.Contains(f, l.neighbour.ID) {
			continue
		}
		b, err := os.ReadFile(f)
		pid, perr := strconv.Atoi(strings.TrimSpace(string(b)))
		if err != nil || perr != nil {
			continue
		}
		do(pid, func(h *pidfd.Handle) bool {
			in, err := h.CgroupPath()
			return err == nil && strings.HasSuffix(in, "/keeper") && strings.Contains(in, filepath.Base(l.parent))
		})
	}
}

// detain stops keepers that nobody has claimed: they would leave by themselves after
// five seconds, which a busy machine may need until the next service has come to them.
func (l *life) detain() {
	l.eachKeeper(func(pid int, is func(*pidfd.Handle) bool) {
		if h, err := pidfd.Open(pid); err == nil {
			if is(h) {
				_ = h.Signal(syscall.SIGSTOP)
			}
			_ = h.Close()
		}
	})
}

func (l *life) killKeeper(pid int, is func(*pidfd.Handle) bool) {
	l.killed.Store(pid, true)
	h, err := pidfd.Open(pid)
	if err != nil {
		return
	}
	defer h.Close()
	if is(h) {
		_ = h.Signal(syscall.SIGKILL)
		_ = h.Wait(context.Background())
	}
}

// arm has the point act from now on, and watches for it.
func (l *life) arm(s stage) {
	l.t.Helper()
	p := l.plan
	if p.stage != s || p.point == "" {
		return
	}
	if p.along != "" {
		touch(l.t, l.along())
	}
	touch(l.t, l.point())
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !l.reached() {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
		}
		l.strike()
	}()
	l.t.Cleanup(func() { close(stop); <-done })
}

// strike does what the plan says once the point was reached.
func (l *life) strike() {
	p := l.plan
	switch {
	case p.mode == gone:
		l.leave()
	case p.mode == itself:
	case p.in == service:
		l.killKeepers()
	default:
		l.kill()
	}
	if p.mode == late {
		time.Sleep(lateBy)
		_ = os.Remove(l.point())
	}
	l.disarm()
}

// lateBy is for how long a keeper does not answer the next service.
const lateBy = 250 * time.Millisecond

func (l *life) disarm() {
	_ = os.Remove(l.first())
	if l.reached() && l.plan.mode != late { // then strike does
		_ = os.Remove(l.along())
		_ = os.Remove(l.point())
	}
}

// lives tells that the service answers.
func (l *life) lives() bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err := l.Host(ctx)
	return err == nil
}

// revive sees to it that there is a service. It tells whether there was none.
func (l *life) revive() bool {
	l.t.Helper()
	for ended := false; !ended; { // a connection that breaks is told of before the process's end
		select {
		case <-l.service().gone:
			ended = true
		case <-time.After(300 * time.Millisecond):
			if l.lives() {
				return false
			}
		}
	}
	l.crashes.Add(1)
	l.Close()
	l.disarm()
	if l.plan.stage == atSecond && !l.reached() {
		if l.plan.point == "stray.killed" || l.plan.point == "keeper.killed" { // which that keeper is
			l.detain()
		}
		l.arm(atSecond)
		if l.plan.patient {
			eventually(l.t, "the point "+l.plan.point, l.reached)
		}
	}
	l.start()
	l.recorded()
	return true
}

// log is what the service and its keepers have written.
func (l *life) log() string {
	b, _ := os.ReadFile(l.dir + "/log")
	out := "service log:\n" + string(b[max(0, len(b)-12000):])
	logs, _ := filepath.Glob(l.dir + "/run/turns/*/keeper.log")
	for _, f := range logs {
		if b, err := os.ReadFile(f); err == nil && len(b) > 0 {
			out += f + ":\n" + string(b)
		}
	}
	return out
}

// clean ends whatever a failed test has left.
func (l *life) clean() {
	if p := l.service(); p != nil {
		l.kill()
	}
	l.Close()
	for _, d := range []string{l.parent, l.out} {
		if left := removeTree(d); len(left) > 0 && !l.t.Failed() {
			l.t.Errorf("left in cgroups: %q", left)
		}
	}
	for _, p := range l.procs {
		p.reap()
	}
	if l.t.Failed() {
		l.t.Log(l.log())
	}
	_ = os.RemoveAll(l.dir)
}

// describe is for failures.
func (l *life) describe() string {
	return fmt.Sprintf("%s, %d crashes of the service", l.plan, l.crashes.Load())
}
