package records

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/client"
	"pinfold.dev/integration/guard"
)

// service is a `pinfold serve` with directories and a cgroup of its own.
type service struct {
	*client.Client
	t      *testing.T
	dir    string
	parent string // its turns' cgroups are below
	bin    string
	init   string
	faults string
	args   []string
	cmd    *exec.Cmd
	gone   chan struct{}
}

// newService is one that does not run yet.
func newService(t *testing.T) *service {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make cgroups")
	}
	dir, err := os.MkdirTemp(run.dir, "s.")
	if err != nil {
		t.Fatal(err)
	}
	s := &service{t: t, dir: dir, parent: filepath.Join(run.cgroup, filepath.Base(dir)), bin: run.bin + "/pinfold", init: run.bin + "/pinfold-init",
		Client: &client.Client{Socket: dir + "/sock"}}
	if err := os.Mkdir(s.parent, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.finish)
	return s
}

func serve(t *testing.T) *service {
	t.Helper()
	s := newService(t)
	s.start()
	return s
}

func (s *service) argv() []string {
	return append([]string{"serve", "--socket", s.dir + "/sock", "--runtime-dir", s.dir + "/run", "--state-dir", s.dir + "/state",
		"--grade", "cgroup", "--cgroup-parent", s.parent, "--init", s.init, "--grace", "0", "--bound", patience(30 * time.Second).String(),
		"--log-level", "debug"}, s.args...)
}

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
	before, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	cmd := exec.Command(s.bin, s.argv()...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "PINFOLD_FAULT=" + s.faults}
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	gone := make(chan struct{})
	go func() { _ = cmd.Wait(); close(gone) }()
	s.cmd, s.gone = cmd, gone
	for end := time.Now().Add(patience(90 * time.Second)); ; time.Sleep(2 * time.Millisecond) {
		_, err := s.Host(context.Background())
		if err == nil {
			s.answered(before)
			return nil
		}
		select {
		case <-gone:
			return errors.New("it ended: " + cmd.ProcessState.String())
		default:
		}
		if time.Now().After(end) {
			return err
		}
	}
}

// answered waits for the keepers that the service has not waited for when it started.
func (s *service) answered(before int64) {
	s.t.Helper()
	eventually(s.t, "all keepers have answered", func() bool {
		b, _ := os.ReadFile(s.dir + "/log")
		return len(guard.Unanswered(string(b[min(before, int64(len(b))):]))) == 0
	})
}

// kill ends the service with SIGKILL: its turns go on.
func (s *service) kill() {
	_ = s.cmd.Process.Kill()
	<-s.gone
	s.Close()
}

// atOnce does something that the running service is to notice as a whole: it mends
// what it notices within 100 ms, and what was half done by then would be another thing.
func (s *service) atOnce(f func() error) error {
	pid := s.cmd.Process.Pid
	if err := s.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	eventually(s.t, "the service stands still", func() bool { return stateOf(pid) == 'T' })
	return errors.Join(f(), s.cmd.Process.Signal(syscall.SIGCONT))
}

func (s *service) running() bool {
	if s.cmd == nil {
		return false
	}
	select {
	case <-s.gone:
		return false
	default:
		return true
	}
}

// finish ends what is left of the test's turns, stops the service, which must do
// so, and looks for what it has left.
func (s *service) finish() {
	if s.running() {
		s.stop()
	}
	if left := guard.RemoveTree(s.parent); len(left) > 0 && !s.t.Failed() {
		s.t.Errorf("left in cgroups: %q", left)
	}
	if s.t.Failed() {
		s.t.Log(s.log())
	}
}

// stop ends the service's turns and stops it: it has put them away then, with
// their keepers, which kill does not wait for.
func (s *service) stop() {
	s.endAll()
	s.Close()
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.gone:
		if !s.cmd.ProcessState.Success() {
			s.t.Errorf("the service, stopped, ended with %v", s.cmd.ProcessState)
		}
	case <-time.After(patience(60 * time.Second)):
		s.t.Error("the service does not stop")
		s.kill()
	}
}

func (s *service) endAll() {
	ctx, cancel := context.WithTimeout(context.Background(), patience(90*time.Second))
	defer cancel()
	list, err := s.Turns(ctx, true, "")
	if err != nil {
		s.t.Errorf("list turns: %v", err)
	}
	for _, v := range list.Turns {
		if v.State.Terminal() && v.Alive <= 0 {
			continue
		}
		r, err := s.Abandon(ctx, v.ID, api.AbandonRequest{GraceMS: new(int64(0)), Leftovers: true, Jobs: true})
		if err != nil || !r.Complete {
			s.t.Errorf("abandon turn %s at the end: complete %v, %v", v.ID, r.Complete, err)
		}
	}
	jobs, err := s.Jobs(ctx, client.JobQuery{})
	if err != nil {
		s.t.Errorf("list jobs: %v", err)
	}
	for _, j := range jobs.Jobs {
		if _, err := s.StopJob(ctx, j.ID, api.StopJobRequest{GraceMS: new(int64(0))}); err != nil {
			s.t.Errorf("stop job %s: %v", j.ID, err)
		}
	}
}

func (s *service) log() string {
	b, _ := os.ReadFile(s.dir + "/log")
	return "service log:\n" + string(b[max(0, len(b)-12000):])
}

// begin opens a turn.
func (s *service) begin(req api.BeginRequest) api.Turn {
	s.t.Helper()
	v, err := s.Begin(context.Background(), req)
	if err != nil {
		s.t.Fatalf("begin: %v", err)
	}
	return v
}

// launch starts a shell's words in a turn.
func (s *service) launch(turn, script string) api.Process {
	s.t.Helper()
	p, err := s.Launch(context.Background(), turn, api.LaunchRequest{Argv: []string{"sh", "-c", script}, Cwd: "/"})
	if err != nil {
		s.t.Fatalf("launch: %v", err)
	}
	return p
}

// exits launches something that ends with a code, and waits for that.
func (s *service) exits(turn, script string) {
	s.t.Helper()
	p := s.launch(turn, script)
	if _, err := s.WaitProcess(context.Background(), turn, p.ID); err != nil {
		s.t.Fatal(err)
	}
}

// look is the turn as it is now.
func (s *service) look(turn string) api.Turn {
	s.t.Helper()
	v, err := s.Turn(context.Background(), turn)
	if err != nil {
		s.t.Fatal(err)
	}
	return v
}

// receipt waits for the turn's receipt to be terminal.
func (s *service) receipt(turn string) (r api.Receipt) {
	s.t.Helper()
	eventually(s.t, "a receipt of turn "+turn, func() bool {
		var err error
		r, err = s.Receipt(context.Background(), turn)
		return err == nil && r.State.Terminal()
	})
	return r
}

// entry is what GET /v1/records says of a turn.
func (s *service) entry(turn string) (r api.TurnRecord) {
	s.t.Helper()
	l, err := s.Records(context.Background())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range l.Records {
		if e.Turn == turn {
			return e
		}
	}
	return r
}

func (s *service) recordPath(turn string) string {
	return filepath.Join(s.dir, "run", "turns", turn, "record.json")
}

// edit changes a record as an earlier version would have written it: without a
// check sum.
func (s *service) edit(turn string, change func(r map[string]any)) {
	s.t.Helper()
	b, err := os.ReadFile(s.recordPath(turn))
	if err != nil {
		s.t.Fatal(err)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber() // cgroup ids have 64 bits
	var r map[string]any
	if err := d.Decode(&r); err != nil {
		s.t.Fatal(err)
	}
	change(r)
	if b, err = json.Marshal(r); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(s.recordPath(turn), b, 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// part is an object within a record.
func part(r map[string]any, names ...string) map[string]any {
	for _, n := range names {
		r, _ = r[n].(map[string]any)
	}
	return r
}

const mark = "trusted.pinfold"

// unmark takes the mark from a turn's cgroup; the result puts it back.
func unmark(t *testing.T, dir string) (back func()) {
	t.Helper()
	buf := make([]byte, 4096)
	n, err := syscall.Getxattr(dir, mark, buf)
	if err == nil {
		err = syscall.Removexattr(dir, mark)
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := syscall.Setxattr(dir, mark, buf[:n], 0); err != nil {
			t.Fatal(err)
		}
	}
}

// remove ends everything in a turn's cgroup and removes it: what a machine's
// end, or somebody who tidies up, does.
func remove(t *testing.T, dir string) {
	t.Helper()
	guard.RemoveTree(dir)
	if _, err := os.Stat(dir); err == nil {
		t.Fatalf("%s is still there", dir)
	}
}

func has(all []string, part string) bool {
	for _, s := range all {
		if strings.Contains(s, part) {
			return true
		}
	}
	return false
}
