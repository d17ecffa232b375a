package turns

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
)

// disk is a file system that can be frozen: who uses it then waits, and, once
// killed at the latest, does so uninterruptibly, in state D.
type disk struct {
	dir    string
	user   string // the helper that uses it
	held   string // a file that has the number of who waits for an answer
	freeze func()
	thaw   func()
}

func tool(t *testing.T, argv ...string) string {
	t.Helper()
	out, err := run.kids.output(exec.Command(argv[0], argv[1:]...))
	if err != nil {
		t.Fatalf("%q: %v\n%s", argv, err, out)
	}
	return strings.TrimSpace(out)
}

// newExt4 mounts an ext4 on a loop device. It is thawed and unmounted at the
// end, by the guard if need be.
func newExt4(t *testing.T) *disk {
	t.Helper()
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		t.Skipf("this host or test bed has no loop devices: %v", err)
	}
	f := files(t, "image", "mnt")
	d := &disk{dir: f[1], user: "blocked",
		freeze: func() { tool(t, "fsfreeze", "-f", f[1]) }, thaw: func() { tool(t, "fsfreeze", "-u", f[1]) }}
	img, err := os.Create(f[0])
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	if err := img.Truncate(16 << 20); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(d.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	tool(t, "mkfs.ext4", "-q", f[0])
	run.guard.tell("thaw", d.dir)
	tool(t, "mount", "-o", "loop", f[0], d.dir)
	t.Cleanup(func() {
		_, _ = run.kids.output(exec.Command("fsfreeze", "-u", d.dir)) // it may be thawed
		unmount(t, d.dir)
	})
	return d
}

func unmount(t *testing.T, dir string) {
	if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
		t.Errorf("unmount %s: %v", dir, err)
	}
}

// newFuse mounts a file system of this test's, which thaws when its process
// ends.
func newFuse(t *testing.T) *disk {
	t.Helper()
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skipf("this host or test bed has no FUSE: %v", err)
	}
	f := files(t, "frozen", "mnt")
	d := &disk{dir: f[1], user: "asker", held: heldOf(f[0]), thaw: func() { _ = os.Remove(f[0]) }, freeze: func() {
		if err := os.WriteFile(f[0], nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}}
	if err := os.Mkdir(d.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	h := helper(t, "fuse", d.dir, f[0])
	cmd := exec.Command(run.exe, h.Argv[1:]...)
	cmd.Env = h.Env
	p, err := run.kids.start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	run.guard.tell("thaw", d.dir)
	t.Cleanup(func() {
		d.thaw()
		p.kill()
		unmount(t, d.dir)
	})
	eventually(t, "the file system is mounted", func() bool {
		select {
		case <-p.gone:
			t.Fatalf("the file system: %v", p.err)
		default:
		}
		b, err := os.ReadFile("/proc/self/mountinfo")
		return err == nil && strings.Contains(string(b), " "+d.dir+" ")
	})
	return d
}

// A process in state D cannot be ended. The service says so in bounded time,
// names it, keeps the turn, goes on with others, and closes it when it goes.
func TestUnkillable(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		for name, disk := range map[string]func(*testing.T) *disk{"ext4": newExt4, "fuse": newFuse} {
			t.Run(name, func(t *testing.T) {
				t.Run("process", func(t *testing.T) { testUnkillable(t, g, disk, "process", false) })
				t.Run("thread", func(t *testing.T) { testUnkillable(t, g, disk, "thread", false) })
				t.Run("service crashes meanwhile", func(t *testing.T) { testUnkillable(t, g, disk, "process", true) })
			})
		}
	})
}

// testUnkillable has the main thread of a process hang, or another one.
func testUnkillable(t *testing.T, g api.Grade, newDisk func(*testing.T) *disk, who string, crash bool) {
	bound := patience(time.Second)
	s := serve(t, g, options{args: []string{"--bound", bound.String()}})
	disk := newDisk(t)
	newCanary(t, s)
	newNeighbour(t, s)
	x := s.begin(t, api.BeginRequest{Label: "writes to a disk that hangs"})
	f := files(t, "witness", "other")
	p := x.launch(helper(t, disk.user, disk.dir+"/file", f[0], who))
	x.launch(helper(t, "beat", f[1]))
	heart(f[0]).beating(t)
	heart(f[1]).beating(t)
	disk.freeze()
	eventually(t, "it hangs", func() bool {
		if disk.user == "asker" {
			return exists(fmt.Sprintf("/proc/%d/task/%d", p.PID, asked(disk.held)))
		}
		a := heart(f[0]).size(t)
		time.Sleep(patience(300 * time.Millisecond)) // a busy machine stalls it, too
		return heart(f[0]).size(t) == a && threadIn('D', p.PID)
	})

	began := time.Now()
	r, err := x.abandonUntil(1)
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > bound+patience(2*time.Minute) {
		t.Errorf("the answer took %v, the bound is %v", took, bound)
	}
	checkUnkillable(t, r, p)
	stopped(t, heart(f[1])) // who could be ended was

	if crash {
		s.kill()
		s.restart()
	}
	checkGoesOn(t, x, p)
	disk.thaw()
	ctx, cancel := context.WithTimeout(t.Context(), patience(60*time.Second))
	defer cancel()
	if v, err := s.WaitTurn(ctx, x.ID); err != nil || v.State != api.StateAbandoned || len(v.Survivors) != 0 {
		t.Errorf("after the thaw the turn is %s, survivors %v, %v", v.State, v.Survivors, err)
	}
	if r, err = s.Receipt(t.Context(), x.ID); err != nil {
		t.Fatal(err)
	}
	x.over(r)
	if got := r.Processes[0].Status; got.State != api.ProcessSignaled || got.Signal != "SIGKILL" {
		t.Errorf("the writer is %+v in the end, want killed", got)
	}
}

// abandonUntil abandons a turn of which so many cannot be ended. On a busy machine
// others may take longer than the bound: then once more.
func (x *turn) abandonUntil(survivors int) (r api.Receipt, err error) {
	x.t.Helper()
	for end := time.Now().Add(patience(time.Minute)); ; {
		r, err = x.s.Abandon(x.t.Context(), x.ID, api.AbandonRequest{})
		if err != nil || len(r.Survivors) <= survivors || time.Now().After(end) {
			return r, err
		}
		x.t.Logf("not only %d, but these are left within the bound: %+v", survivors, r.Survivors)
		time.Sleep(20 * time.Millisecond)
	}
}

// checkUnkillable checks the receipt of an ending that could not be complete.
func checkUnkillable(t *testing.T, r api.Receipt, p api.Process) {
	t.Helper()
	if r.State != api.StateUnkillable || r.Complete || r.SeenEmptyAt != nil || r.Counts.Survivors != 1 || len(r.Survivors) != 1 {
		t.Fatalf("receipt: state %s, complete %v, seen empty %v, counts %+v, survivors %+v", r.State, r.Complete, r.SeenEmptyAt, r.Counts, r.Survivors)
	}
	if v := r.Survivors[0]; v.PID != p.PID || v.State != "D" || v.WaitChannel == "" || v.WaitChannel == "0" || v.Comm == "" {
		t.Errorf("survivor %+v, want pid %d in state D with its wait channel", v, p.PID)
	}
	if got := r.Processes[0]; got.Verdict != api.VerdictOwned || got.EndedBy != "nobody" || got.Status.State != api.ProcessRunning {
		t.Errorf("the receipt says of it: %+v", got)
	}
	if got := r.Processes[1]; got.Verdict != api.VerdictGone || got.EndedBy != "kill" {
		t.Errorf("the receipt says of the other: %+v", got)
	}
}

// checkGoesOn checks that the unkillable turn is kept and shown, and that the
// service serves.
func checkGoesOn(t *testing.T, x *turn, p api.Process) {
	t.Helper()
	s := x.s
	list, err := s.Turns(t.Context(), false, "")
	found := false
	for _, v := range list.Turns {
		if v.ID == x.ID {
			found = v.State == api.StateUnkillable && len(v.Survivors) == 1 && v.Survivors[0].PID == p.PID && v.Alive == 1
			if !found {
				t.Errorf("the turn is shown as %s, alive %d, survivors %+v", v.State, v.Alive, v.Survivors)
			}
		}
	}
	if err != nil || !found {
		t.Errorf("the unkillable turn is not listed: %v", err)
	}
	again, err := s.Abandon(t.Context(), x.ID, api.AbandonRequest{})
	if err != nil || again.State != api.StateUnkillable {
		t.Errorf("a second abandon: state %s, %v", again.State, err)
	}
	_, err = s.Launch(t.Context(), x.ID, helper(t, "exit", "0"))
	wantCode(t, err, api.CodeTurnOver)
	y := s.begin(t, api.BeginRequest{Label: "meanwhile"})
	f := files(t, "beat")
	y.launch(helper(t, "beat", f[0]))
	heart(f[0]).beating(t)
	r, err := y.abandonUntil(0)
	if err != nil {
		t.Fatal(err)
	}
	y.over(r)
	stopped(t, heart(f[0]))
}

// threadIn tells whether a thread of the process is in a state.
func threadIn(state byte, pid int) bool {
	tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, e := range tasks {
		if tid, err := strconv.Atoi(e.Name()); err == nil && stateOf(tid) == state {
			return true
		}
	}
	return false
}
