package inits

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// controller makes a cgroup of a controller of cgroup v1, where there is one.
func controller(t *testing.T, name string) (dir string) {
	t.Helper()
	needRoot(t)
	mount := "/sys/fs/cgroup/" + name
	if _, err := os.Stat(mount + "/cgroup.procs"); err != nil {
		missing(t, "the controller "+name+" of cgroup v1")
	}
	dir = filepath.Join(mount, "pinfold-init-test."+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 6000 {
			if os.Remove(dir) == nil {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Errorf("%s cannot be removed", dir)
	})
	return dir
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// program writes one that is executed. Nothing is forked meanwhile: a child that has
// not come to its own exec has the file open for writing, and nobody may execute it.
func program(t *testing.T, file, text string) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	write(t, file, text)
	if err := os.Chmod(file, 0o755); err != nil {
		t.Fatal(err)
	}
}

// With four tasks for the whole container it starts, and with all of them in use
// it goes on reaping and passing on. The fallback's threads want some more.
func TestFewPids(t *testing.T) {
	dir := controller(t, "pids")
	for bin, limit := range map[string]string{run.early: "4", run.plain: "9"} {
		t.Run(limit, func(t *testing.T) {
			write(t, dir+"/pids.max", limit)
			const text = `trap 'echo asked; exit 6' TERM; echo up; i=0; while [ $i -lt 3 ]; do (: &); (sleep 0.2 &) ; i=$((i+1)); done 2>/dev/null
				sleep 0.5; echo full; while :; do :; done`
			s := stage{Argv: []string{"/bin/sh", "-c", "echo 0 >" + dir + `/cgroup.procs; exec "$@"`, "sh", bin, "--", bash(t), "-c", text}}
			b := start(t, s)
			b.says("full")
			b.signal(syscall.SIGTERM)
			if code := b.code(); code != 6 || !strings.Contains(b.out.String(), "asked") {
				t.Errorf("code %d\n%s", code, b.out.String())
			}
		})
	}
}

// With as many processes as its user may have, it goes on reaping and passing on;
// where there may not even be a command, it says so.
func TestFewProcesses(t *testing.T) {
	builds(t, func(t *testing.T, bin string) {
		user := 20_000 + int(run.made.n.Add(1))
		few, start := 3, func(n int, text string) *box {
			s := stage{UID: user, Argv: []string{bash(t), "-c", fmt.Sprintf(`ulimit -u %d; exec "$@"`, n), "sh", bin, "--", bash(t), "-c", text}}
			return start(t, s)
		}
		if bin == run.plain {
			few += 6 // threads
		}
		b := start(few, `trap 'echo asked; exit 6' TERM; sleep 100 & echo full; while :; do :; done`)
		b.says("full")
		b.signal(syscall.SIGTERM)
		if code := b.code(); code != 6 || !strings.Contains(b.out.String(), "asked") {
			t.Errorf("code %d\n%s", code, b.out.String())
		}
		if bin == run.plain {
			return // its runtime does not start
		}
		b = start(1, "echo command")
		if code := b.code(); code != 125 || b.out.String() != "pinfold-init: start "+bash(t)+": Resource temporarily unavailable\n" {
			t.Errorf("code %d, %q", code, b.out.String())
		}
	})
}

// A limit of 20 MB of addresses, of which the Go runtime wants a thousand.
func TestLittleAddressSpace(t *testing.T) {
	needRoot(t)
	t.Parallel()
	want(t, script(run.early, nil, `exec "$0" -c 'ulimit -v 20000; exec `+run.early+` -q -- /bin/echo fits'`), 0, "fits")
}

func TestOutOfMemory(t *testing.T) {
	dir := controller(t, "memory")
	write(t, dir+"/memory.limit_in_bytes", "64M")
	buildsAlone(t, func(t *testing.T, bin string) {
		python, err := lookPython()
		if err != nil {
			missing(t, "the program python3 (scripts/deps.sh installs it)")
		}
		s := stage{Cgroups: []string{dir + "/cgroup.procs"}, Argv: []string{bin, "--", python, "-c", "b = bytearray(200 << 20); print(len(b))"}}
		code, out := result(t, s)
		if code != 137 || !strings.Contains(out, "out of memory") {
			t.Errorf("code %d, %q", code, out)
		}
	})
}

// The same of cgroup v2, where the command has a cgroup of its own, too. (A virtual
// machine of package integration has the controller where this machine has not.)
func TestOutOfMemoryInCgroup2(t *testing.T) {
	buildsAlone(t, func(t *testing.T, bin string) {
		const eat = "dd if=/dev/zero of=/dev/null bs=200M count=1"
		file := filepath.Join(t.TempDir(), "status")
		for _, s := range []stage{
			container(t, bin, "rw", []string{"--status", file}, "exec "+eat),
			{Cgroups: []string{ownCgroup(t) + "/cgroup.procs"}, Argv: []string{bin, "--status", file, "--", "/bin/sh", "-c", "exec " + eat}},
		} {
			dir := filepath.Dir(s.Cgroups[0])
			if !there(dir + "/memory.max") {
				missing(t, "the memory controller of cgroup v2")
			}
			write(t, dir+"/memory.max", "100M")
			if there(dir + "/memory.swap.max") {
				write(t, dir+"/memory.swap.max", "0")
			}
			code, out := result(t, s)
			told, _ := os.ReadFile(file)
			if code != 137 || !strings.Contains(out, "(with signal 'SIGKILL'): out of memory") || !strings.Contains(string(told), `"oom":true`) {
				t.Errorf("code %d, status %s\n%s", code, told, out)
			}
		}
	})
}

// Filters that refuse what an init could do without.
func TestRefusedCalls(t *testing.T) {
	builds(t, func(t *testing.T, bin string) {
		for _, calls := range []string{"prctl", "setpgid", "setsid", "ioctl", "rt_sigtimedwait", "signalfd4", "close_range", "fchdir",
			"pidfd_open", "clone3", "prctl,setpgid,setsid,ioctl,rt_sigtimedwait,close_range"} {
			for _, errno := range []syscall.Errno{syscall.EPERM, syscall.ENOSYS} {
				for _, flags := range [][]string{nil, {"-g"}, {"--session", "-g"}} {
					s := script(bin, flags, `trap 'echo asked; exit 6' TERM; echo up; while :; do sleep 0.02; done`)
					s.Errno, s.Calls = int(errno), strings.Split(calls, ",")
					b := start(t, s)
					b.says("up")
					b.signal(syscall.SIGTERM)
					if code := b.code(); code != 6 {
						t.Errorf("%s, %v, %q: code %d\n%s", calls, errno, flags, code, b.out.String())
					}
				}
			}
		}
	})
}

// Without standard input, output and error: what we open ourselves does not take
// their place, in the command or here. (The runtime has put /dev/null there.)
func TestNoStandardDescriptors(t *testing.T) {
	builds(t, func(t *testing.T, bin string) {
		for _, calls := range [][]string{nil, {"rt_sigtimedwait"}} {
			file := filepath.Join(t.TempDir(), "fds")
			s := script(bin, []string{"--on-stop", "pwd >>" + file, "--kill-remaining"},
				"sleep 0.1; cd /proc/1/fd; echo * >"+file+"; cd /proc/$$/fd; echo * >>"+file+"; exit 3")
			s.Close, s.Calls, s.Errno = []int{0, 1, 2}, calls, int(syscall.ENOSYS)
			code, _ := result(t, s)
			b, err := os.ReadFile(file)
			lines := strings.Split(string(b), "\n")
			if code != 3 || err != nil || len(lines) < 3 || bin == run.early && strings.ContainsAny(lines[0], "012") || lines[2] == "/" {
				t.Errorf("without %v: code %d, %q (%v)", calls, code, b, err)
			}
		}
	})
}
