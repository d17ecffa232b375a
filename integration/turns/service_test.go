package turns

import (
	"context"
	"errors"
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
	"pinfold.dev/client"
	guards "pinfold.dev/integration/guard"
	"pinfold.dev/internal/sys"
)

// service is a running `pinfold serve` with directories of its own.
type service struct {
	*client.Client
	t     *testing.T
	grade api.Grade
	dir   string
	args  []string
	wrap  []string // a helper and its words that the service is started by
	proc  *child
	fds   int // of this process, before
}

// options are what a test wants of its service.
type options struct {
	args []string // more for serve
	wrap []string
}

// grades are those that this run is about.
func grades(t *testing.T) []api.Grade {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make cgroups and to be several users")
	}
	var out []api.Grade
	if s := os.Getenv("PINFOLD_TEST_GRADE"); s != "" {
		for w := range strings.SplitSeq(s, ",") {
			out = append(out, api.Grade(w))
		}
		return out
	}
	if _, err := os.Stat("/run/systemd/system"); err == nil { // see sd_booted(3)
		out = append(out, api.GradeScope)
	}
	return append(out, api.GradeCgroup)
}

// eachGrade runs a test at each grade; one that is not to be had fails it.
func eachGrade(t *testing.T, test func(t *testing.T, g api.Grade)) {
	for _, g := range grades(t) {
		t.Run(string(g), func(t *testing.T) { test(t, g) })
	}
}

// serve starts a service. At the end of the test it is stopped, and nothing of
// it may be left.
func serve(t *testing.T, g api.Grade, o options) *service {
	t.Helper()
	s := newService(t, g, o)
	s.start()
	return s
}

// newService is one that does not run yet.
func newService(t *testing.T, g api.Grade, o options) *service {
	t.Helper()
	dir, err := os.MkdirTemp(run.dir, "s.")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s := &service{t: t, grade: g, fds: fds(t, os.Getpid()), dir: dir, wrap: o.wrap, Client: &client.Client{Socket: dir + "/sock"},
		args: append([]string{"serve", "--socket", dir + "/sock", "--runtime-dir", dir + "/run", "--state-dir", dir + "/state",
			"--grade", string(g), "--cgroup-parent", run.cgroup, "--init", run.bin + "/pinfold-init", "--grace", "0",
			"--bound", patience(30 * time.Second).String(), "--log-level", "debug"}, o.args...)}
	t.Cleanup(s.finish)
	return s
}

// start runs the program and waits until it answers.
func (s *service) start() {
	s.t.Helper()
	if err := s.tryStart(); err != nil {
		s.t.Fatalf("start the service: %v\n%s", err, s.log())
	}
}

func (s *service) tryStart() error {
	log, err := os.OpenFile(s.dir+"/log", os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(run.bin+"/pinfold", s.args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	if len(s.wrap) > 0 {
		useHelper(s.wrap[0])
		cmd = exec.Command(run.exe, append(append(s.wrap[1:], run.bin+"/pinfold"), s.args...)...)
		cmd.Env = []string{helperEnv + "=" + s.wrap[0], "PATH=" + os.Getenv("PATH")}
	}
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", log, log
	if isBare(s.grade) {
		home, err := bareHome()
		if err != nil {
			return err
		}
		defer home.Close()
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, UseCgroupFD: true, CgroupFD: int(home.Fd())}
	}
	if s.proc, err = run.kids.start(cmd); err != nil {
		return err
	}
	for end := time.Now().Add(patience(60 * time.Second)); ; time.Sleep(2 * time.Millisecond) {
		_, err := s.Host(context.Background())
		if err == nil {
			return nil
		}
		select {
		case <-s.proc.gone:
			return fmt.Errorf("it ended: %w", errors.Join(s.proc.err, errors.New(s.proc.cmd.ProcessState.String())))
		default:
		}
		if time.Now().After(end) {
			return err
		}
	}
}

// isBare tells a grade that has no cgroups.
func isBare(g api.Grade) bool { return !g.AtLeast(api.GradeCgroup) }

// bareHome is a cgroup for services that make none: by it the guard ends what they
// have started.
func bareHome() (*os.File, error) {
	path := run.cgroup + "/bare"
	if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	ino, err := sys.InoAt(sys.AtFDCWD, path)
	if err != nil {
		return nil, err
	}
	run.guard.tell("held", path, fmt.Sprint(ino))
	return os.Open(path)
}

// needCgroups skips, at grades without them, what is about the turn's cgroup.
func needCgroups(t *testing.T, g api.Grade) {
	t.Helper()
	if isBare(g) {
		t.Skip("about cgroups, which grade " + string(g) + " has none of")
	}
}

// kill ends the service with SIGKILL: its turns go on.
func (s *service) kill() {
	s.proc.kill()
	s.Close()
}

// restart starts it again on the same directories, and waits until it has met the
// keepers. (One that a test has stopped never answers: then start it is.)
func (s *service) restart() {
	s.t.Helper()
	s.Close()
	before, _ := os.ReadFile(s.dir + "/log")
	s.start()
	eventually(s.t, "the keepers answer", func() bool {
		b, err := os.ReadFile(s.dir + "/log")
		return err == nil && len(guards.Unanswered(string(b[min(len(before), len(b)):]))) == 0
	})
}

// log is what the service and its keepers have written.
func (s *service) log() string {
	b, _ := os.ReadFile(s.dir + "/log")
	out := "service log:\n" + tail(b)
	logs, _ := filepath.Glob(s.dir + "/run/turns/*/keeper.log")
	for _, f := range logs {
		if b, err := os.ReadFile(f); err == nil && len(b) > 0 {
			out += f + ":\n" + tail(b)
		}
	}
	return out
}

func tail(b []byte) string {
	const most = 20000
	if len(b) > most {
		b = b[len(b)-most:]
	}
	return string(b)
}

// finish ends the test's turns, stops the service and looks for what is left.
func (s *service) finish() {
	t := s.t
	if s.proc == nil {
		return
	}
	select {
	case <-s.proc.gone:
		if !t.Failed() {
			t.Error("the service has ended before its test")
		}
		if err := s.tryStart(); err != nil { // so that its turns can be ended
			t.Errorf("start the service again: %v", err)
		}
	default:
	}
	s.endTurns()
	s.Close()
	_ = s.proc.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.proc.gone:
		if s.proc.err != nil {
			t.Errorf("the service, stopped, ended with %v", s.proc.err)
		}
	case <-time.After(patience(60 * time.Second)):
		t.Error("the service does not stop")
		s.proc.kill()
	}
	s.leftovers()
	if t.Failed() {
		t.Log(s.log())
	}
}

// endTurns abandons every turn that is not over.
func (s *service) endTurns() {
	ctx, cancel := context.WithTimeout(context.Background(), patience(60*time.Second))
	defer cancel()
	list, err := s.Turns(ctx, true, "")
	if err != nil {
		s.t.Errorf("list turns: %v", err)
		return
	}
	for _, v := range list.Turns {
		if v.State.Terminal() && v.Alive <= 0 {
			continue
		}
		r, err := s.Abandon(ctx, v.ID, api.AbandonRequest{GraceMS: new(int64(0)), Leftovers: true})
		for err == nil && r.State == api.StateUnkillable && ctx.Err() == nil { // its survivor has just been ended: that is seen soon
			time.Sleep(5 * time.Millisecond)
			r, err = s.Receipt(ctx, v.ID)
		}
		if err != nil || !r.Complete {
			s.t.Errorf("abandon turn %s at the end: complete %v, %v", v.ID, r.Complete, err)
		}
	}
}

// leftovers fails the test for whatever its service has left: keepers,
// cgroups, scopes, processes of turns, records of live turns.
func (s *service) leftovers() {
	t := s.t
	if left := run.kids.strangers(patience(time.Minute)); len(left) > 0 {
		t.Errorf("processes left behind:\n%s", strings.Join(left, "\n"))
	}
	var below []string
	_ = filepath.WalkDir(run.cgroup, func(p string, d os.DirEntry, err error) error {
		if rel, rerr := filepath.Rel(run.cgroup, p); err == nil && rerr == nil && d.IsDir() && strings.Contains(rel, "/") {
			below = append(below, rel) // the service keeps a directory of its own, empty
		}
		return nil
	})
	if len(below) > 0 {
		t.Errorf("cgroups left behind:\n%s", strings.Join(below, "\n"))
	}
	eventually(t, "this process has as many descriptors as before", func() bool { return fds(t, os.Getpid()) <= s.fds })
	for end := time.Now().Add(patience(time.Minute)); len(s.scopes()) > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Errorf("scopes left behind:\n%s", describe(s.scopes()))
			break
		}
	}
	if turns, err := os.ReadDir(s.dir + "/run/turns"); err != nil || len(turns) > 0 {
		files, _ := filepath.Glob(s.dir + "/run/turns/*/*")
		t.Errorf("directories of live turns left behind: %v %v %q", turns, err, files)
	}
}

// scopes are the scopes whose cgroups there are.
func (s *service) scopes() []string {
	if s.grade != api.GradeScope {
		return nil
	}
	return guards.Scopes(run.mount)
}

// describe tells what is in cgroups.
func describe(dirs []string) (out string) {
	for _, dir := range dirs {
		_ = filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				events, _ := os.ReadFile(p + "/cgroup.events")
				procs, _ := os.ReadFile(p + "/cgroup.procs")
				out += fmt.Sprintf("%s: %q, processes %q\n", p, events, procs)
			}
			return nil
		})
		unit := filepath.Base(dir)
		show, err := run.kids.output(exec.Command("systemctl", "show", "-p", "ActiveState,SubState,ControlGroup,Job,Result,Description", unit))
		out += fmt.Sprintf("%s %v\n", show, err)
	}
	return out
}

// fds counts the descriptors of a process.
func fds(t *testing.T, pid int) int {
	t.Helper()
	list, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}
