package pidfd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys"
	"pinfold.dev/internal/sys/systest"
)

var suite = systest.New(map[string]systest.Helper{
	"leaderless": leaderless,
	"threads":    threads,
	"old":        asOld,
	"oldwhose":   whoseAsOld,
	"reuse":      reuse,
	"hidden":     hidden,
	"rung":       rung,
	"below":      below,
	"exhausted":  exhausted,
})

func TestMain(m *testing.M) { suite.Main(m) }

// leaderless ends its main thread and lives on in another, whose number it says.
func leaderless([]string) error { return systest.EndMainThread() }

// threads has a thread besides its main one, and says its number.
func threads([]string) error {
	said := make(chan bool)
	for {
		go func() {
			runtime.LockOSThread()
			tid := syscall.Gettid()
			if tid != os.Getpid() {
				fmt.Println(tid)
			}
			said <- tid != os.Getpid() // else this one is on the main thread, and the next is not
			time.Sleep(time.Hour)
		}()
		if <-said {
			select {}
		}
	}
}

func sleeper(t testing.TB) *systest.Proc { return systest.Start(t, exec.Command("sleep", "1000")) }

func open(t testing.TB, pid int) *Handle {
	t.Helper()
	h, err := Open(pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return h
}

func TestLife(t *testing.T) {
	p, canary := sleeper(t), sleeper(t)
	h := open(t, p.PID())
	id, err := h.Identity()
	if err != nil || id.PID != p.PID() || id.Boot == "" || id.StartTicks == 0 || id.PIDNS == 0 {
		t.Fatalf("%+v, %v", id, err)
	}
	if v, ev := h.Verify(id); v != api.VerdictOwned {
		t.Errorf("alive: %s, %q", v, ev)
	}
	if err := h.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := h.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Not reaped yet: a zombie has exited, and takes signals.
	if v, ev := h.Verify(id); v != api.VerdictGone {
		t.Errorf("zombie: %s, %q", v, ev)
	}
	if err := h.Signal(syscall.SIGKILL); err != nil {
		t.Errorf("zombie: %v", err)
	}
	p.Reap()
	if v, ev := h.Verify(id); v != api.VerdictGone {
		t.Errorf("reaped: %s, %q", v, ev)
	}
	if err := h.Signal(syscall.SIGKILL); !errors.Is(err, ErrGone) {
		t.Errorf("reaped: %v", err)
	}
	if _, err := h.CgroupID(); !errors.Is(err, ErrGone) {
		t.Errorf("cgroup of a reaped process: %v", err)
	}
	if h, v, ev := OpenVerified(id); v != api.VerdictGone || h != nil {
		t.Errorf("recorded, reaped: %s, %q", v, ev)
	}
	if _, err := Open(p.PID()); !errors.Is(err, ErrGone) {
		t.Errorf("open: %v", err)
	}
	alive(t, canary)
}

func alive(t *testing.T, p *systest.Proc) {
	t.Helper()
	h := open(t, p.PID())
	if exited, err := h.Exited(); exited || err != nil {
		t.Errorf("the canary did not live: %v, %v", exited, err)
	}
}

func TestVerifyTellsStrangers(t *testing.T) {
	a, b := sleeper(t), sleeper(t)
	rec, err := open(t, a.PID()).Identity()
	if err != nil {
		t.Fatal(err)
	}
	if v, ev := open(t, b.PID()).Verify(rec); v != api.VerdictForeign {
		t.Errorf("another process: %s, %q", v, ev)
	}
	h, v, ev := OpenVerified(rec)
	if v != api.VerdictOwned {
		t.Fatalf("the same: %s, %q", v, ev)
	}
	h.Close()
	for what, change := range map[string]func(*api.Identity){
		"boot":   func(r *api.Identity) { r.Boot = "another" },
		"pid ns": func(r *api.Identity) { r.PIDNS++; r.Ino = 0 },
		"inode":  func(r *api.Identity) { r.Ino++; r.StartTicks++ },
		"pid 1":  func(r *api.Identity) { r.PID = 1 },
	} {
		r := rec
		change(&r)
		if h, v, ev := OpenVerified(r); v == api.VerdictOwned || v == api.VerdictGone || h != nil {
			t.Errorf("changed %s: %s, %q", what, v, ev)
		}
	}
}

// TestThreadNumber: a recorded pid that is a thread's number now is gone; a
// kill(2) of it would hit the thread's process.
func TestThreadNumber(t *testing.T) {
	p := systest.Start(t, suite.Command(t, "threads"))
	tid, err := strconv.Atoi(p.Line(t))
	if err != nil {
		t.Fatal(err)
	}
	rec, err := open(t, p.PID()).Identity()
	if err != nil {
		t.Fatal(err)
	}
	rec.PID, rec.Ino = tid, 0
	if h, v, ev := OpenVerified(rec); v != api.VerdictGone || h != nil {
		t.Errorf("%s, %q", v, ev)
	}
	var loc Locator
	h, id, err := loc.OpenThread(tid)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if h.PID() != p.PID() || id != rec.CgroupID {
		t.Errorf("process %d in cgroup %d, want %d in %d", h.PID(), id, p.PID(), rec.CgroupID)
	}
	if _, _, err := loc.OpenThread(1 << 30); err == nil {
		t.Error("a thread that is not there was opened")
	}
}

func TestLeaderless(t *testing.T) {
	p := systest.Start(t, suite.Command(t, "leaderless"))
	tid, err := strconv.Atoi(p.Line(t))
	if err != nil {
		t.Fatal(err)
	}
	systest.Until(t, "the main thread is a zombie", func() bool {
		b, err := sys.ProcFile(p.PID(), "stat")
		if err != nil {
			t.Fatal(err)
		}
		s, err := sys.ParseStat(b)
		return err == nil && s.State == 'Z'
	})
	h := open(t, p.PID())
	if exited, err := h.Exited(); exited || err != nil {
		t.Errorf("exited %v, %v: it has a thread", exited, err)
	}
	id, err := h.Identity()
	if err != nil {
		t.Fatal(err)
	}
	if v, ev := h.Verify(id); v != api.VerdictOwned {
		t.Errorf("%s, %q", v, ev)
	}
	var loc Locator
	th, _, err := loc.OpenThread(tid)
	if err != nil {
		t.Fatal(err)
	}
	defer th.Close()
	if err := th.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := h.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if sig := p.Reap().Sys().(syscall.WaitStatus).Signal(); sig != syscall.SIGKILL {
		t.Errorf("ended by %v", sig)
	}
}

// TestWait: many waits hold no threads, and each ends alone.
func TestWait(t *testing.T) {
	const n = 200
	p := sleeper(t)
	threads := func() int {
		d, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		return len(d)
	}
	before := threads()
	h := open(t, p.PID())
	var wg sync.WaitGroup
	errs := make(chan error, n)
	for range n {
		wg.Go(func() { errs <- h.Wait(t.Context()) })
	}
	ctx, cancel := context.WithCancel(t.Context())
	other, cancelled := open(t, p.PID()), make(chan error)
	go func() { cancelled <- other.Wait(ctx) }()
	third, closed := open(t, p.PID()), make(chan error)
	go func() { closed <- third.Wait(t.Context()) }()
	time.Sleep(50 * time.Millisecond)
	if now := threads(); now > before+n/2 { // a busy machine makes some, too
		t.Errorf("%d threads for %d waits, %d before", now, n, before)
	}
	cancel()
	if err := <-cancelled; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	third.Close()
	if err := <-closed; !errors.Is(err, os.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	select {
	case err := <-errs:
		t.Errorf("a wait ended while the process lived: %v", err)
	default:
	}
	if err := h.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	for range n {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	p.Reap()
	if err := h.Wait(t.Context()); err != nil {
		t.Errorf("reaped: %v", err)
	}
}

func TestClose(t *testing.T) {
	h := open(t, sleeper(t).PID())
	fd, err := h.Dup()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}
	for what, err := range map[string]error{
		"signal": h.Signal(0),
		"wait":   h.Wait(t.Context()),
		"dup":    func() error { _, err := h.Dup(); return err }(),
		"verify": func() error { _, err := h.Identity(); return err }(),
		"cgroup": func() error { _, err := h.CgroupID(); return err }(),
	} {
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s after Close: %v", what, err)
		}
	}
	d := FromFD(fd, h.PID())
	defer d.Close()
	if err := d.Signal(0); err != nil {
		t.Errorf("the duplicate: %v", err)
	}
	if err := FromFD(-1, 5000).Signal(0); err == nil {
		t.Error("a handle of no descriptor was signalled")
	}
}

func BenchmarkIdentity(b *testing.B) {
	h := open(b, sleeper(b).PID())
	here := ReadHere()
	b.Run("all", func(b *testing.B) {
		for b.Loop() {
			if _, err := h.Identity(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("here-known", func(b *testing.B) {
		for b.Loop() {
			if _, err := h.IdentityIn(here); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("signal-0", func(b *testing.B) {
		for b.Loop() {
			if err := h.Signal(0); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("open-cgroup-close", func(b *testing.B) {
		var loc Locator
		for b.Loop() {
			h, err := Open(h.PID())
			if err != nil {
				b.Fatal(err)
			}
			if _, err := loc.CgroupID(h); err != nil {
				b.Fatal(err)
			}
			h.Close()
		}
	})
	b.Run("own-cgroups", func(b *testing.B) {
		for b.Loop() {
			if _, err := OwnCgroups(); err != nil {
				b.Fatal(err)
			}
		}
	})
}
