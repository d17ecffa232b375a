package reaper_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"pinfold.dev/internal/wire"
)

func TestLaunchAndExit(t *testing.T) {
	b := newBed(t)
	s := b.mustLaunch(request("p1", "sh", "-c", "exit 7"))
	e := b.exitOf("p1")
	if e.Code != 7 || e.Signal != 0 || e.PID != s.PID {
		t.Errorf("exit %+v", e)
	}
	if s.Ino == 0 || s.StartTicks == 0 || s.CgroupID == 0 || s.Placement != "clone" || s.Leaf != b.work+"/p1" {
		t.Errorf("identity %+v", s)
	}
	if out := b.output(request("p2", "echo", "hello")); out != "hello\n" {
		t.Errorf("output %q", out)
	}
	l := request("p3", "sh", "-c", "kill -SEGV $$")
	l.Meta = "the service's own"
	if s := b.mustLaunch(l); s.Meta != l.Meta {
		t.Errorf("meta %q", s.Meta)
	}
	if e := b.exitOf("p3"); e.Signal != int(syscall.SIGSEGV) {
		t.Errorf("exit of a faulting process: %+v", e)
	}
	var facts []string
	for _, e := range b.journal() {
		facts = append(facts, string(e.Fact)+" "+e.Process)
	}
	want := "keeper , intent p1, started p1, exit p1, intent p2, started p2, exit p2, intent p3, started p3, exit p3"
	if got := strings.Join(facts, ", "); got != want {
		t.Errorf("journal: %s", got)
	}
	if fi, err := os.Stat(b.dir + "/" + wire.JournalName); err != nil || fi.Mode() != 0o600 {
		t.Errorf("journal's mode: %v, %v", fi.Mode(), err)
	}
	eventually(t, "leaves are removed", func() bool { return len(b.leaves()) == 0 })
}

const cleanSignals = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\nSigCgt:\t0000000000000000\n"

func TestChildStartsClean(t *testing.T) {
	for _, gate := range []bool{false, true} {
		t.Run(fmt.Sprintf("gate=%v", gate), func(t *testing.T) {
			b := newKeeper(t, func(c *exec.Cmd) {
				self, err := os.Executable()
				if err != nil {
					t.Fatal(err)
				}
				c.Args = append([]string{self, c.Path}, c.Args[1:]...)
				c.Path = self
				c.Env = append(os.Environ(), "PINFOLD_TEST_HELPER=hostile-ancestor")
			})
			b.mustHold(gate)
			out := b.output(request("p1", "cat", "/proc/self/status"))
			if !strings.Contains(out, cleanSignals) {
				t.Errorf("signals of a child:\n%s", out)
			}
			out = b.output(request("p2", "ls", "/proc/self/fd"))
			if out != "0\n1\n2\n3\n" { // 3 is ls's own
				t.Errorf("descriptors of a child: %q", out)
			}
			out = b.output(request("p3", "sh", "-c", "umask; pwd; ps -o sid= -p $$ | tr -d ' '; echo $$; cat /proc/self/cgroup | tail -n1; ulimit -n"))
			f := strings.Fields(out)
			if len(f) != 6 || f[0] != "0022" || f[1] != "/" || f[2] != f[3] || !strings.HasSuffix(f[4], "/work/p3") {
				t.Errorf("child: %q", out)
			}
			var l syscall.Rlimit
			if err := json.Unmarshal([]byte(f[5]), &l.Cur); err != nil {
				t.Errorf("ulimit -n: %q", f[5])
			}
		})
	}
}

// The keeper's runtime raises its own limit of open files.
func TestChildKeepsTheLimitOfOpenFiles(t *testing.T) {
	b := newKeeper(t, func(c *exec.Cmd) {
		c.Args = append([]string{"sh", "-c", `ulimit -Sn 77; ulimit -Hn 500; exec "$@"`, "sh", c.Path}, c.Args[1:]...)
		c.Path = "/bin/sh"
	})
	b.mustHold(false)
	if out := b.output(request("p1", "sh", "-c", "ulimit -Sn; ulimit -Hn")); out != "77\n500\n" {
		t.Errorf("limits of a child: %q", out)
	}
}

func TestUsers(t *testing.T) {
	b := newBed(t)
	l := request("p1", "sh", "-c", "id -u; id -g; id -G; cat /proc/self/status | grep -c 'CapEff:.*0000000000000000'")
	l.SetUser, l.UID, l.GID, l.Groups = true, 1234, 2345, []uint32{2345, 3456}
	if out := b.output(l); out != "1234\n2345\n2345 3456\n1\n" {
		t.Errorf("user: %q", out)
	}
	// What runs as somebody else can neither see into the keeper nor end it.
	l = request("p2", "sh", "-c", fmt.Sprintf("kill -9 %d; cat /proc/%[1]d/environ; echo", b.cmd.Process.Pid))
	l.SetUser, l.UID, l.GID = true, 1234, 2345
	if out := b.output(l); strings.Count(out, "ermi") != 2 { // "not permitted", "Permission denied"
		t.Errorf("as another user: %q", out)
	}
	if m := b.hello(testNonce); m.Error != nil {
		t.Error(m.Error)
	}
}

func TestGate(t *testing.T) {
	b := newKeeper(t, nil)
	b.mustHold(true)
	out := b.output(request("p1", "tail", "-n1", "/proc/self/cgroup"))
	if !strings.HasSuffix(out, "/work/p1\n") {
		t.Errorf("cgroup at the gate: %q", out)
	}
	if s := b.mustLaunch(request("p2", "true")); s.Placement != "gate" {
		t.Errorf("placement %q", s.Placement)
	}
	b.exitOf("p2")
	if a := b.launch(request("p3", "/no/such")); a.Error == nil || a.Error.Kind != wire.ErrExec || a.Error.Errno != int(syscall.ENOENT) {
		t.Errorf("exec failure: %+v", a.Error)
	}
	eventually(t, "nothing is left", func() bool { return len(b.leaves()) == 0 && b.keeperChildren() == "" })
}

func TestGateWhereClone3IsRefused(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.ENOSYS, syscall.E2BIG} { // a filter; Linux 5.3 to 5.6
		t.Run(errno.Error(), func(t *testing.T) { testGate(t, errno) })
	}
}

func testGate(t *testing.T, errno syscall.Errno) {
	b := newKeeper(t, func(c *exec.Cmd) {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		c.Args = append([]string{self, strconv.Itoa(int(errno)), c.Path}, c.Args[1:]...)
		c.Path = self
		c.Env = append(os.Environ(), "PINFOLD_TEST_HELPER=without-clone3")
	})
	b.mustHold(false)
	s := b.mustLaunch(request("p1", "sleep", "600"))
	if s.Placement != "gate" || s.Ino == 0 {
		t.Errorf("%+v", s)
	}
	procs, err := os.ReadFile(filepath.Join(b.work, "p1", "cgroup.procs"))
	if err != nil || strings.TrimSpace(string(procs)) != fmt.Sprint(s.PID) {
		t.Errorf("leaf holds %q, %v", procs, err)
	}
}

func TestSignal(t *testing.T) {
	b := newBed(t)
	b.mustLaunch(request("p1", "sleep", "600"))
	canary := b.mustLaunch(request("p2", "sleep", "600"))
	sig := func(process string, n int) *wire.Error {
		return b.call(wire.Message{Op: wire.OpSignal, Signal: &wire.Signal{Process: process, Number: n}}).Error
	}
	if e := sig("p1", int(syscall.SIGKILL)); e != nil {
		t.Fatal(e)
	}
	if e := b.exitOf("p1"); e.Signal != int(syscall.SIGKILL) {
		t.Errorf("exit %+v", e)
	}
	if e := sig("p1", int(syscall.SIGKILL)); e == nil || e.Kind != wire.ErrNotFound {
		t.Errorf("signal to an ended process: %+v", e)
	}
	if e := sig("p9", 1); e == nil || e.Kind != wire.ErrNotFound {
		t.Errorf("signal to nobody: %+v", e)
	}
	if e := sig("p2", 99); e == nil || e.Kind != wire.ErrProtocol {
		t.Errorf("signal 99: %+v", e)
	}
	if syscall.Kill(canary.PID, 0) != nil {
		t.Error("the canary is dead")
	}
}

func TestStraySignals(t *testing.T) {
	b := newBed(t)
	b.mustLaunch(request("p1", "sleep", "600"))
	for s := syscall.Signal(1); s <= 64; s++ {
		switch s {
		case syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGSEGV, syscall.SIGBUS, syscall.SIGFPE:
			continue
		}
		if err := b.cmd.Process.Signal(s); err != nil {
			t.Fatalf("signal %d: %v", s, err)
		}
		if m := b.hello(testNonce); m.Error != nil {
			t.Fatalf("after signal %d: %+v", s, m.Error)
		}
	}
	if out := b.output(request("p2", "echo", "still here")); out != "still here\n" {
		t.Errorf("output %q", out)
	}
}

func TestQuit(t *testing.T) {
	b := newBed(t)
	b.mustLaunch(request("p1", "true"))
	b.exitOf("p1")
	if err := os.RemoveAll(b.dir); err != nil { // its directory may have gone
		t.Fatal(err)
	}
	if m := b.call(wire.Message{Op: wire.OpQuit}); m.Error != nil {
		t.Fatal(m.Error)
	}
	if err := b.cmd.Wait(); err != nil {
		t.Error("keeper:", err)
	}
}
