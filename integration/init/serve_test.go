package inits

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/cgroup"
)

// made counts the cgroups of this run.
type made struct{ n atomic.Int64 }

// container is a stage for --serve: a container's cgroup, and directories of its
// own for what the service keeps.
func container(t *testing.T, bin, cgroup2 string, flags []string, text string) stage {
	t.Helper()
	pinfold, err := run.pinfold()
	if err != nil {
		t.Fatal(err)
	}
	s := script(bin, append([]string{"--serve=" + pinfold, "--serve-timeout=60s"}, flags...), "PATH="+filepath.Dir(pinfold)+":$PATH; "+text)
	s.Cgroup2, s.Tmpfs = cgroup2, []string{"/run", "/var/lib"}
	s.Cgroups = []string{ownCgroup(t) + "/cgroup.procs"}
	return s
}

// ownCgroup makes a cgroup that the test's container is in.
func ownCgroup(t *testing.T) string {
	t.Helper()
	mount, err := cgroup.FindMount()
	if err != nil || !strings.HasPrefix(mount.Path, "/sys/fs/cgroup") {
		missing(t, "cgroup v2 at /sys/fs/cgroup")
	}
	dir := filepath.Join(mount.Path, fmt.Sprintf("%s%d.%d", ours, os.Getpid(), run.made.n.Add(1)))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = os.WriteFile(dir+"/cgroup.kill", []byte("1"), 0)
		for range 6000 {
			if removeCgroup(dir); !there(dir) {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Errorf("%s cannot be removed", dir)
	})
	return dir
}

func there(path string) bool { _, err := os.Lstat(path); return err == nil }

// bystander is a process of nobody's, which must live.
func bystander(t *testing.T) {
	t.Helper()
	c := exec.Command("sleep", "1000")
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if c.Process.Signal(syscall.Signal(0)) != nil {
			t.Error("the canary is dead")
		}
		_ = c.Process.Kill()
		_ = c.Wait()
	})
}

// inTurn is a gateway that keeps a turn, whose process says when it is asked to end.
const inTurn = `turn=$(pinfold begin) || exit 1
	trap 'echo gateway asked; exit 7' TERM
	pinfold run --turn $turn -- sh -c 'trap "echo turn asked; exit" TERM; tail -1 /proc/self/cgroup; echo up; while :; do sleep 0.02; done' &
	while :; do sleep 0.05; done`

// The grade comes first. The command has the socket, a cgroup of its own, and turns
// beside it. Told to stop, it ends first, then its turns, with their grace.
func TestServe(t *testing.T) {
	builds(t, func(t *testing.T, bin string) {
		bystander(t)
		b := start(t, container(t, bin, "rw", []string{"--kill-remaining=20s", "--kill-cgroup"}, `tail -1 /proc/self/cgroup; echo at $PINFOLD_SOCKET; unset PINFOLD_SOCKET; pinfold ps >/dev/null && echo found; `+inTurn))
		b.says("up\n")
		b.signal(syscall.SIGTERM)
		if code := b.code(); code != 7 {
			t.Errorf("code %d", code)
		}
		out := b.out.String()
		first, _, _ := strings.Cut(out, "\n")
		if first != "pinfold-init: turns are held at grade cgroup: the service is ready on /run/pinfold/pinfold.sock" {
			t.Errorf("the first line is %q", first)
		}
		for _, text := range []string{"0::/pinfold-command.1\nat /run/pinfold/pinfold.sock\nfound\n", "/work/p1\nup\n", "state=abandoned reason=operator complete=true"} {
			if !strings.Contains(out, text) {
				t.Errorf("%q is missing", text)
			}
		}
		if g, p := strings.Index(out, "gateway asked"), strings.Index(out, "turn asked"); g < 0 || p < g {
			t.Errorf("the gateway was asked at %d, the turn at %d", g, p)
		}
		if t.Failed() {
			t.Log(out)
		}
	})
}

// A service that dies is started again; turns go on, and are found.
func TestServeAgain(t *testing.T) {
	builds(t, func(t *testing.T, bin string) {
		file := filepath.Join(t.TempDir(), "status")
		text := `turn=$(pinfold begin); pinfold run --turn $turn -- sleep 1000 &
			field() { sed 's/.*"'$1'":"*\([^,"}]*\).*/\1/' ` + file + `; }
			until pinfold ps | grep -q "1      1"; do sleep 0.05; done
			for k in 1 2; do
				until [ "$(field service)" = ready ] && [ "$(field restarts)" = $((k-1)) ]; do sleep 0.05; done
				kill -KILL $(field service_pid)
				until [ "$(field restarts)" = $k ] && pinfold ps >/dev/null 2>&1; do sleep 0.05; done
				until pinfold ps 2>/dev/null | grep -q "1      1"; do sleep 0.05; done; echo held # once its keeper has answered
			done; exit 6`
		b := start(t, container(t, bin, "rw", []string{"--status", file}, text))
		code := b.code()
		out := b.out.String()
		if code != 6 || strings.Count(out, "held\n") != 2 || !strings.Contains(out, "serve: killed by SIGKILL; turns go on, another is started in 100 ms") ||
			!strings.Contains(out, "the service is again ready") || !strings.Contains(out, "another is started in 200 ms") {
			t.Errorf("code %d\n%s", code, out)
		}
	})
}

// A second stop signal ends what does not heed the first.
func TestServeStopTwice(t *testing.T) {
	builds(t, func(t *testing.T, bin string) {
		b := start(t, container(t, bin, "rw", []string{"--kill-remaining=10m"}, strings.Replace(inTurn, "echo turn asked; exit", "echo turn asked", 1)))
		b.says("up\n")
		b.signal(syscall.SIGTERM)
		b.says("turn asked")
		b.signal(syscall.SIGTERM)
		if !b.endsIn(patience) || b.code() != 7 {
			t.Errorf("it does not end, or not with 7:\n%s", b.out.String())
		}
		if out := b.out.String(); !strings.Contains(out, "a stop signal: turns are killed at once") {
			t.Errorf("it is not told:\n%s", out)
		}
	})
}

// Without a service there is no command, unless that was allowed.
func TestServeNotReady(t *testing.T) {
	builds(t, func(t *testing.T, bin string) {
		dir := t.TempDir()
		mute, broken := filepath.Join(dir, "mute"), filepath.Join(dir, "broken")
		program(t, mute, "#!/bin/sh\nexec sleep 1000\n")
		program(t, broken, "#!/bin/sh\necho nonsense; exit 3\n")
		const soon = "--serve-timeout=300ms"
		for _, c := range []struct {
			program, says string
			code          int
			flags         []string
		}{
			{"/no/such", "pinfold-init: start /no/such serve: No such file or directory (--serve=PATH tells where it is)\n", 125, nil},
			{broken, "serve: ended with 3 before it was ready; the command is not started", 125, nil},
			{mute, "serve: not ready after 300 ms\n", 125, []string{soon}},
			{broken, "ended with 3; turns go on, another is started in", 0, []string{"--serve-optional"}},
			{mute, "serve: not ready after 300 ms\n", 0, []string{soon, "--serve-optional"}},
			{"/no/such", "No such file or directory (", 0, []string{"--serve-optional"}},
		} {
			s := container(t, bin, "rw", append([]string{"--serve=" + c.program}, c.flags...), "echo command")
			code, out := result(t, s)
			if code != c.code || !strings.Contains(out, c.says) || strings.Contains(out, "command\n") != (c.code == 0) {
				t.Errorf("%s %v: code %d, %q", c.program, c.flags, code, out)
			}
		}
	})
}

// becomes waits for the stage to execute the init.
func (b *box) becomes(bin string) {
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if c, _ := os.ReadFile("/proc/" + strconv.Itoa(b.cmd.Process.Pid) + "/cmdline"); strings.HasPrefix(string(c), bin) {
			return
		}
	}
	b.t.Fatalf("%s is not executed", bin)
}

// No stop signal is lost while the service starts, and what is for the command
// waits for it.
func TestServeEarlySignals(t *testing.T) {
	needRoot(t)
	t.Parallel()
	n := 10
	if long() {
		n = 100
	}
	for i := range n {
		b := start(t, container(t, run.early, "rw", nil, "trap 'exit 143' TERM; while :; do sleep 0.02; done"))
		b.becomes(run.early)
		// Before its first instruction the kernel drops a signal to any PID 1.
		for end := time.Now().Add(patience); !heeds(b.cmd.Process.Pid) && time.Now().Before(end); {
			time.Sleep(100 * time.Microsecond)
		}
		time.Sleep(time.Duration(i) * 100 * time.Millisecond / time.Duration(n))
		b.signal(syscall.SIGTERM)
		if code := b.code(); code != 143 {
			t.Fatalf("at %d: code %d\n%s", i, code, b.out.String())
		}
	}
	s := container(t, run.early, "rw", nil, "")
	python, err := lookPython()
	if err != nil {
		missing(t, "the program python3 (scripts/deps.sh installs it)")
	}
	stop := filepath.Join(t.TempDir(), "stop")
	s.Argv, s.Block = append(s.Argv[:3:3], "--", python, "-c", listen, stop), 1<<9|1<<39
	b := start(t, s)
	b.stop = stop
	b.becomes(run.early)
	for end := time.Now().Add(patience); !heeds(b.cmd.Process.Pid) && time.Now().Before(end); {
		time.Sleep(100 * time.Microsecond)
	}
	for range 5 {
		b.signal(syscall.Signal(40))
	}
	b.signal(syscall.SIGUSR1)
	b.hears(6, patience)
	if all := got(b.out.String()); len(all) != 6 {
		t.Errorf("%v arrived\n%s", all, b.out.String())
	}
}

// A command that does not start takes the service with it, and its code is the end's.
func TestServeNoCommand(t *testing.T) {
	builds(t, func(t *testing.T, bin string) {
		s := container(t, bin, "rw", nil, "")
		s.Argv = append(s.Argv[:3:3], "--", "/no/such")
		s.Argv = append([]string{"/bin/sh", "-c", `"$@"; echo code $?; for p in /proc/[0-9]*; do tr '\0' ' ' <$p/cmdline; done | grep -c "pinfold serv[e]"`, "sh"}, s.Argv...)
		if _, out := result(t, s); !strings.Contains(out, "start /no/such: No such file or directory\n") || !strings.Contains(out, "code 127\n0\n") {
			t.Error(out)
		}
	})
}

// Not as PID 1 it leaves no process and no cgroup behind.
func TestServeAsChild(t *testing.T) {
	builds(t, func(t *testing.T, bin string) {
		s := container(t, bin, "rw", nil, "pinfold run --detach -- sleep 1000; setsid sleep 1000 & sleep 0.1; exit 4")
		s.Argv = append([]string{"/bin/sh", "-c", `"$@"; echo code $?; find /sys/fs/cgroup -name 'pinfold-*'; for p in /proc/[0-9]*; do [ ${p#/proc/} = $$ ] || tr '\0' ' ' <$p/cmdline; done`, "sh"}, s.Argv...)
		_, out := result(t, s)
		_, after, ok := strings.Cut(out, "code 4\n")
		if !ok || strings.Contains(after, "pinfold-") || strings.Contains(after, "sleep") {
			t.Error(out)
		}
	})
}

// gradeFirst is a log whose first line tells the grade.
var gradeFirst = regexp.MustCompile(`^[^\n]* grade[ =](cgroup|subreaper)`)

// Read-only or missing, cgroup v2 is not needed; it is told why turns are held
// otherwise. Directories are found where root is read-only, for any user.
func TestServePlaces(t *testing.T) {
	const life = `pinfold run -- true && t=$(pinfold begin) && pinfold run --detach --turn $t -- sleep 1000 && pinfold abandon $t >/dev/null && echo abandoned; echo at $PINFOLD_SOCKET; exit 3`
	builds(t, func(t *testing.T, bin string) {
		for name, c := range map[string]struct {
			cgroup2, first, at string
			flags              []string
			user, readOnly     bool
			delegated          bool // to the user
		}{
			"read-only":       {"ro", "grade subreaper (make /sys/fs/cgroup/pinfold-init.1: Read-only file system): ", "/run/pinfold/pinfold.sock", nil, false, false, false},
			"made writable":   {"ro", "grade cgroup: ", "/run/pinfold/pinfold.sock", []string{"--cgroup-rw"}, false, false, false},
			"none":            {"none", "grade subreaper (no cgroup v2 is mounted that shows our own): ", "/run/pinfold/pinfold.sock", nil, false, false, false},
			"user":            {"none", "grade subreaper (", "/tmp/pinfold-UID/pinfold.sock", nil, true, false, false},
			"user, delegated": {"rw", "grade cgroup: ", "/tmp/pinfold-UID/pinfold.sock", nil, true, false, true},
			"user, all read":  {"none", "grade subreaper (", "/dev/shm/pinfold-UID/pinfold.sock", nil, true, true, false},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := container(t, bin, c.cgroup2, c.flags, life)
				s.Tmpfs, s.ReadOnly = append(s.Tmpfs, "/dev/shm"), c.readOnly
				if c.user {
					s.UID = 20_000 + int(run.made.n.Add(1))
					for _, file := range []string{"", "/cgroup.procs", "/cgroup.threads", "/cgroup.subtree_control"} {
						if dir := filepath.Dir(s.Cgroups[0]); c.delegated {
							check(os.Chown(dir+file, s.UID, s.UID))
						}
					}
					c.at = strings.Replace(c.at, "UID", strconv.Itoa(s.UID), 1)
					t.Cleanup(func() { _ = os.RemoveAll(filepath.Join("/tmp", filepath.Base(filepath.Dir(c.at)))) })
				}
				code, out := result(t, s)
				if code != 3 || !strings.Contains(out, "pinfold-init: turns are held at "+c.first) || !gradeFirst.MatchString(out) || !strings.Contains(out, "abandoned\n") || !strings.Contains(out, "at "+c.at) {
					t.Errorf("code %d\n%s", code, out)
				}
			})
		}
	})
}
