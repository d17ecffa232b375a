package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"pinfold.dev/api"
	"pinfold.dev/cgroup"
	"pinfold.dev/client"
)

// service is the real service of one script.
type service struct {
	place place
	cmd   *exec.Cmd
	gone  chan struct{}
	log   *syncBuffer
}

func serveIn(ts *testscript.TestScript, neg bool, args []string) {
	s, socket := ts.Value("service").(*service), ts.Getenv("PINFOLD_SOCKET")
	env := append(managerEnv(), "PINFOLD_SOCKET="+socket, "PATH="+os.Getenv("PATH"))
	if s.cmd == nil {
		p, err := newPlace(ts.Name(), ts.MkAbs("."))
		ts.Check(err)
		ts.Setenv("CGROUP", p.cgroup)
		if p.changes() {
			ts.Check(openUp(p.dir))
			ts.Check(p.wrapper(p.dir + "/.as"))
			ts.Setenv("PATH", p.dir+"/.as:"+p.path())
		}
		s.place = p
		ts.Defer(func() {
			left := s.clean(socket, p)
			ts.Logf("service log:\n%s", s.log)
			for _, rel := range left {
				ts.Value("t").(interface{ Errorf(string, ...any) }).Errorf("cgroup left behind: %s", rel)
			}
		})
	}
	ts.Check(s.start(s.place, env, args...))
	ts.Check(s.ready(socket))
}

// openUp lets everybody write what a script has in its directory.
func openUp(dir string) error {
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { // testscript's own
		return err
	}
	return filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil || d.Type()&os.ModeSymlink != 0 {
			return err
		}
		if d.IsDir() {
			return os.Chmod(p, 0o777)
		}
		return os.Chmod(p, 0o666)
	})
}

// ready returns when the service answers.
func (s *service) ready(socket string) error {
	c := &client.Client{Socket: socket}
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		_, err := c.Host(context.Background())
		if err == nil {
			return nil
		}
		select {
		case <-s.gone:
			return fmt.Errorf("the service ended: %v\n%s", s.cmd.ProcessState, s.log)
		default:
		}
		if time.Now().After(end) {
			return fmt.Errorf("the service is not ready: %w\n%s", err, s.log)
		}
	}
}

// start runs the service so that it dies with us: Pdeathsig fires when the
// starting thread ends, so that thread stays until the service has.
func (s *service) start(p place, env []string, args ...string) error {
	cmd, gone, log := exec.Command(filepath.Join(p.bin, "pinfold"), append(p.serveArgs(), args...)...), make(chan struct{}), &syncBuffer{}
	cmd.Env, cmd.Stderr, cmd.Stdout = env, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	done := func() {}
	if p.own {
		var err error
		if done, err = p.runAs(cmd); err != nil {
			return err
		}
	}
	defer done()
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer close(gone)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	s.cmd, s.gone, s.log = cmd, gone, log
	return <-started
}

func stopServe(ts *testscript.TestScript, neg bool, args []string) {
	s := ts.Value("service").(*service)
	sig := map[string]syscall.Signal{"TERM": syscall.SIGTERM, "KILL": syscall.SIGKILL}[args[0]]
	ts.Check(s.cmd.Process.Signal(sig))
	select {
	case <-s.gone:
	case <-time.After(2 * time.Minute):
		ts.Fatalf("the service is still there two minutes after %s\n%s", args[0], s.log)
	}
}

// clean ends all turns and the service, and returns the cgroups of turns that
// were left behind.
func (s *service) clean(socket string, p place) (left []string) {
	c := &client.Client{Socket: socket}
	if l, err := c.Turns(context.Background(), true, ""); err == nil {
		now := int64(0)
		for _, t := range l.Turns {
			if t.State == api.StateOpen || t.Alive > 0 {
				_, _ = c.Abandon(context.Background(), t.ID, api.AbandonRequest{GraceMS: &now, Leftovers: true})
			}
		}
	}
	// A receipt comes before its empty cgroup is removed; a service that is asked
	// to stop waits for that.
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.gone:
	case <-time.After(2 * time.Minute):
		_ = s.cmd.Process.Kill()
		<-s.gone
	}
	return p.left()
}

// testCgroup is a cgroup of one script of this process. Those of processes that
// are gone are removed.
func testCgroup(script string, make bool) (string, error) {
	m, err := cgroup.FindMount()
	if err != nil {
		return "", err
	}
	const head = "pinfold-test.cli."
	old, _ := filepath.Glob(filepath.Join(m.Path, head+"*"))
	for _, dir := range old {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), head), ".")
		if _, err := os.Stat("/proc/" + pid); err != nil {
			removeCgroup(dir)
		}
	}
	dir := filepath.Join(m.Path, fmt.Sprintf("%s%d.%s", head, os.Getpid(), script))
	if make {
		err = os.Mkdir(dir, 0o755)
	}
	return dir, err
}

// removeCgroup ends and removes dir, and returns what was below it.
func removeCgroup(dir string) []string {
	var below []string
	_ = filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() && p != dir {
			below = append(below, p)
		}
		return nil
	})
	_ = os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0)
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		for i := len(below) - 1; i >= 0; i-- {
			_ = os.Remove(below[i])
		}
		if err := os.Remove(dir); err == nil || os.IsNotExist(err) {
			return below
		}
	}
	return append(below, dir+"/… is not empty")
}

// syncBuffer is a buffer that may be read while the service writes.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
