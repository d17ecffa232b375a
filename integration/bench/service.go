package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/client"
	"pinfold.dev/internal/sys"
)

// place is where a run has its files and its cgroup.
type place struct {
	dir    string // programs and the service's state: a disk
	run    string // the service's runtime directory: memory, as /run is
	bin    string // pinfold and pinfold-init
	cgroup string // all that is started is in or below it
}

const cgroupName = "pinfold-bench."

// openPlace makes a run's directories and cgroup. What it makes carries our
// pid, so that the guard, and the next run, know what is a dead run's.
func openPlace(bin string) (*place, error) {
	m, _, err := sys.FindCgroup2()
	if err != nil {
		return nil, err
	}
	pid := strconv.Itoa(os.Getpid())
	p := &place{bin: bin, cgroup: filepath.Join(m.Path, cgroupName+pid)}
	if p.dir, err = os.MkdirTemp("", "pinfold-bench."+pid+"."); err != nil {
		return nil, err
	}
	p.run = filepath.Join(p.dir, "run")
	for _, mem := range []string{"/run", "/dev/shm"} {
		if typ, err := fsType(mem); err == nil && typ == tmpfsMagic {
			p.run = filepath.Join(mem, "pinfold-bench."+pid)
			break
		}
	}
	if err := os.MkdirAll(p.run, 0o755); err != nil {
		return nil, err
	}
	if err := os.Chmod(p.dir, 0o755); err != nil {
		return nil, err
	}
	if err := os.Mkdir(p.cgroup, 0o755); err != nil {
		return nil, fmt.Errorf("make a cgroup to measure in: %w", err)
	}
	if p.bin != "" {
		return p, nil
	}
	p.bin = filepath.Join(p.dir, "bin")
	return p, p.build()
}

const tmpfsMagic = 0x01021994

func fsType(path string) (int64, error) {
	var st syscall.Statfs_t
	err := syscall.Statfs(path, &st)
	return int64(st.Type), err
}

// build makes the programs as they are shipped.
func (p *place) build() error {
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", p.bin+"/", "pinfold.dev/cmd/pinfold", "pinfold.dev/cmd/pinfold-init")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the programs: %w\n%s", err, out)
	}
	return nil
}

// group makes a cgroup of this run's and opens it.
func (p *place) group(name string) (path string, dir *os.File, err error) {
	path = filepath.Join(p.cgroup, name)
	if err := os.Mkdir(path, 0o755); err != nil {
		return "", nil, err
	}
	dir, err = os.Open(path)
	return path, dir, err
}

// close ends and removes everything.
func (p *place) close() error {
	err := removeTree(p.cgroup)
	return errors.Join(err, os.RemoveAll(p.run), os.RemoveAll(p.dir))
}

// service is a running service and a client that keeps its connections.
type service struct {
	cmd    *exec.Cmd
	client *client.Client
	grade  api.Grade
	socket string
}

// serve starts a service. At grade cgroup its turns live below the run's own
// cgroup; at grade scope they are the service manager's.
func (p *place) serve(name string, grade api.Grade) (*service, error) {
	dir := filepath.Join(p.run, name)
	args := []string{"serve", "--runtime-dir", dir, "--state-dir", filepath.Join(p.dir, name), "--grade", string(grade), "--grace", "0"}
	if grade == api.GradeCgroup {
		path, f, err := p.group(name)
		if err != nil {
			return nil, err
		}
		f.Close()
		args = append(args, "--cgroup-parent", path)
	}
	_, own, err := p.group(name + "-service")
	if err != nil {
		return nil, err
	}
	defer own.Close()
	log, err := os.Create(filepath.Join(p.dir, name+".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	return p.startService(args, filepath.Join(dir, "pinfold.sock"), log, own)
}

// startService runs a service in a cgroup until it answers.
func (p *place) startService(args []string, socket string, log, own *os.File) (*service, error) {
	s := &service{cmd: exec.Command(filepath.Join(p.bin, "pinfold"), args...), socket: socket}
	s.cmd.Stderr = log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(own.Fd())}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	s.client = &client.Client{Socket: s.socket}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		h, err := s.client.Host(context.Background())
		if err == nil {
			s.grade = h.Grade
			return s, nil
		}
		if time.Now().After(end) {
			text, _ := os.ReadFile(log.Name())
			return nil, errors.Join(fmt.Errorf("the service does not answer: %w\n%s", err, text), s.stop())
		}
	}
}

func (s *service) stop() error {
	s.client.Close()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return s.cmd.Wait()
}

// begin opens a turn.
func (s *service) begin() (string, error) {
	t, err := s.client.Begin(context.Background(), api.BeginRequest{Label: "bench"})
	return t.ID, err
}

// launch starts a program in a turn.
func (s *service) launch(turn string, argv ...string) (string, error) {
	p, err := s.client.Launch(context.Background(), turn, api.LaunchRequest{Argv: argv, Cwd: "/"})
	return p.ID, err
}

// abandon ends a turn and makes sure that all of it ended.
func (s *service) abandon(turn string) (api.Receipt, error) {
	zero := int64(0)
	r, err := s.client.Abandon(context.Background(), turn, api.AbandonRequest{GraceMS: &zero})
	if err == nil && !r.Complete {
		err = fmt.Errorf("turn %s was not ended: %d survivors", turn, len(r.Survivors))
	}
	return r, err
}

// since runs f and returns how long it took.
func since(f func() error) (time.Duration, error) {
	start := time.Now()
	err := f()
	return time.Since(start), err
}

// runOne launches a program and sees it exit with 0.
func (s *service) runOne(turn, program string) error {
	return s.runs(turn, api.LaunchRequest{Argv: []string{program}, Cwd: "/"})
}

func (s *service) runs(turn string, req api.LaunchRequest, files ...*os.File) error {
	return well(s.client.Run(context.Background(), turn, req, files...))
}

// well tells whether a process has exited with 0.
func well(p api.Process, err error) error {
	if err == nil && (p.Status.State != api.ProcessExited || p.Status.Code != 0) {
		err = fmt.Errorf("%q ended with %+v", p.Argv, p.Status)
	}
	return err
}
