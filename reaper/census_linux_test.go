package reaper_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/internal/sys"
	"pinfold.dev/internal/wire"
)

func (b *bed) census() wire.Census {
	b.t.Helper()
	m := b.call(wire.Message{Op: wire.OpCensus})
	if m.Error != nil {
		b.t.Fatalf("census: %+v", m.Error)
	}
	return *m.Census
}

func (b *bed) kill() {
	b.t.Helper()
	if err := os.WriteFile(filepath.Join(b.work, "cgroup.kill"), []byte("1"), 0); err != nil {
		b.t.Fatal(err)
	}
}

func TestOrphansAreReaped(t *testing.T) {
	b := newBed(t)
	// Twenty orphans, each forked twice and in a session of its own.
	b.mustLaunch(request("p1", "sh", "-c", `for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do (setsid sleep 0.3 &) ; done; exit 3`))
	if e := b.exitOf("p1"); e.Code != 3 {
		t.Errorf("exit %+v", e)
	}
	eventually(t, "orphans and their leaf have gone", func() bool { return b.keeperChildren() == "" && len(b.leaves()) == 0 })
	if c := b.census(); c.Reaped < 21 || len(c.Outside) != 0 {
		t.Errorf("census %+v", c)
	}
}

// A descendant that dies is nobody's end but its own.
func TestDescendantIsKilled(t *testing.T) {
	b := newBed(t)
	l := request("p1", "sh", "-c", `sleep 60 & kill -9 $!; wait $!; echo $?`)
	if out := b.output(l); !strings.HasSuffix(out, "137\n") {
		t.Errorf("output %q", out)
	}
	s := b.mustLaunch(request("p2", "sh", "-c", `(setsid sleep 60 & echo $! > `+b.dir+`/pid); exec sleep 60`))
	var orphan int
	eventually(t, "the orphan's pid is written", func() bool {
		text, _ := os.ReadFile(filepath.Join(b.dir, "pid"))
		orphan, _ = strconv.Atoi(strings.TrimSpace(string(text)))
		return orphan > 0
	})
	before := b.census().Reaped
	syscall.Kill(orphan, syscall.SIGKILL)
	eventually(t, "the orphan is reaped", func() bool { return b.census().Reaped == before+1 })
	if syscall.Kill(s.PID, 0) != nil {
		t.Error("p2 is dead")
	}
}

func TestCensusListsWhoHasLeft(t *testing.T) {
	b := newBed(t)
	away := filepath.Join(b.cgroup, "..", filepath.Base(b.cgroup)+".away")
	if err := os.Mkdir(away, 0o755); err != nil {
		t.Fatal(err)
	}
	defer removeCgroup(away)
	leave := "echo $$ > " + away + "/cgroup.procs; "
	launched := b.mustLaunch(request("p1", "sh", "-c", leave+"exec sleep 60"))
	b.mustLaunch(request("p2", "sh", "-c", "(setsid sh -c '"+leave+"exec sleep 61' &)"))
	b.exitOf("p2")
	b.mustLaunch(request("stays", "sleep", "600"))
	eventually(t, "two have left", func() bool {
		text, _ := os.ReadFile(away + "/cgroup.procs")
		return strings.Count(string(text), "\n") == 2
	})
	eventually(t, "both execute", func() bool { // their names are sleep then
		n := 0
		for _, m := range b.census().Outside {
			if m.Comm == "sleep" {
				n++
			}
		}
		return n == 2
	})
	b.kill()
	if e := b.exitOf("stays"); e.Signal != 9 {
		t.Errorf("exit %+v", e)
	}
	out := b.census().Outside
	if len(out) != 2 {
		t.Fatalf("outside: %+v", out)
	}
	for _, m := range out {
		if !strings.HasSuffix(m.Cgroup, "/"+filepath.Base(away)) || m.Comm != "sleep" || (m.Process == "p1") != (m.PID == launched.PID) {
			t.Errorf("member %+v", m)
		}
	}
	b.call(wire.Message{Op: wire.OpSignal, Signal: &wire.Signal{Process: "p1", Number: 9}})
	b.exitOf("p1")
	if out := b.census().Outside; len(out) != 1 || out[0].Process != "" {
		t.Errorf("outside: %+v", out)
	}
}

// Of whom only the main thread has ended is there, and tells where by another.
func TestCensusListsWhoHasLeftWithoutMainThread(t *testing.T) {
	b := newBed(t)
	away := filepath.Join(b.cgroup, "..", filepath.Base(b.cgroup)+".away")
	if err := os.Mkdir(away, 0o755); err != nil {
		t.Fatal(err)
	}
	defer removeCgroup(away)
	l := request("p1", "sh", "-c", "(setsid "+must(os.Executable())+" "+away+" &)")
	l.Env = append(l.Env, "PINFOLD_TEST_HELPER=headless")
	b.mustLaunch(l)
	b.exitOf("p1")
	pid := 0
	defer func() {
		if pid > 1 { // the keeper's child, which it has not reaped; cgroup.kill does not end it
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}()
	eventually(t, "its main thread has ended, and no other", func() bool {
		if _, err := fmt.Sscan(b.keeperChildren(), &pid); err != nil {
			return false
		}
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		st, err := sys.ParseStat(text)
		return err == nil && st.State == 'Z' && st.Threads > 1
	})
	b.kill()
	out := b.census().Outside
	if len(out) != 1 || out[0].PID != pid || !strings.HasSuffix(out[0].Cgroup, "/"+filepath.Base(away)) {
		t.Errorf("outside: %+v", out)
	}
}

// Whom the keeper cannot look at, as where a set-user-ID program runs and /proc hides
// it, it does not pass over in silence.
func TestCensusTellsWhomItCannotSee(t *testing.T) {
	b := newKeeper(t, func(c *exec.Cmd) {
		c.SysProcAttr.Cloneflags |= syscall.CLONE_NEWNS
		dir := c.Args[len(c.Args)-1]
		if err := errors.Join(os.Chown(dir, 65534, 65534), os.Chmod(filepath.Dir(dir), 0o755)); err != nil {
			t.Fatal(err)
		}
		c.Args = append([]string{"hidden", keeperBinary}, c.Args[1:]...)
		c.Path, c.Env = must(os.Executable()), []string{"PINFOLD_TEST_HELPER=hidden"}
	})
	for _, dir := range []string{b.cgroup, b.work} {
		for _, f := range []string{"", "cgroup.procs"} {
			if err := os.Chown(filepath.Join(dir, f), 65534, 65534); err != nil {
				t.Fatal(err)
			}
		}
	}
	b.mustHold(false)
	program := filepath.Join(scratch, "sleep-as-root")
	text := must(os.ReadFile(must(exec.LookPath("sleep"))))
	if err := errors.Join(os.WriteFile(program, text, 0o755), os.Chmod(program, 0o755|os.ModeSetuid)); err != nil {
		t.Fatal(err)
	}
	b.mustLaunch(request("p1", "sleep", "600"))
	if c := b.census(); len(c.Outside) != 0 || c.Unseen != "" {
		t.Errorf("census %+v", c)
	}
	s := b.mustLaunch(request("p2", program, "600"))
	if status := must(os.ReadFile(fmt.Sprintf("/proc/%d/status", s.PID))); !strings.Contains(string(status), "\nUid:\t65534\t0\t") {
		var fs syscall.Statfs_t
		err := syscall.Statfs(scratch, &fs)
		if locked := strings.Contains(string(status), "\nNoNewPrivs:\t1"); !locked && (err != nil || fs.Flags&syscall.MS_NOSUID == 0) {
			t.Fatalf("a set-user-ID program does not run as its owner, though its mount lets it (%v): %s", err, status)
		}
		t.Skip("set-user-ID programs do nothing here: the temporary directory is mounted nosuid, or no_new_privs is set")
	}
	if c := b.census(); len(c.Outside) != 0 || !strings.Contains(c.Unseen, "hidepid") {
		t.Errorf("census %+v", c)
	}
}

// Right after a kill, the dead are not told of, and thousands of zombies are no
// burden.
func TestCensusAfterAKill(t *testing.T) {
	b := newBed(t)
	const n = 2000
	b.mustLaunch(request("p1", "sh", "-c", fmt.Sprintf("i=0; while [ $i -lt %d ]; do sleep 60 & i=$((i+1)); done; touch %s/ready; wait", n, b.dir)))
	eventually(t, "all are there", func() bool { _, err := os.Stat(b.dir + "/ready"); return err == nil })
	b.kill()
	eventually(t, "the cgroup is empty", func() bool {
		text, _ := os.ReadFile(filepath.Join(b.work, "cgroup.events"))
		return strings.Contains(string(text), "populated 0")
	})
	t0 := time.Now()
	c := b.census()
	t.Logf("census of %d dead: %v", n, time.Since(t0))
	if c.Reaped < n+1 || c.Reaped > n+2 || // touch(1), if the shell did not come to wait for it
		len(c.Outside) != 0 {
		t.Errorf("%d reaped, outside %+v", c.Reaped, c.Outside)
	}
	if e := b.exitOf("p1"); e.Signal != 9 {
		t.Errorf("exit %+v", e)
	}
	if got := b.leaves(); len(got) != 0 {
		t.Errorf("leaves %v", got)
	}
}
