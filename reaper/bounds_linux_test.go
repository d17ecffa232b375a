package reaper_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/internal/wire"
)

// list asks for all that the keeper still knows, page by page.
func (c *client) list() map[string]wire.Process {
	c.t.Helper()
	all := map[string]wire.Process{}
	for {
		a := c.call(wire.Message{Op: wire.OpHello, Hello: &wire.Hello{Version: wire.Version, Turn: "t1", Nonce: testNonce, Skip: len(all)}})
		closeFDs(a.fds)
		if a.Error != nil || a.Hello.More && len(a.Hello.Processes) == 0 {
			c.t.Fatalf("hello: %+v after %d", a.Message, len(all))
		}
		for _, p := range a.Hello.Processes {
			all[p.Started.Process] = p
		}
		if !a.Hello.More {
			return all
		}
	}
}

// The keeper collects by itself, so whatever it reads and says must be counted.
func TestAnswersTakeNoMemory(t *testing.T) {
	b := newKeeper(t, nil)
	if m := b.call(wire.Message{Op: wire.OpHold, Hold: &wire.Hold{Bare: true}}); m.Error != nil {
		t.Fatalf("hold: %+v", m.Error)
	}
	const children, asked, most = 200, 60, 16 << 20
	b.mustLaunch(request("p1", "sh", "-c", fmt.Sprintf("i=0; while [ $i -lt %d ]; do sleep 600 & i=$((i+1)); done; : >%s/up; wait", children, b.dir)))
	eventually(t, "all are there", func() bool { _, err := os.Stat(filepath.Join(b.dir, "up")); return err == nil })
	for range asked {
		if n := len(b.census().Outside); n != children+1 {
			t.Fatalf("%d are below the keeper", n)
		}
	}
	if n := b.keeperMemory(); n > most {
		t.Errorf("%d bytes after %d looks at %d processes", n, asked, children)
	}
	l := request("p2", "true")
	l.Meta = strings.Repeat("m", 500_000)
	b.mustLaunch(l)
	for range asked {
		b.hello(testNonce)
	}
	if n := b.keeperMemory(); n > most {
		t.Errorf("%d bytes after %d long answers", n, asked)
	}
}

// Who ends while the census looks at him has not left the turn's cgroup.
func TestCensusOfTheShortLived(t *testing.T) {
	b := newBed(t)
	for i := range 2 { // whose parent reaps them at once
		b.mustLaunch(request(fmt.Sprintf("p%d", i), "sh", "-c", "while :; do "+strings.Repeat("(:); ", 30)+" done"))
	}
	looks := 0
	for end := time.Now().Add(time.Second); time.Now().Before(end); looks++ {
		if out := b.census().Outside; len(out) > 0 {
			t.Fatalf("look %d: outside %+v", looks, out)
		}
	}
	t.Logf("%d looks", looks)
}

// A keeper that is told to go writes first what has ended.
func TestQuitLosesNoExit(t *testing.T) {
	b := newBed(t)
	const n = 150
	var pids []int
	for i := range n {
		pids = append(pids, b.mustLaunch(request(fmt.Sprintf("p%d", i), "sleep", "600")).PID)
	}
	if err := b.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	b.kill()
	eventually(t, "all have ended", func() bool { // a cgroup is empty a moment before
		return !slices.ContainsFunc(pids, func(pid int) bool {
			text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			return !strings.Contains(string(text), ") Z ")
		})
	})
	quit := b.ask(wire.Message{Op: wire.OpQuit})
	if err := b.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	b.await(wire.Message{Op: wire.OpQuit}, quit)
	if err := b.cmd.Wait(); err != nil {
		t.Error("keeper:", err)
	}
	ended := 0
	for _, r := range wire.Launches(b.journal()) {
		if r.Process.Exit != nil && r.Process.Exit.Signal == 9 {
			ended++
		}
	}
	if ended != n {
		t.Errorf("the journal has %d ends of %d", ended, n)
	}
}

// An exit that could not be written is not forgotten before it is.
func TestExitsOnAFullDisk(t *testing.T) {
	disk := t.TempDir()
	smallDisk(t, disk, "size=4m")
	b := newKeeperIn(t, disk, nil)
	b.mustHold(false)
	const n = 150
	long := strings.Repeat("x", 4000)
	for i := range n {
		b.mustLaunch(request(fmt.Sprintf("p%d", i), "sh", "-c", "exec sleep 600", long))
	}
	fill, err := os.Create(filepath.Join(disk, "fill"))
	if err != nil {
		t.Fatal(err)
	}
	for size := 4096; size > 0; size /= 2 {
		for block := make([]byte, size); ; {
			if _, err := fill.Write(block); err != nil {
				break
			}
		}
	}
	fill.Close()
	b.kill()
	b.exits(n)
	lost := func() (n int) {
		known := b.list()
		f, err := os.Open(filepath.Join(disk, wire.JournalName))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		entries, _, err := wire.ReadJournal(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range wire.Launches(entries) {
			if known[r.Process.Started.Process].Exit == nil && r.Process.Exit == nil {
				n++
			}
		}
		return n
	}
	if n := lost(); n != 0 {
		t.Errorf("%d ends are nowhere", n)
	}
	os.Remove(fill.Name())
	b.mustLaunch(request("last", noop(t)))
	b.exitOf("last")
	if n := lost(); n != 0 {
		t.Errorf("%d ends are nowhere, with room on the disk", n)
	}
	if a := b.hello(testNonce); a.Hello.Dropped == 0 {
		t.Error("none was forgotten")
	}
}

// What cannot be read again from the journal, or told, is not launched.
func TestLargeMeta(t *testing.T) {
	b := newBed(t)
	l := request("p1", "true")
	l.Meta = strings.Repeat("\x01", 200_000) // six bytes each in JSON
	if a := b.launch(l); a.Error == nil || a.Error.Kind != wire.ErrProtocol {
		t.Errorf("launch: %+v", a.Error)
	}
	l.Process, l.Meta = "p2", strings.Repeat("m", 3<<20)
	if a := b.launch(l); a.Error == nil || a.Error.Kind != wire.ErrProtocol {
		t.Errorf("launch: %+v", a.Error)
	}
	l = request("p3", "sleep", "600")
	l.Meta = strings.Repeat("m", 900_000)
	b.mustLaunch(l)
	b.mustLaunch(request("p4", "true"))
	b.exitOf("p4")
	if list := b.list(); len(list) != 2 || list["p3"].Started.Meta != l.Meta {
		t.Errorf("%d are listed", len(list))
	}
	if r := wire.Launches(b.journal()); len(r) != 2 || r[0].Process.Started.Meta != l.Meta {
		t.Errorf("%d are in the journal", len(r))
	}
}
