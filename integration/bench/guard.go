package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// guard is a process that cleans up when this one is killed: turns outlive
// their service by design, so nothing else would end them.
type guard struct {
	cmd  *exec.Cmd
	pipe io.WriteCloser
}

func startGuard(p *place) (*guard, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(exe, "guard", p.cgroup, p.run, p.dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	return &guard{cmd, pipe}, cmd.Start()
}

func (g *guard) stop() error {
	g.pipe.Close()
	return g.cmd.Wait()
}

// playGuard cleans up when its standard input ends. After an orderly end there
// is nothing left to do.
func playGuard(args []string) error {
	if len(args) != 3 {
		return errors.New("guard: wants a cgroup and two directories")
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	return errors.Join(removeTree(args[0]), os.RemoveAll(args[1]), os.RemoveAll(args[2]))
}

// removeTree ends what is in a cgroup of ours and removes it with those below.
func removeTree(dir string) error {
	var err error
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		_ = os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0)
		var all []string
		_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				all = append(all, path)
			}
			return nil
		})
		for _, path := range slices.Backward(all) {
			_ = os.Remove(path)
		}
		if _, err = os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
	}
	return fmt.Errorf("remove cgroup %s: it is still there", dir)
}

// sweep removes what killed runs have left.
func sweep(mount string) {
	old, _ := filepath.Glob(filepath.Join(mount, cgroupName+"*"))
	for _, dir := range old {
		if _, err := os.Stat("/proc/" + filepath.Ext(dir)[1:]); errors.Is(err, fs.ErrNotExist) {
			_ = removeTree(dir)
		}
	}
}
