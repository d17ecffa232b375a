package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"pinfold.dev/internal/sys"
)

// holder is to the peers what a keeper is to a turn: a subreaper in another
// cgroup, that starts what is to be ended and reaps it. Without it orphans
// would go to the machine's init, which may reap slowly.
type holder struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func (p *place) startHolder() (*holder, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	_, own, err := p.group("holder")
	if err != nil {
		return nil, err
	}
	defer own.Close()
	cmd := exec.Command(exe, "holder")
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(own.Fd())}
	h := &holder{cmd: cmd}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if h.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	h.out = bufio.NewReader(out)
	return h, cmd.Start()
}

// start starts a program in a cgroup and returns its pid.
func (h *holder) start(cgroup string, argv ...string) (int, error) {
	fmt.Fprintln(h.in, strings.Join(append([]string{cgroup}, argv...), "\t"))
	line, err := h.out.ReadString('\n')
	if err != nil {
		return 0, fmt.Errorf("the holder has gone: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		return 0, errors.New(strings.TrimSpace(line))
	}
	return pid, nil
}

// reaped waits until the holder has no child left.
func (h *holder) reaped() error {
	dir := fmt.Sprintf("/proc/%d/task", h.cmd.Process.Pid)
	return eventually("the holder has reaped all", func() bool {
		files, _ := filepath.Glob(dir + "/*/children")
		for _, f := range files {
			if b, err := os.ReadFile(f); err == nil && len(b) > 0 {
				return false
			}
		}
		return len(files) > 0
	})
}

func (h *holder) stop() error {
	h.in.Close()
	return h.cmd.Wait()
}

func eventually(what string, cond func() bool) error {
	for end := time.Now().Add(30 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return errors.New("not seen in time: " + what)
		}
	}
	return nil
}

// playHolder is the holder's process.
func playHolder() error {
	if err := sys.SetSubreaper(true); err != nil {
		return err
	}
	wake := make(chan struct{}, 1)
	go func() {
		for {
			if _, err := sys.Waitid(sys.PAll, 0, sys.WExited|sys.WAll); errors.Is(err, syscall.ECHILD) {
				<-wake
			}
		}
	}()
	for s := bufio.NewScanner(os.Stdin); s.Scan(); {
		words := strings.Split(s.Text(), "\t")
		pid, err := startIn(words[0], words[1:])
		if err != nil {
			fmt.Println(err)
			continue
		}
		select {
		case wake <- struct{}{}:
		default:
		}
		fmt.Println(pid)
	}
	return nil
}

// startIn starts a program in a cgroup, its session its own, as a keeper does.
func startIn(cgroup string, argv []string) (int, error) {
	dir, err := os.Open(cgroup)
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	return syscall.ForkExec(argv[0], argv, &syscall.ProcAttr{Dir: "/", Files: []uintptr{null.Fd(), null.Fd(), null.Fd()},
		Sys: &syscall.SysProcAttr{Setsid: true, UseCgroupFD: true, CgroupFD: int(dir.Fd())}})
}
