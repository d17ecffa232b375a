package integration

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/client"
	"pinfold.dev/systemd"
)

// The service as its unit runs it, under the manager of this machine's Debian and
// under a later one: it is restarted under load, and its manager and bus fail.
func TestServiceInBeds(t *testing.T) {
	needRoot(t)
	for _, bed := range []struct{ name, root string }{{"host", ""}, {"trixie", "trixie"}} {
		for _, tests := range []string{"^Test(KeptHandles|StrangersKept|Watchdog)There$", "^TestRestartUnderLoadThere$", "^TestFaults.*There$"} {
			t.Run(bed.name+"/"+tests, func(t *testing.T) {
				o := shippedUnits("service", "")
				o.Timeout = 6 * time.Minute
				InNamespaceBed(t, bed.root, o, tests)
			})
		}
	}
}

// A user's own service, as its unit runs it at that user's manager, is restarted and
// killed under the same load. There is less of it: the rest is as root's.
func TestUsersServiceInBeds(t *testing.T) {
	needRoot(t)
	beds := map[string]string{"trixie": "trixie"}
	if os.Getenv("PINFOLD_TEST_LONG") == "1" {
		beds["host"] = ""
	}
	for name, root := range beds {
		t.Run(name, func(t *testing.T) {
			o := shippedUnits("service", "bed")
			o.Timeout = 6 * time.Minute
			o.Env = append(o.Env, "PINFOLD_LOAD_ROUNDS=3")
			InNamespaceBed(t, root, o, "^TestRestartUnderLoadThere$")
		})
	}
}

// shell is a request for a shell command.
func shell(script string, words ...string) api.LaunchRequest {
	return api.LaunchRequest{Argv: append([]string{"/bin/sh", "-c", script}, words...)}
}

func begin(t *testing.T, c *client.Client, req api.BeginRequest) api.Turn {
	t.Helper()
	x, err := c.Begin(t.Context(), req)
	if err != nil {
		t.Fatalf("begin a turn: %v", err)
	}
	return x
}

func launch(t *testing.T, c *client.Client, turn string, req api.LaunchRequest) api.Process {
	t.Helper()
	p, err := c.Launch(t.Context(), turn, req)
	if err != nil {
		t.Fatalf("launch: %v", err)
	}
	return p
}

// wantStatus waits for the end of a process, which must be this one.
func wantStatus(t *testing.T, c *client.Client, turn, process string, want api.Status) {
	t.Helper()
	p, err := c.WaitProcess(t.Context(), turn, process)
	if s := p.Status; err != nil || s.State != want.State || s.Code != want.Code || s.Signal != want.Signal {
		t.Errorf("%s of %s ended as %+v, %v; want %+v", process, turn, p.Status, err, want)
	}
}

// alive tells whether a process is there, and is no zombie.
func alive(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	s := string(b)
	return !strings.HasPrefix(s[strings.LastIndexByte(s, ')')+1:], " Z")
}

// killKeeper kills a turn's keeper, which must be there.
func killKeeper(t *testing.T, x api.Turn) {
	t.Helper()
	b, err := os.ReadFile("/proc/" + strconv.Itoa(x.KeeperPID) + "/cgroup")
	if err != nil || !strings.Contains(string(b), x.ID) || !strings.Contains(string(b), "/keeper\n") {
		t.Fatalf("process %d is no keeper of %s: %q, %v", x.KeeperPID, x.ID, b, err)
	}
	if err := syscall.Kill(x.KeeperPID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// Processes that end while both their keeper and the service are gone have their
// exit status still: systemd had kept a handle. So have those that end later.
func TestKeptHandlesThere(t *testing.T) {
	needBed(t, "service")
	u := installUnit(t)
	u.dropIn("pinfold.service", "[Service]\nRestartSec=1h\n")
	u.systemctl("start", "pinfold")
	c := u.client()
	canary := begin(t, c, api.BeginRequest{})
	lives := launch(t, c, canary.ID, shell("exec sleep 300"))
	gate := t.TempDir()
	wait := "while [ ! -e " + gate + "/go ]; do sleep 0.02; done; "
	x, whole := begin(t, c, api.BeginRequest{}), begin(t, c, api.BeginRequest{})
	all := []api.Process{launch(t, c, x.ID, shell(wait+"exit 7")), launch(t, c, x.ID, shell(wait+"kill -TERM $$")),
		launch(t, c, whole.ID, shell(wait+"exit 9"))} // nothing else is in that turn
	late := launch(t, c, x.ID, shell("while [ ! -e "+gate+"/late ]; do sleep 0.02; done; exit 11"))
	for i := range 20 { // too short to be worth it
		wantStatus(t, c, x.ID, launch(t, c, x.ID, shell("exit "+strconv.Itoa(i))).ID, api.Status{State: api.ProcessExited, Code: i})
	}
	u.kept(1 + 1 + len(all) + 1) // the socket, the canary, these, the late one

	killed := u.pid()
	u.kill()
	killKeeper(t, x)
	killKeeper(t, whole)
	if err := os.WriteFile(gate+"/go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		u.soon("process "+p.ID+" has ended", func() bool { return !alive(p.PID) })
	}
	u.soon("the manager has seen the service's end", func() bool { return u.pid() != killed })
	if pid := u.pid(); pid != 0 {
		t.Fatalf("the service runs again already, as %d: nothing is shown", pid)
	}
	u.systemctl("restart", "pinfold") // it would wait, were it only started
	u.ready()
	wantStatus(t, c, x.ID, all[0].ID, api.Status{State: api.ProcessExited, Code: 7})
	wantStatus(t, c, x.ID, all[1].ID, api.Status{State: api.ProcessSignaled, Signal: "SIGTERM"})
	r, err := c.Receipt(t.Context(), whole.ID)
	if err != nil || len(r.Processes) != 1 || r.Processes[0].Status.State != api.ProcessExited || r.Processes[0].Status.Code != 9 {
		t.Errorf("the turn that ended as a whole: %+v, %v", r, err)
	}
	if err := os.WriteFile(gate+"/late", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, c, x.ID, late.ID, api.Status{State: api.ProcessExited, Code: 11})
	u.kept(2) // the socket and the canary
	if !alive(lives.PID) {
		t.Error("the canary is dead")
	}
	u.systemctl("restart", "pinfold")
	u.kept(2)
}

// A service that hangs is ended by the manager, and another one started; turns do
// not notice, and one that is well is left alone.
func TestWatchdogThere(t *testing.T) {
	needBed(t, "service")
	u := installUnit(t)
	u.systemctl("start", "pinfold")
	canary := canaryTurn(t, u.client())
	pid := 0
	var undo func()
	for most := 2; ; most *= 3 { // on a busy machine it may not be heard of for that long
		undo = u.dropIn("pinfold.service", fmt.Sprintf("[Service]\nWatchdogSec=%ds\n", most))
		u.systemctl("restart", "pinfold")
		pid = u.pid()
		time.Sleep(time.Duration(most)*time.Second + time.Second)
		now := u.pid()
		if now == pid {
			break
		}
		if most > 60 {
			t.Fatalf("a service that was well is now %d, was %d", now, pid)
		}
		t.Logf("within %d s the service was started again: it is now %d, was %d", most, now, pid)
		undo()
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	u.soon("another service runs", func() bool { now := u.pid(); return now != 0 && now != pid })
	undo() // this one, too, might not be heard of for that long
	u.systemctl("restart", "pinfold")
	canary()
}

// What is kept under the name of a handle and is not that process's is believed
// nothing of, and is dropped; so is what means nothing.
func TestStrangersKeptThere(t *testing.T) {
	needBed(t, "service")
	u := installUnit(t)
	u.systemctl("start", "pinfold")
	c := u.client()
	x := begin(t, c, api.BeginRequest{})
	p := launch(t, c, x.ID, shell("exec sleep 300"))
	u.systemctl("stop", "pinfold")
	exe := executable(t)
	undo := u.dropIn("pinfold.service", "[Service]\nExecStart=\nExecStart="+exe+" -test.run=TestStrangerHelper\nEnvironment=PINFOLD_BED=stranger TURN="+x.ID+"\nStandardOutput=null\n")
	u.systemctl("start", "pinfold")
	u.kept(4)
	stranger := u.show("StatusText")
	killKeeper(t, x)
	if err := syscall.Kill(p.PID, syscall.SIGKILL); err != nil { // which is in the turn still
		t.Fatal(err)
	}
	u.soon("it is dead", func() bool { return !alive(p.PID) })
	undo()
	u.systemctl("restart", "pinfold")
	u.kept(1) // the socket
	wantStatus(t, c, x.ID, p.ID, api.Status{State: api.ProcessLost})
	if pid, err := strconv.Atoi(stranger); err != nil || !alive(pid) {
		t.Errorf("the stranger %q is dead", stranger)
	} else if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	if open := openFiles(t, u.pid()); open > 40 {
		t.Errorf("the service has %d files open", open)
	}
}

func openFiles(t *testing.T, pid int) int {
	t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestStrangerHelper is a service that has strange things kept. It says the pid
// of a child, which outlives it.
func TestStrangerHelper(t *testing.T) {
	needBed(t, "stranger")
	n, err := systemd.NewNotifier(os.Getenv, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	fd := -1
	child := exec.Command("sleep", "300")
	child.SysProcAttr = &syscall.SysProcAttr{PidFD: &fd, Setsid: true}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	turn := os.Getenv("TURN")
	n.Store("pidfd."+turn+".p1", fd, 0)
	for _, name := range []string{"pidfd.0123456789abcdef.p1", "junk", "listen.1-1"} {
		var pipe [2]int
		if err := syscall.Pipe(pipe[:]); err != nil {
			t.Fatal(err)
		}
		n.Store(name, pipe[0], 0)
	}
	n.Say("STATUS=" + strconv.Itoa(child.Process.Pid))
	n.Say("READY=1")
	<-context.Background().Done()
	time.Sleep(time.Hour)
}
