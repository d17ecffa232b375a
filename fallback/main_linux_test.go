package fallback

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/internal/sys"
	"pinfold.dev/internal/sys/systest"
)

var suite = systest.New(map[string]systest.Helper{
	"keeper":     keeper,
	"lab":        lab,
	"inside":     inside,
	"hidden":     hidden,
	"leaderless": func([]string) error { return systest.EndMainThread() },
	"threads":    threads,
})

func TestMain(m *testing.M) { suite.Main(m) }

// keeper is a child subreaper that runs a shell script and reaps whatever comes.
// For each line that it reads it says whether it has a child left.
func keeper(args []string) error {
	if err := sys.SetSubreaper(true); err != nil {
		return err
	}
	cmd := exec.Command("sh", "-c", args[0])
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() {
		for {
			_, err := sys.Waitid(sys.PAll, 0, sys.WExited)
			if errors.Is(err, syscall.ECHILD) {
				time.Sleep(time.Millisecond)
			}
		}
	}()
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		_, err := sys.Waitid(sys.PAll, 0, sys.WExited|sys.WNoHang|sys.WNoWait)
		fmt.Println(errors.Is(err, syscall.ECHILD))
	}
	return nil
}

// threads is a process with several.
func threads([]string) error { time.Sleep(time.Hour); return nil }

// labs are what is done in a PID namespace of its own, with a host that is made to
// lack something. What one returns is printed as JSON.
func labs() map[string]func(l *room) (any, error) {
	return map[string]func(*room) (any, error){
		"end":       endInLab,
		"groups":    groupsInLab,
		"reuse":     reuseInLab,
		"histories": historiesInLab,
	}
}

// room is a PID namespace of which the helper is init.
type room struct {
	args     []string
	procRoot *os.File // opened before /proc was taken away
	lacking  func() error
	host     *Host
}

// lab makes the room: args are the mode, the lab, and what that wants.
func lab(args []string) error {
	if err := syscall.Mount("", "/", "", syscall.MS_PRIVATE|syscall.MS_REC, ""); err != nil {
		return err
	}
	options := ""
	if args[0] == "hidepid" {
		options = "hidepid=2"
	}
	if err := syscall.Mount("proc", "/proc", "proc", 0, options); err != nil {
		return err
	}
	root, err := os.Open("/proc")
	if err != nil {
		return err
	}
	warmThreads()
	l := &room{args: args[2:], procRoot: root, lacking: modes()[args[0]]}
	f := labs()[args[1]]
	if f == nil || l.lacking == nil {
		return fmt.Errorf("no lab %q, or no mode %q", args[1], args[0])
	}
	if args[0] == "hidepid" {
		if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(54321), syscall.Setuid(54321)); err != nil {
			return err
		}
	}
	out, err := f(l)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(out)
}

// warmThreads makes the threads that Go may want: one that was made later would take a
// number that is to be somebody's.
func warmThreads() {
	const many = 16
	var up, down sync.WaitGroup
	release := make(chan struct{})
	up.Add(many)
	for range many {
		down.Go(func() {
			runtime.LockOSThread() // a locked goroutine has a thread of its own
			defer runtime.UnlockOSThread()
			up.Done()
			<-release
		})
	}
	up.Wait()
	close(release)
	down.Wait()
}

// modes are how the host is made to lack something, for those who end; what is
// ended has been started before.
func modes() map[string]func() error {
	return map[string]func() error{
		"all":           func() error { return nil },
		"hidepid":       func() error { return nil },
		"no children":   func() error { return nil }, // see enter
		"no open":       func() error { return systest.Refuse(syscall.ENOSYS, "pidfd_open") },
		"no open EPERM": func() error { return systest.Refuse(syscall.EPERM, "pidfd_open") },
		"no send":       func() error { return systest.Refuse(syscall.ENOSYS, "pidfd_send_signal") },
		"no pidfd":      func() error { return systest.Refuse(syscall.ENOSYS, "pidfd_open", "pidfd_send_signal") },
		"no pidfd EPERM": func() error {
			return systest.Refuse(syscall.EPERM, "pidfd_open", "pidfd_send_signal", "waitid", "clone3")
		},
		"old":     func() error { return systest.LikeOld(false) },
		"no proc": noProc,
		"user": func() error {
			return errors.Join(syscall.Setgroups(nil), syscall.Setgid(54321), syscall.Setuid(54321))
		},
		"foreign proc": func() error { // the one of the PID namespace above ours is below
			return syscall.Unmount("/proc", syscall.MNT_DETACH)
		},
	}
}

// noProc takes away all that is mounted on /proc.
func noProc() error {
	for {
		err := syscall.Unmount("/proc", syscall.MNT_DETACH)
		if err == syscall.EINVAL {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// enter takes away what the mode lacks, and looks at the host as it is then.
func (l *room) enter(mode string) error {
	if err := l.lacking(); err != nil {
		return fmt.Errorf("make a host of mode %q: %w", mode, err)
	}
	k := newKernel()
	if mode == "no children" {
		k.childLog = false // CONFIG_PROC_CHILDREN
	}
	l.host = &Host{k}
	return nil
}

// alive lists the processes of the room that have not exited, but ours.
func (l *room) alive() (map[int]sys.Stat, error) {
	if _, err := l.procRoot.Seek(0, 0); err != nil {
		return nil, err
	}
	names, err := l.procRoot.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	out := map[int]sys.Stat{}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == 1 {
			continue
		}
		b, err := sys.ReadFileAt(int(l.procRoot.Fd()), name+"/stat")
		if err != nil {
			continue
		}
		s, err := sys.ParseStat(b)
		if err == nil && s.State != 'Z' && s.State != 'X' {
			out[pid] = s
		}
	}
	return out, nil
}

// inRoom runs a lab and decodes what it says.
func inRoom(t *testing.T, out any, mode, name string, args ...string) {
	t.Helper()
	systest.Root(t)
	cmd := suite.Command(t, "lab", slices.Concat([]string{mode, name}, args)...)
	cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWPID | syscall.CLONE_NEWNS
	p := systest.Start(t, cmd)
	text := p.Rest(t)
	if st := p.Reap(); !st.Success() {
		t.Fatalf("%v: %s", st, text)
	}
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), out); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
}

// rerun starts this binary as a helper, from within one.
func rerun(name string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), "PINFOLD_TEST_HELPER="+name)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// startAs starts a command, under a number of our choice unless that is 0.
func startAs(pid int, cmd *exec.Cmd) (*exec.Cmd, error) {
	if pid > 0 {
		if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(pid-1)), 0); err != nil {
			return nil, err
		}
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if pid > 0 && cmd.Process.Pid != pid {
		return nil, fmt.Errorf("got pid %d instead of %d", cmd.Process.Pid, pid)
	}
	return cmd, nil
}

func sleepCommand() *exec.Cmd { return exec.Command("sleep", "1000") }

// end kills and reaps.
func end(cmd *exec.Cmd) {
	_ = syscall.Kill(cmd.Process.Pid, syscall.SIGKILL) // os has taken pidfds for granted before they were taken away
	_ = cmd.Wait()
}

// rounds is how often something is tried: few times, or many with
// PINFOLD_TEST_LONG=1.
func rounds(few, many int) int {
	if os.Getenv("PINFOLD_TEST_LONG") == "1" {
		return many
	}
	return few
}
