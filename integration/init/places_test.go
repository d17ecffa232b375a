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

	"pinfold.dev/cgroup"
)

// In a namespace inside a namespace, and below an init that is none.
func TestNested(t *testing.T) {
	builds(t, func(t *testing.T, bin string) {
		unshare := needProgram(t, "unshare")
		text := fmt.Sprintf("%s --pid --fork --kill-child=KILL %s -q -- sh -c 'echo $$ $PPID; exit 5'", unshare, bin)
		code, out := result(t, script(bin, []string{"-q"}, text))
		if _, rest, _ := strings.Cut(out, " "); code != 5 || strings.TrimSpace(rest) != "1" {
			t.Errorf("code %d, %q", code, out)
		}
	})
}

// As a child it is a subreaper, and what is none of its own it neither signals, nor
// waits for, nor counts: brothers, and who joined its PID namespace.
func TestStrangersAreLeftAlone(t *testing.T) {
	builds(t, func(t *testing.T, bin string) {
		file := filepath.Join(t.TempDir(), "status")
		text := fmt.Sprintf(`sleep 1000 & brother=$!
			%s -q --kill-remaining=300ms --status %s -- sh -c '(sleep 20 &) ; (setsid sleep 20 &); sleep 0.2; exit 5'; echo code $?
			kill -0 $brother && echo brother lives; kill $brother`, bin, file)
		_, out := result(t, stage{Argv: []string{"/bin/sh", "-c", text}})
		b, _ := os.ReadFile(file)
		if !strings.Contains(out, "code 5\nbrother lives") || !strings.Contains(string(b), `"orphans":2,`) {
			t.Errorf("%q, status %s", out, b)
		}
	})
}

// Who joins the namespace, as docker exec does, is its caller's child.
func TestJoined(t *testing.T) {
	builds(t, func(t *testing.T, bin string) {
		nsenter := needProgram(t, "nsenter")
		file := filepath.Join(t.TempDir(), "status")
		b := start(t, script(bin, []string{"--kill-remaining", "--status", file}, `trap 'exit 6' TERM; echo up; while :; do sleep 0.05; done`))
		b.says("up")
		join := exec.Command(nsenter, "-t", strconv.Itoa(b.cmd.Process.Pid), "-p", "-m", "sh", "-c", "trap 'echo asked' TERM; echo in; sleep 0.5; exit 9")
		var out output
		join.Stdout = &out
		if err := join.Start(); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(patience); !strings.Contains(out.String(), "in\n") && time.Now().Before(end); time.Sleep(time.Millisecond) {
		}
		err := join.Wait()
		if join.ProcessState.ExitCode() != 9 {
			t.Errorf("who joined ended with %v", err)
		}
		b.signal(syscall.SIGTERM)
		code := b.code()
		s, _ := os.ReadFile(file)
		if code != 6 || strings.Contains(out.String(), "asked") {
			t.Errorf("code %d, %q, status %s", code, out.String(), s)
		}
	})
}

// --kill-cgroup takes who has left all else, in the cgroup and those below; not
// where the cgroup is not the container's.
func TestKillCgroup(t *testing.T) {
	needRoot(t)
	mount, err := cgroup.FindMount()
	if err != nil || !strings.HasPrefix(mount.Path, "/sys/fs/cgroup") {
		missing(t, "cgroup v2 at /sys/fs/cgroup")
	}
	dir := filepath.Join(mount.Path, "pinfold-init-test."+strconv.Itoa(os.Getpid()))
	for _, d := range []string{dir, dir + "/below"} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			for range 6000 {
				if os.Remove(d) == nil {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
			t.Errorf("%s cannot be removed", d)
		})
	}
	buildsAlone(t, func(t *testing.T, bin string) {
		// The canary is in the cgroup's parent, and so are we.
		canary := exec.Command("sleep", "100")
		canary.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := canary.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = canary.Process.Kill(); _ = canary.Wait() }()
		text := fmt.Sprintf("%s -q --kill-cgroup -- sh -c 'setsid sleep 100 & sh -c \"echo 0 >%s/below/cgroup.procs; exec sleep 100\" & sleep 0.3; exit 4'; echo code $?", bin, dir)
		s := stage{Cgroups: []string{dir + "/cgroup.procs"}, Argv: []string{bin, "-q", "--kill-cgroup", "--", "sh", "-c",
			"setsid sleep 100 & sh -c 'echo 0 >" + dir + "/below/cgroup.procs; exec sleep 100' & sleep 0.3; exit 4"}}
		if code, out := result(t, s); code != 4 {
			t.Errorf("code %d, %q", code, out)
		}
		if b, _ := os.ReadFile(dir + "/below/cgroup.procs"); len(b) > 0 {
			t.Errorf("left: %q", b)
		}
		if canary.Process.Signal(syscall.Signal(0)) != nil {
			t.Error("the canary is dead")
		}
		// Not PID 1, and no cgroup namespace: somebody else's.
		_, out := result(t, stage{Cgroups: s.Cgroups, Argv: []string{"/bin/sh", "-c", "sleep 1000 & " + strings.Replace(text, "-q ", "", 1) + "; kill -0 $! && echo alive"}})
		if !strings.Contains(out, "left alone") || !strings.Contains(out, "alive\n") {
			t.Errorf("%q", out)
		}
	})
}

// Without /proc it does its work; what is left it finds as PID 1 only, and says so
// where it is not.
func TestWithoutProc(t *testing.T) {
	builds(t, func(t *testing.T, bin string) {
		file := filepath.Join(t.TempDir(), "up")
		text := `setsid sh -c 'trap "echo asked; exit" TERM; : >` + file + `; while :; do sleep 0.02; done' & until [ -e ` + file + ` ]; do sleep 0.02; done; exit 5`
		s := script(bin, []string{"--kill-remaining", "--kill-cgroup"}, text)
		s.NoProc = true
		code, out := result(t, s)
		if code != 5 || strings.Count(out, "asked\n") != 1 || !strings.Contains(out, "left alone") {
			t.Errorf("code %d, %q", code, out)
		}
		s.Argv = []string{"/bin/sh", "-c", bin + ` -v --kill-remaining -- sh -c "sleep 5 & exit 5"; echo code $?`}
		if _, out = result(t, s); !strings.Contains(out, "no /proc: what is left cannot be found, and stays") || !strings.Contains(out, "code 5") {
			t.Errorf("%q", out)
		}
	})
}
