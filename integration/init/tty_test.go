package inits

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// screen is a terminal that a box works at.
type screen struct {
	*box
	keys *os.File
}

// onTerminal starts something as the leader of a session with a terminal.
func onTerminal(t *testing.T, s stage) *screen {
	t.Helper()
	keys, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		missing(t, "pseudo terminals: "+err.Error())
	}
	t.Cleanup(func() { keys.Close() })
	var unlock, number int32
	control(t, keys, syscall.TIOCSPTLCK, &unlock)
	control(t, keys, syscall.TIOCGPTN, &number)
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	b := start(t, s, func(c *exec.Cmd) {
		c.Stdin, c.Stdout, c.Stderr = tty, tty, tty
		c.Env = append(c.Env, "PS1=$ ", "TERM=dumb")
		c.SysProcAttr.Setpgid, c.SysProcAttr.Setsid, c.SysProcAttr.Setctty = false, true, true
	})
	go func() {
		var p [4096]byte
		for {
			n, err := keys.Read(p[:])
			if err != nil {
				return
			}
			_, _ = b.out.Write(p[:n])
		}
	}()
	return &screen{b, keys}
}

func control(t *testing.T, f *os.File, what uintptr, arg *int32) {
	t.Helper()
	if _, _, e := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), what, uintptr(unsafe.Pointer(arg))); e != 0 {
		t.Fatal(e)
	}
}

func (s *screen) types(text string) {
	s.t.Helper()
	if _, err := s.keys.WriteString(text); err != nil {
		s.t.Fatal(err)
	}
}

// showsSoon waits for a text on the screen, but not long where it may not come.
func (s *screen) showsSoon(text string, most ...time.Duration) bool {
	for end := time.Now().Add(append(most, patience)[0]); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if strings.Contains(s.out.String(), text) {
			return true
		}
	}
	return false
}

func shell(t *testing.T) []string { return []string{bash(t), "--norc", "--noprofile", "-i"} }

func askStopOutside(t *testing.T, p peer) string {
	s := onTerminal(t, stage{Argv: shell(t)})
	s.types(p.bin + " -- sh -c 'echo up $((1+1)); while :; do sleep 0.05; done'\n")
	s.says("up 2")
	time.Sleep(300 * time.Millisecond)
	s.types("\x1a")
	time.Sleep(300 * time.Millisecond)
	s.types("echo back $((2+2))\n")
	return either(s.showsSoon("back 4", 5*patient(p)), "the shell goes on", "the shell hangs")
}

func askStopInside(t *testing.T, p peer) string {
	s := onTerminal(t, stage{Argv: append([]string{p.bin, "--"}, shell(t)...)})
	s.types("sh -c 'echo up $((1+1)); exec sleep 60'\n")
	s.says("up 2")
	time.Sleep(300 * time.Millisecond)
	s.types("\x1a")
	time.Sleep(300 * time.Millisecond)
	s.types("echo back $((2+2))\n")
	return either(s.showsSoon("back 4", 5*patient(p)), "works", "does not")
}

// stoppedBelow tells that some descendant of a process is stopped.
func stoppedBelow(pid int) bool {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, l := range lists {
		b, _ := os.ReadFile(l)
		for _, w := range strings.Fields(string(b)) {
			stat, _ := os.ReadFile("/proc/" + w + "/stat")
			kid, err := strconv.Atoi(w)
			if strings.Contains(string(stat), ") T ") || err == nil && stoppedBelow(kid) {
				return true
			}
		}
	}
	return false
}

// ^Z, fg, and ^C: the command goes on with the terminal, and ends; so does the shell.
func TestStopAndGoOn(t *testing.T) {
	builds(t, func(t *testing.T, bin string) {
		s := onTerminal(t, stage{Argv: shell(t)})
		s.types(bin + ` -q -- sh -c 'trap "echo int; exit 7" INT; echo up $((1+1)); read x; echo read $x; while :; do sleep 0.05; done'` + "\n")
		s.says("up 2")
		time.Sleep(200 * time.Millisecond)
		s.types("\x1a")
		s.says("Stopped")
		s.types("fg\n")
		for end := time.Now().Add(patience); stoppedBelow(s.cmd.Process.Pid) && time.Now().Before(end); { // until it has the terminal
			time.Sleep(5 * time.Millisecond)
		}
		time.Sleep(300 * time.Millisecond)
		s.types("word\n")
		s.says("read word")
		s.types("\x03")
		s.says("int")
		s.types("echo code $?\n")
		s.says("code 7")
		s.types("exit\n")
		s.code()
	})
}

// In the background it leaves the terminal alone.
func TestInTheBackground(t *testing.T) {
	builds(t, func(t *testing.T, bin string) {
		s := onTerminal(t, stage{Argv: shell(t)})
		s.types(bin + " -q -- sh -c 'echo up $((1+1)); sleep 1' &\n")
		s.says("up 2")
		s.types("echo still $((2+2))\n")
		if !s.showsSoon("still 4") {
			t.Errorf("the shell has lost its terminal:\n%s", s.out.String())
		}
	})
}
