package inits

import (
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
		for range 500 {
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

// With four tasks for the whole container it starts, and with all of them in use
// it goes on reaping and passing on. The stage needs threads of its own, so the
// limit is set when the init has begun.
func TestFewPids(t *testing.T) {
	dir := controller(t, "pids")
	cases := map[string]string{run.early: "4", run.plain: "9"}
	for bin, limit := range cases {
		t.Run(limit, func(t *testing.T) {
			text := `trap 'echo asked; exit 6' TERM; echo up; read go; i=0; while [ $i -lt 3 ]; do (: &) 2>/dev/null; i=$((i+1)); done; echo full; while :; do read x <&3 || :; done`
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			s := stage{Cgroups: []string{dir + "/cgroup.procs"}, Argv: []string{bin, "--", bash(t), "-c", strings.Replace(text, "read x <&3 || :", "read -t 0.05 x", 1)}}
			b := start(t, s, stdin(r))
			r.Close()
			b.says("up")
			write(t, dir+"/pids.max", limit)
			if _, err := w.WriteString("go\n"); err != nil {
				t.Fatal(err)
			}
			b.says("full")
			b.signal(syscall.SIGTERM)
			if code := b.code(); code != 6 {
				t.Errorf("code %d\n%s", code, b.out.String())
			}
			write(t, dir+"/pids.max", "max")
		})
	}
}

// A limit of 20 MB of addresses, of which the Go runtime wants a thousand.
func TestLittleAddressSpace(t *testing.T) {
	needRoot(t)
	want(t, script(run.early, nil, `exec "$0" -c 'ulimit -v 20000; exec `+run.early+` -q -- /bin/echo fits'`), 0, "fits")
}

func TestOutOfMemory(t *testing.T) {
	dir := controller(t, "memory")
	write(t, dir+"/memory.limit_in_bytes", "64M")
	builds(t, func(t *testing.T, bin string) {
		python, err := lookPython()
		if err != nil {
			missing(t, "python3")
		}
		s := stage{Cgroups: []string{dir + "/cgroup.procs"}, Argv: []string{bin, "--", python, "-c", "b = bytearray(200 << 20); print(len(b))"}}
		code, out := result(t, s)
		if code != 137 || !strings.Contains(out, "out of memory") {
			t.Errorf("code %d, %q", code, out)
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
