package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/cgroup"
	"pinfold.dev/client"
)

const cgroupPrefix = "pinfold-test.node."

// build makes the programs as they are shipped.
func build(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command("go", "build", "-trimpath", "-o", dir+"/", "pinfold.dev/cmd/pinfold", "pinfold.dev/cmd/pinfold-init")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the programs: %v\n%s", err, out)
	}
	return dir
}

// service is a running `pinfold serve` with a cgroup and directories of its own.
type service struct {
	*client.Client
	bin, dir, cgroup string
	process          *os.Process
	gone             chan error
}

// serve starts a service. At the end of the test it is ended, and nothing of it
// may be left.
func serve(t *testing.T, bin string) *service {
	t.Helper()
	dir, err := os.MkdirTemp("", "pinfold-node.")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { // for processes of other users
		t.Fatal(err)
	}
	s := &service{bin: bin, dir: dir, cgroup: ownCgroup(t), Client: &client.Client{Socket: dir + "/sock"}}
	t.Cleanup(func() { s.finish(t) })
	if err := s.start(); err != nil {
		t.Fatalf("start the service: %v\n%s", err, s.log())
	}
	s.control(t)
	return s
}

// ownCgroup makes a cgroup of this test, and removes those of runs that are gone.
func ownCgroup(t *testing.T) string {
	t.Helper()
	m, err := cgroup.FindMount()
	if err != nil {
		t.Fatal(err)
	}
	old, _ := filepath.Glob(filepath.Join(m.Path, cgroupPrefix+"*"))
	for _, dir := range old {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), cgroupPrefix), ".")
		if _, err := os.Stat("/proc/" + pid); errors.Is(err, fs.ErrNotExist) {
			removeCgroup(dir)
		}
	}
	dir, err := os.MkdirTemp(m.Path, cgroupPrefix+strconv.Itoa(os.Getpid())+".")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// removeCgroup ends what is in a cgroup of ours, removes it with those below,
// and tells which of those were populated, or could not be removed.
func removeCgroup(dir string) (left []string) {
	var all []string
	_ = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			all = append(all, p)
			if b, err := os.ReadFile(p + "/cgroup.procs"); err == nil && len(b) > 0 {
				left = append(left, p)
			}
		}
		return nil
	})
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		_ = os.WriteFile(dir+"/cgroup.kill", []byte("1"), 0)
		for _, p := range slices.Backward(all) {
			_ = os.Remove(p)
		}
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			return left
		}
		if time.Now().After(end) {
			return append(left, dir)
		}
	}
}

// start runs the program and waits until it answers.
func (s *service) start() error {
	log, err := os.OpenFile(s.dir+"/log", os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(s.bin+"/pinfold", "serve", "--socket", s.Socket, "--runtime-dir", s.dir+"/run", "--state-dir", s.dir+"/state",
		"--grade", "cgroup", "--cgroup-parent", s.cgroup, "--init", s.bin+"/pinfold-init", "--grace", "0", "--log-level", "debug")
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = []string{"PATH=" + os.Getenv("PATH")}, "/", log, log
	started := make(chan error, 1)
	s.gone = make(chan error, 1)
	go func() {
		s.gone <- onOneThread(func() error {
			err := cmd.Start()
			started <- err
			if err != nil {
				return err
			}
			return cmd.Wait()
		}, cmd)
	}()
	if err := <-started; err != nil {
		return err
	}
	s.process = cmd.Process
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, err = s.Host(context.Background()); err == nil {
			return nil
		}
		if len(s.gone) > 0 || time.Now().After(end) {
			return err
		}
	}
}

// onOneThread calls f, which starts cmd and waits for it, so that cmd dies when
// this process does: Pdeathsig fires when the thread that started it ends.
func onOneThread(f func() error, cmd *exec.Cmd) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return f()
}

// stop ends the service with a signal; its turns go on.
func (s *service) stop(sig syscall.Signal) error {
	if err := s.process.Signal(sig); err != nil {
		return err
	}
	select {
	case <-s.gone:
		return nil
	case <-time.After(2 * time.Minute):
		return fmt.Errorf("the service is there two minutes after %s", sig)
	}
}

// control lets the tests of the client end the service and start it again.
func (s *service) control(t *testing.T) {
	t.Helper()
	l, err := net.Listen("unix", s.dir+"/control")
	if err != nil {
		t.Fatal(err)
	}
	do := func(f func() error) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			if err := f(); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
			}
		}
	}
	mux := http.NewServeMux()
	mux.Handle("POST /kill", do(func() error { return s.stop(syscall.SIGKILL) }))
	mux.Handle("POST /stop", do(func() error { return s.stop(syscall.SIGTERM) }))
	mux.Handle("POST /start", do(s.start))
	h := &http.Server{Handler: mux}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = h.Serve(l)
	}()
	t.Cleanup(func() {
		h.Close()
		<-done
	})
}

// finish ends everything and tells what the tests left.
func (s *service) finish(t *testing.T) {
	now := int64(0)
	l, err := s.Turns(context.Background(), true, "")
	if err != nil {
		t.Errorf("list the turns at the end: %v", err)
	}
	for _, v := range l.Turns {
		if v.State == api.StateOpen || v.Alive > 0 {
			t.Errorf("a test left turn %s, %s with %d processes", v.ID, v.State, v.Alive)
			_, _ = s.Abandon(context.Background(), v.ID, api.AbandonRequest{GraceMS: &now, Leftovers: true})
		}
	}
	s.Close()
	if s.process != nil && len(s.gone) == 0 {
		if err := s.stop(syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}
	for _, dir := range removeCgroup(s.cgroup) {
		if rel, err := filepath.Rel(s.cgroup, dir); err == nil && strings.Contains(rel, "/") {
			t.Errorf("cgroup left behind: %s", rel)
		}
	}
	if t.Failed() {
		t.Log(s.log())
	}
}

// log is the end of what the service has written.
func (s *service) log() string {
	b, _ := os.ReadFile(s.dir + "/log")
	const most = 8 << 10
	if len(b) > most {
		b = b[len(b)-most:]
	}
	return "service log:\n" + string(b)
}
