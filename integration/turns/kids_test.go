package turns

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// kids are the children of this process: those that tests have started, and,
// since it is a subreaper, whatever lost its parents below it. The latter are
// reaped, as an init does; they are nobody's to wait for.
type kids struct {
	mu    sync.Mutex
	known map[int]bool
}

// child is a process that a test has started.
type child struct {
	cmd  *exec.Cmd
	pid  int
	gone chan struct{} // closed once it was reaped
	err  error         // of Wait; valid then
}

func newKids() *kids {
	k := &kids{known: map[int]bool{}}
	go func() {
		for range time.Tick(20 * time.Millisecond) {
			k.reap()
		}
	}()
	return k
}

// start starts a process that dies when this one does, unless the command says
// otherwise. It keeps a thread for as long as the process lives: the kernel
// sends a parent-death signal when the thread ends that forked.
func (k *kids) start(cmd *exec.Cmd) (*child, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	}
	c := &child{cmd: cmd, gone: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		k.mu.Lock()
		err := cmd.Start()
		if err == nil {
			c.pid = cmd.Process.Pid
			k.known[c.pid] = true
		}
		k.mu.Unlock()
		started <- err
		if err != nil {
			return
		}
		c.err = cmd.Wait()
		k.mu.Lock()
		delete(k.known, c.pid)
		k.mu.Unlock()
		close(c.gone)
	}()
	return c, <-started
}

// output runs a command to its end and returns what it wrote.
func (k *kids) output(cmd *exec.Cmd) (string, error) {
	var b bytes.Buffer
	cmd.Stdout, cmd.Stderr = &b, &b
	c, err := k.start(cmd)
	if err != nil {
		return "", err
	}
	<-c.gone
	return b.String(), c.err
}

// kill ends it; it is a child of ours that nobody has reaped.
func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	<-c.gone
}

// children lists the children that no test has started.
func (k *kids) children() (pids []int) {
	tasks, _ := filepath.Glob("/proc/self/task/*/children")
	for _, f := range tasks {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // a thread that has ended
		}
		for _, w := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(w); err == nil && !k.known[pid] {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// reap takes the status of adopted children that have ended.
func (k *kids) reap() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, pid := range k.children() {
		if st := stateOf(pid); st == 'Z' {
			_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
		}
	}
}

// strangers tells of children that no test has started and that are still
// there after a while. Between tests there must be none.
func (k *kids) strangers(wait time.Duration) []string {
	for end := time.Now().Add(wait); ; time.Sleep(5 * time.Millisecond) {
		k.reap()
		k.mu.Lock()
		var out []string
		for _, pid := range k.children() {
			out = append(out, fmt.Sprintf("%d %c %s", pid, stateOf(pid), cmdline(pid)))
		}
		k.mu.Unlock()
		if len(out) == 0 || time.Now().After(end) {
			slices.Sort(out)
			return out
		}
	}
}

// stateOf is the letter of /proc/pid/stat, or 0 where there is no such process.
func stateOf(pid int) byte {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if i := bytes.LastIndexByte(b, ')'); err == nil && i >= 0 && i+2 < len(b) {
		return b[i+2]
	}
	return 0
}

func cmdline(pid int) string {
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	return strings.TrimSpace(strings.ReplaceAll(string(b), "\x00", " "))
}
