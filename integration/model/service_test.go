package model

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/client"
	"pinfold.dev/integration/guard"
)

// service is a `pinfold serve` with directories of its own.
type service struct {
	*client.Client // root's
	dir            string
	proc           *child
}

func newService() (*service, error) {
	dir, err := os.MkdirTemp(run.dir, "s.")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, err
	}
	if err := os.Mkdir(dir+"/tokens", 0o777); err != nil {
		return nil, err
	}
	if err := os.Chmod(dir+"/tokens", 0o777); err != nil {
		return nil, err
	}
	s := &service{dir: dir, Client: &client.Client{Socket: dir + "/sock"}}
	return s, s.start()
}

// start runs the program and waits until it answers.
func (s *service) start() error {
	log, err := os.OpenFile(s.dir+"/log", os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	before, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	cmd := exec.Command(run.bin+"/pinfold", "serve", "--socket", s.dir+"/sock", "--runtime-dir", s.dir+"/run", "--state-dir", s.dir+"/state",
		"--grade", string(run.grade), "--cgroup-parent", run.cgroup, "--init", run.bin+"/pinfold-init", "--grace", "0",
		"--bound", patience(30*time.Second).String(), "--log-level", "debug")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", log, log
	if s.proc, err = start(cmd); err != nil {
		return err
	}
	for end := time.Now().Add(patience(time.Minute)); ; time.Sleep(2 * time.Millisecond) {
		_, err := s.Host(context.Background())
		if err == nil && s.answered(before) {
			return nil
		}
		select {
		case <-s.proc.gone:
			return fmt.Errorf("the service ended: %s", s.proc.cmd.ProcessState)
		default:
		}
		if time.Now().After(end) {
			return cmp.Or(err, errors.New("a keeper does not answer"))
		}
	}
}

// answered tells that all those keepers have answered that the service has not waited
// for when it started.
func (s *service) answered(before int64) bool {
	b, _ := os.ReadFile(s.dir + "/log")
	return len(guard.Unanswered(string(b[min(before, int64(len(b))):]))) == 0
}

func (s *service) kill() {
	s.proc.kill()
	s.Close()
}

// stop ends the service as an administrator does, and tells what it has left.
func (s *service) stop() error {
	s.Close()
	_ = s.proc.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.proc.gone:
	case <-time.After(patience(time.Minute)):
		s.proc.kill()
		return errors.New("the service does not stop")
	}
	if st := s.proc.cmd.ProcessState; !st.Success() {
		return fmt.Errorf("the service, stopped, ended with %s", st)
	}
	var left []string
	if turns, err := os.ReadDir(s.dir + "/run/turns"); err != nil || len(turns) > 0 {
		left = append(left, fmt.Sprintf("records of live turns: %v (%v)", turns, err))
	}
	for _, d := range cgroups(run.cgroup) {
		if rel, _ := filepath.Rel(run.cgroup, d); strings.Contains(rel, "/") { // the service keeps one of its own, empty
			left = append(left, rel)
		}
	}
	for end := time.Now().Add(patience(time.Minute)); run.grade == api.GradeScope; time.Sleep(5 * time.Millisecond) {
		scopes := guard.Scopes(run.mount)
		if len(scopes) == 0 {
			break
		}
		if time.Now().After(end) {
			left = append(left, scopes...)
			break
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("left behind: %q", left)
	}
	return os.RemoveAll(s.dir)
}

func cgroups(dir string) (all []string) {
	_ = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			all = append(all, p)
		}
		return nil
	})
	return all
}

// tail is the end of the service's log.
func (s *service) tail() string {
	b, _ := os.ReadFile(s.dir + "/log")
	return string(b[max(0, len(b)-30000):])
}

// gateway is a process of some user that asks the service.
type gateway struct {
	*client.Client
	uid     uint32
	proc    *child
	mu      sync.Mutex
	control *net.UnixConn
	dead    bool
}

func newGateway(s *service, uid uint32) (*gateway, error) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	mine, theirs := os.NewFile(uintptr(pair[0]), "control"), os.NewFile(uintptr(pair[1]), "control")
	defer mine.Close()
	defer theirs.Close()
	c, err := net.FileConn(mine)
	if err != nil {
		return nil, err
	}
	g := &gateway{uid: uid, control: c.(*net.UnixConn)}
	g.Client = &client.Client{Socket: s.dir + "/sock", Dial: func(context.Context, string) (net.Conn, error) { return g.dial() }}
	cmd := exec.Command(run.exe, s.dir+"/sock")
	cmd.Env = []string{playEnv + "=gateway"}
	cmd.Dir, cmd.Stderr, cmd.ExtraFiles = "/", os.Stderr, []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	g.proc, err = start(cmd)
	return g, err
}

// dial has the gateway connect, so that the service sees it as the peer.
func (g *gateway) dial() (net.Conn, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, err := g.control.Write([]byte{'c'}); err != nil {
		return nil, err
	}
	b, oob := make([]byte, 1), make([]byte, 64)
	_, n, _, _, err := g.control.ReadMsgUnix(b, oob)
	if err != nil {
		return nil, err
	}
	msgs, err := syscall.ParseSocketControlMessage(oob[:n])
	if err != nil || len(msgs) != 1 {
		return nil, fmt.Errorf("the gateway could not connect: %w", errors.Join(err, syscall.ECONNREFUSED))
	}
	fds, err := syscall.ParseUnixRights(&msgs[0])
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fds[0]), "lent")
	defer f.Close()
	return net.FileConn(f)
}

// kill ends it, as the kernel does when memory is short.
func (g *gateway) kill() {
	g.dead = true
	g.proc.kill()
	g.Close()
	g.control.Close()
}
