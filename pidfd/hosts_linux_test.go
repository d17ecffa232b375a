package pidfd

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys"
	"pinfold.dev/internal/sys/systest"
)

// asOld does in a process that sees an old kernel what the tests do in one that
// sees a new one. It prints what it finds of process args[0], thread args[1].
func asOld(args []string) error {
	if err := systest.LikeOld(false); err != nil {
		return err
	}
	pid, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	tid, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	fd, err := sys.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	h := FromFD(fd, pid+1000) // so that the number has to come from fdinfo
	defer h.Close()
	id, err := h.Identity()
	if err != nil {
		return err
	}
	v, _ := h.Verify(id)
	own := FromFD(mustOpen(os.Getpid()), pid)
	defer own.Close()
	refused := errors.Is(own.Signal(syscall.SIGKILL), ErrRefused)
	var loc Locator
	th, cgroup, err := loc.OpenThread(tid)
	if err != nil {
		return err
	}
	defer th.Close()
	path, err := h.CgroupPath()
	if err != nil {
		return err
	}
	fmt.Println(id.PID, id.Ino, id.StartTicks, id.CgroupID, v, refused, th.PID(), cgroup, path, th.Signal(syscall.SIGTERM))
	return nil
}

func mustOpen(pid int) int {
	fd, err := sys.PidfdOpen(pid, 0)
	if err != nil {
		panic(err)
	}
	return fd
}

func TestOldKernel(t *testing.T) {
	p := systest.Start(t, suite.Command(t, "threads"))
	tid := p.Line(t)
	h := open(t, p.PID())
	want, err := h.Identity()
	if err != nil {
		t.Fatal(err)
	}
	path, err := h.CgroupPath()
	if err != nil {
		t.Fatal(err)
	}
	old := systest.Start(t, suite.Command(t, "old", strconv.Itoa(p.PID()), tid))
	got := old.Line(t)
	expect := fmt.Sprintln(want.PID, 0, want.StartTicks, want.CgroupID, api.VerdictOwned, true, p.PID(), want.CgroupID, path, nil)
	if got+"\n" != expect {
		t.Errorf("got  %s\nwant %s", got, expect)
	}
	if sig := p.Reap().Sys().(syscall.WaitStatus).Signal(); sig != syscall.SIGTERM {
		t.Errorf("ended by %v", sig)
	}
}

// ownProc mounts the /proc of a new PID namespace in a new mount namespace.
func ownProc() error {
	if err := syscall.Mount("", "/", "", syscall.MS_PRIVATE|syscall.MS_REC, ""); err != nil {
		return err
	}
	return syscall.Mount("proc", "/proc", "proc", 0, "")
}

// startAs starts a sleeper, under a number of our choice unless that is 0.
func startAs(pid int) (*exec.Cmd, error) {
	if pid > 0 {
		if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(pid-1)), 0); err != nil {
			return nil, err
		}
	}
	cmd := exec.Command("sleep", "1000")
	return cmd, cmd.Start()
}

// reuse runs as init of a PID namespace, where it can have a number handed out
// again, and tells what is said of the recorded one: with the pidfs inode and
// without.
func reuse([]string) error {
	err := ownProc()
	for try := 0; err == nil && try < 100; try++ {
		if err = reuseOnce(); !errors.Is(err, errTaken) {
			return err
		}
		err = nil
	}
	return cmp.Or(err, errTaken)
}

// errTaken: a thread of Go's got the number.
var errTaken = errors.New("the number was somebody else's")

func reuseOnce() error {
	start := startAs
	x, err := start(0)
	if err != nil {
		return err
	}
	h, err := Open(x.Process.Pid)
	if err != nil {
		return err
	}
	defer h.Close()
	rec, err := h.Identity()
	if err != nil {
		return err
	}
	if err := x.Process.Kill(); err != nil {
		return err
	}
	_ = x.Wait()
	y, err := start(rec.PID)
	if err != nil {
		return err
	}
	if y.Process.Pid != rec.PID {
		err := y.Process.Kill()
		_ = y.Wait()
		return cmp.Or(err, errTaken)
	}
	_, byNumber, _ := OpenVerified(rec)
	byHandle, _ := h.Verify(rec)
	old := rec
	old.Ino, old.CgroupID = 0, 0
	_, byTick, ev := OpenVerified(old)
	fmt.Println(byNumber, byHandle, h.Signal(syscall.SIGKILL) != nil, byTick, rec.Ino != 0, strings.Join(ev, ","))
	h2, err := Open(y.Process.Pid)
	if err != nil {
		return err
	}
	defer h2.Close()
	if exited, err := h2.Exited(); exited || err != nil {
		return fmt.Errorf("the new one was hit: %v %v", exited, err)
	}
	return nil
}

func TestReuse(t *testing.T) {
	systest.Root(t)
	for range 5 {
		cmd := suite.Command(t, "reuse")
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWPID | syscall.CLONE_NEWNS
		p := systest.Start(t, cmd)
		f := strings.Fields(p.Line(t))
		if st := p.Reap(); !st.Success() {
			t.Fatal(st)
		}
		if f[4] == "true" && f[0] != "foreign" {
			t.Errorf("by number: %s", f[0])
		}
		if f[1] != "gone" || f[2] != "true" {
			t.Errorf("by handle: %s, signal refused %s", f[1], f[2])
		}
		// Without the inode the tick tells, unless both began in the same.
		t.Logf("by pid and start tick: %s", f[3])
	}
}
