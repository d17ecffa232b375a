// Package guard cleans up after tests that hold processes: when the test's own
// process is killed, nothing else would end what outlives a service by design.
package guard

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"pinfold.dev/internal/sys"
)

// Guard is a process that outlives the test's.
type Guard struct {
	pipe io.WriteCloser
	cmd  *exec.Cmd
}

// Start starts one: this very program, with the variable set, which is to call
// Play then. It sees to the cgroup and the directory.
func Start(exe, variable, cgroup, dir string) (*Guard, error) {
	cmd := exec.Command(exe)
	cmd.Env = []string{variable + "=" + cgroup + "\t" + dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the guard: %w", err)
	}
	return &Guard{pipe, cmd}, nil
}

// Held has it see to one more cgroup, elsewhere, as long as that is the same.
func (g *Guard) Held(cgroup string) error {
	ino, err := sys.InoAt(sys.AtFDCWD, cgroup)
	if err == nil {
		_, err = fmt.Fprintf(g.pipe, "%d %s\n", ino, cgroup)
	}
	return err
}

// Done lets it go: there is nothing to clean up.
func (g *Guard) Done() error {
	_, err := fmt.Fprintln(g.pipe, "done")
	return errors.Join(err, g.pipe.Close(), g.cmd.Wait())
}

// Play is the guard: it acts when its standard input ends without "done".
func Play(spec string) int {
	b, _ := io.ReadAll(os.Stdin)
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	if lines[len(lines)-1] == "done" {
		return 0
	}
	cgroup, dir, _ := strings.Cut(spec, "\t")
	for _, l := range lines {
		want, held, ok := strings.Cut(l, " ")
		if ino, err := sys.InoAt(sys.AtFDCWD, held); ok && err == nil && fmt.Sprint(ino) == want {
			RemoveTree(held)
		}
	}
	RemoveTree(cgroup)
	_ = os.RemoveAll(dir)
	return 0
}

// Sweep removes the cgroups of runs whose process, the end of their name, is gone.
func Sweep(mount, prefix string) {
	old, _ := filepath.Glob(filepath.Join(mount, prefix+"*"))
	for _, dir := range old {
		pid := strings.TrimPrefix(filepath.Base(dir), prefix)
		if _, err := os.Stat("/proc/" + pid); errors.Is(err, fs.ErrNotExist) {
			RemoveTree(dir)
		}
	}
}

// RemoveTree ends what is in a cgroup that is ours, removes it with those below,
// and tells which of those were populated, or could not be removed.
func RemoveTree(dir string) (left []string) {
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		all := below(dir)
		for _, p := range all {
			if b, err := os.ReadFile(p + "/cgroup.procs"); err == nil && len(b) > 0 && !slices.Contains(left, p) {
				left = append(left, p)
			}
		}
		_ = os.WriteFile(dir+"/cgroup.freeze", []byte("0"), 0)
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

// below are a cgroup and those in it, the outer ones first.
func below(dir string) (all []string) {
	_ = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			all = append(all, p)
		}
		return nil
	})
	return all
}
