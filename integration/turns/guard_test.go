package turns

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"pinfold.dev/internal/sys"
)

// What a run makes carries its pid, so that a later run finds what a dead one
// has left.
const (
	cgroupPrefix = "pinfold-test.turns."
	dirPrefix    = "pinfold-turns."
)

// guard is a process that outlives this one and cleans up after it: a turn
// outlives its service by design, so nothing else would end it.
type guard struct {
	mu   sync.Mutex
	pipe io.WriteCloser
	proc *child
}

func startGuard(w *world) (*guard, error) {
	r, pw, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	cmd := exec.Command(w.exe)
	cmd.Env = []string{helperEnv + "=guard", "PATH=" + os.Getenv("PATH")}
	cmd.Stdin = r
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	p, err := w.kids.start(cmd)
	if err != nil {
		return nil, err
	}
	useHelper("guard")
	g := &guard{pipe: pw, proc: p}
	g.tell("cgroup", w.cgroup)
	g.tell("dir", w.dir)
	return g, nil
}

// tell has the guard see to something: cgroup DIR, held DIR INODE, dir DIR,
// thaw MOUNTPOINT.
func (g *guard) tell(words ...string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	fmt.Fprintln(g.pipe, strings.Join(words, "\t"))
}

func (g *guard) stop() error {
	g.tell("done")
	g.pipe.Close()
	<-g.proc.gone
	if g.proc.err != nil {
		return fmt.Errorf("the guard: %w", g.proc.err)
	}
	return nil
}

// playGuard is the guard process: it acts when its standard input ends.
func playGuard([]string) int {
	var lines [][]string
	for s := bufio.NewScanner(os.Stdin); s.Scan(); {
		lines = append(lines, strings.Split(s.Text(), "\t"))
	}
	for _, l := range lines {
		switch l[0] {
		case "thaw":
			_ = exec.Command("fsfreeze", "-u", l[1]).Run()
		case "done":
			return 0
		}
	}
	for _, l := range lines {
		switch l[0] {
		case "held":
			if ino, err := sys.InoAt(sys.AtFDCWD, l[1]); err == nil && fmt.Sprint(ino) == l[2] {
				removeTree(l[1])
			}
		case "cgroup":
			removeTree(l[1])
		}
	}
	for _, l := range lines {
		switch l[0] {
		case "thaw":
			_ = exec.Command("umount", "-l", l[1]).Run()
		case "dir":
			_ = os.RemoveAll(l[1])
		}
	}
	return 0
}

// sweep removes the cgroups of runs whose process is gone.
func sweep(mount string) {
	old, _ := filepath.Glob(filepath.Join(mount, cgroupPrefix+"*"))
	for _, dir := range old {
		pid := strings.TrimPrefix(filepath.Base(dir), cgroupPrefix)
		if _, err := os.Stat("/proc/" + pid); errors.Is(err, fs.ErrNotExist) {
			removeTree(dir)
		}
	}
}

// removeTree ends what is in a cgroup that is ours, removes it with those
// below, and tells which of those were populated, or could not be removed.
func removeTree(dir string) (left []string) {
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
	_ = os.WriteFile(dir+"/cgroup.freeze", []byte("0"), 0)
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
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
