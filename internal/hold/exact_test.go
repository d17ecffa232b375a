//go:build linux

package hold

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/cgroup"
	"pinfold.dev/containment"
	"pinfold.dev/internal/sys/systest"
	"pinfold.dev/internal/wire"
	"pinfold.dev/pidfd"
)

// A work/ that is there and cannot be opened is no reason to take the whole of the
// turn's cgroup for it: that has the keeper and the jobs.
func TestWorkThatCannotBeOpened(t *testing.T) {
	s := begin(t)
	if err := os.Chmod(s.work.Path(), 0o700); err != nil {
		t.Fatal(err)
	}
	x := s.host.newHold(s.turn, s.hold.facts, s.hooks())
	var err error
	if x.dir, err = cgroup.Open(s.dir.Path()); err != nil {
		t.Fatal(err)
	}
	defer x.dir.Close()
	runtime.LockOSThread()
	_, _, errno := syscall.RawSyscall(syscall.SYS_SETFSUID, 65534, 0, 0) // of this thread alone
	err = x.openDirs(t.Context())
	_, _, _ = syscall.RawSyscall(syscall.SYS_SETFSUID, 0, 0, 0)
	runtime.UnlockOSThread()
	if !errors.Is(err, syscall.EACCES) {
		t.Errorf("%v (%v)", err, errno)
	}
	if x.work != nil {
		t.Errorf("work/ is %s", x.work.Path())
		x.work.Close()
	}
	s.endTurn()
}

// Who is to be spared has to be known: one whose handle did not come is not taken for
// one that has ended.
func TestSpareWithoutHandle(t *testing.T) {
	s := begin(t)
	st := s.start("p1", "sleep", "1000")
	live := mustLive(t, st.PID)
	s.hold.mu.Lock()
	h := s.procs["p1"].handle
	s.procs["p1"].handle = nil
	s.hold.mu.Unlock()
	_, err := s.EndLaunch(t.Context(), "p1", syscall.SIGTERM, 0, time.Minute, true)
	if !errors.Is(err, api.ErrUnavailable) {
		t.Error(err)
	}
	live()
	s.hold.mu.Lock()
	s.procs["p1"].handle = h
	s.hold.mu.Unlock()
	s.endTurn()
}

// Without a cgroup and a handle, a launch is ended by what it is known by, and one
// that cannot be verified is neither signalled nor told as ended.
func TestEndWithoutHandle(t *testing.T) {
	s := begin(t)
	var facts containment.Facts
	hooks := containment.Hooks{Save: func(f containment.Facts) error { facts = f; return nil }, Exit: func(containment.Exit) {}, KeeperLost: func(string) {}}
	b, err := s.host.beginAt(t.Context(), containment.Spec{Turn: selfTestID()}, hooks, api.GradeSubreaper, nil)
	if err != nil {
		t.Fatal(err)
	}
	x := b.(*bare)
	defer os.RemoveAll(facts.Dir)
	canary := s.start("p9", "sleep", "1000")
	live := mustLive(t, canary.PID)
	stdio := api.Stdio{Stdin: null, Stdout: null, Stderr: null}
	for i, grace := range []time.Duration{0, 20 * time.Second} {
		id := fmt.Sprintf("p%d", i+1)
		st, err := x.Launch(t.Context(), containment.Launch{Process: id, Argv: []string{"sleep", "1000"}, Env: os.Environ(), Cwd: "/", Stdio: stdio}, nil)
		if err != nil {
			t.Fatal(err)
		}
		dead := mustEnd(t, st.PID)
		x.mu.Lock()
		p := x.procs[id]
		h := p.handle
		p.handle = nil
		x.mu.Unlock()
		k, err := x.EndLaunch(t.Context(), id, syscall.SIGTERM, grace, 20*time.Second, false)
		if over, _ := h.Exited(); err == nil || !k.EmptyAt.IsZero() || over {
			t.Errorf("nothing is known of it: %+v, %v, ended: %v", k, err, over)
		}
		x.hedge(id, st.Identity, nil)
		if k, err = x.EndLaunch(t.Context(), id, syscall.SIGTERM, grace, 20*time.Second, false); err != nil || k.EmptyAt.IsZero() {
			t.Errorf("%+v, %v", k, err)
		}
		if over, _ := h.Exited(); !over {
			t.Errorf("it is told as ended, and lives: %+v", k)
			_ = h.Signal(syscall.SIGKILL)
		}
		dead()
		h.Close()
	}
	live()
	if err := errors.Join(x.Release(t.Context()), x.Remove(t.Context())); err != nil {
		t.Error(err)
	}
	s.endTurn()
}

// What is taken back is gone, also when the keeper does not do as it is told: its
// cgroup is removed once it is dead, not a second later or never.
func TestUndoOfOneThatIsStopped(t *testing.T) {
	s := begin(t)
	var made atomic.Value
	refused := errors.New("no")
	hooks := s.hooks()
	hooks.Save = func(f containment.Facts) error {
		if f.Cgroup == "" {
			return nil
		}
		made.Store(f.Cgroup)
		time.Sleep(200 * time.Millisecond) // it is greeted meanwhile
		return errors.Join(refused, syscall.Kill(f.Keeper.PID, syscall.SIGSTOP))
	}
	if h, err := s.host.Begin(t.Context(), containment.Spec{Turn: selfTestID()}, hooks); !errors.Is(err, refused) {
		t.Fatal(h, err)
	}
	path, ok := made.Load().(string)
	if _, err := os.Stat(path); !ok || s.hold.facts.Grade == api.GradeCgroup && !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is there still (%v)", path, err)
		_ = os.Remove(filepath.Join(path, "keeper"))
	}
	s.endTurn()
}

// Nothing left is no answer of what a host can do.
func TestExhaustionIsInconclusive(t *testing.T) {
	x := newKeeping(nil, "t", containment.Facts{}, containment.Hooks{})
	for err, want := range map[error]bool{
		fmt.Errorf("start the keeper: %w", syscall.EAGAIN):        true,
		&os.PathError{Op: "open", Path: "/", Err: syscall.EMFILE}: true,
		syscall.EACCES:              false,
		errors.New("it was killed"): false,
		x.launchError(containment.Launch{Argv: []string{"x"}}, refusalWith(syscall.EAGAIN)):  true,
		x.launchError(containment.Launch{Argv: []string{"x"}}, refusalWith(syscall.ENOEXEC)): false,
	} {
		if exhausted(err) != want {
			t.Errorf("%v: %v", err, !want)
		}
	}
	if !inconclusive(fmt.Errorf("%w: %w", errFull, syscall.EAGAIN)) {
		t.Error("it is conclusive")
	}
}

func refusalWith(errno syscall.Errno) error {
	return &refusal{wire.Error{Kind: wire.ErrFork, Message: "it is refused", Errno: int(errno)}}
}

// A number alone is not whose it was: before Linux 6.9 the start tick has to be the
// keeper's as well.
func TestKeeperByNumber(t *testing.T) {
	h := &Host{keepers: map[string]api.Identity{"one": {PID: 500, StartTicks: 7}, "two": {PID: 600, StartTicks: 7, Ino: 9}}}
	for _, c := range []struct {
		id   api.Identity
		turn string
	}{
		{api.Identity{PID: 500, StartTicks: 7}, "one"},
		{api.Identity{PID: 500, StartTicks: 8}, ""},
		{api.Identity{PID: 500}, "one"},
		{api.Identity{PID: 600, StartTicks: 7, Ino: 9}, "two"},
		{api.Identity{PID: 600, StartTicks: 7, Ino: 10}, ""},
		{api.Identity{PID: 600, StartTicks: 8}, ""},
		{api.Identity{PID: 700, StartTicks: 7}, ""},
	} {
		if got := h.keeperOf(c.id); got != c.turn {
			t.Errorf("%+v: %q, not %q", c.id, got, c.turn)
		}
	}
}

// A runtime directory that is not well is looked at again when that is due, however
// much goes on in it.
func TestGuardIsNotPutOff(t *testing.T) {
	dir := t.TempDir()
	turns := filepath.Join(dir, "turns")
	if err := errors.Join(os.Mkdir(turns, 0o700), os.WriteFile(filepath.Join(dir, markFile), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	h := &Host{cfg: Config{RuntimeDir: dir}}
	var looked atomic.Int64
	guarded := make(chan error, 1)
	ctx := t.Context()
	go func() {
		guarded <- h.Guard(ctx, "sock", func(string) bool { return false }, func() bool { return looked.Add(1) > 1 })
	}()
	systest.Until(t, "the watch", func() bool { return watchedHere(t, turns) })
	if err := os.Remove(filepath.Join(dir, markFile)); err != nil {
		t.Fatal(err)
	}
	systest.Until(t, "the first look", func() bool { return looked.Load() > 0 })
	end := time.Now().Add(time.Minute)
	for looked.Load() < 2 && time.Now().Before(end) { // turns come and go
		one := filepath.Join(turns, "0123456789abcdef")
		_ = os.Mkdir(one, 0o700)
		_ = os.Remove(one)
		time.Sleep(tendLeast / 10)
	}
	if looked.Load() < 2 {
		t.Error("it was not looked at again")
	}
}

// watchedHere tells whether this process watches a directory (inotify(7)).
func watchedHere(t *testing.T, dir string) bool {
	t.Helper()
	fi, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf(" ino:%x ", fi.Sys().(*syscall.Stat_t).Ino)
	all, _ := filepath.Glob("/proc/self/fdinfo/*")
	for _, path := range all {
		if b, err := os.ReadFile(path); err == nil && strings.Contains(string(b), "inotify wd:") && strings.Contains(string(b), want) {
			return true
		}
	}
	return false
}

// A launch that is refused before it is sent leaves no descriptor behind.
func TestInputThatIsNotSent(t *testing.T) {
	x := newKeeping(nil, "t", containment.Facts{Dir: t.TempDir()}, containment.Hooks{})
	count := func() int { all, _ := os.ReadDir("/proc/self/fd"); return len(all) }
	before := count()
	for range 20 {
		l := containment.Launch{Argv: []string{"x"}, Stdio: api.Stdio{Stdin: api.Stream{Mode: api.StdioData, Data: []byte("in")},
			Stdout: api.Stream{Mode: api.StdioSpool, MaxBytes: 1}, Stderr: null}}
		if r, err := x.newRequest(l, nil); err == nil {
			t.Fatal(r)
		}
	}
	if now := count(); now >= before+20 {
		t.Errorf("%d descriptors more", now-before)
	}
}

// Where there is no /proc to tell where a process is, the kernel tells it by the
// handle: one that is slow to end has not left then, either.
func TestSlowToEndWithoutProc(t *testing.T) {
	if oldKernel(t) {
		t.Log("this kernel does not tell where a process is by its handle")
		return
	}
	for _, moved := range []bool{false, true} {
		s := begin(t)
		st := s.start("p1", "sleep", "1000")
		if moved {
			if err := place(t).Add(st.PID); err != nil {
				t.Fatal(err)
			}
		}
		var k containment.Killed
		var targets looking
		done := make(chan error)
		go func() { // of a thread alone, which ends with this
			runtime.LockOSThread()
			err := syscall.Unshare(syscall.CLONE_NEWNS | syscall.CLONE_FS)
			if err == nil {
				err = syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, "")
			}
			if err == nil {
				err = syscall.Unmount("/proc", syscall.MNT_DETACH)
			}
			if err == nil {
				targets = looking{seen: map[int]bool{}, isJob: map[string]bool{}}
				targets.escaped(s.hold)
				s.endEscaped("p1", s.handles()["p1"], s.work.Path(), time.Now().Add(20*time.Second), &k)
			}
			done <- err
		}()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if (len(k.Escaped) == 1) != moved || len(k.Survivors) > 0 {
			t.Errorf("moved %v: %+v", moved, k)
		}
		if (len(targets.out) == 1) != moved {
			t.Errorf("moved %v: %+v", moved, targets.out)
		}
		s.endTurn()
	}
}

// A child of which nobody can tell whose it is, for want of descriptors say, is not
// left out in silence when its whole tree is adopted.
func TestAdoptTreeWithoutDescriptors(t *testing.T) {
	s := begin(t)
	home := place(t)
	shell, child := pair(t, home)
	leaf, err := s.work.Make("p7")
	if err != nil {
		t.Fatal(err)
	}
	defer leaf.Close()
	top, err := pidfd.Open(shell.PID())
	if err != nil {
		t.Fatal(err)
	}
	defer top.Close()
	h, err := pidfd.Open(child)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	k := &taking{x: s.hold, leaf: leaf, a: containment.Adopting{May: anybody}, by: map[int]*taken{}}
	parent := &taken{found: &found{h: top, id: whose(t, shell.PID())}}
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 3, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	over, err := k.isChild(t.Context(), h, parent)
	if rerr := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was); rerr != nil {
		t.Fatal(rerr)
	}
	if !over || !errors.Is(err, api.ErrAdoptRefused) {
		t.Errorf("%v, %v", over, err)
	}
	s.endTurn()
}

// Who has ended by itself while it was being ended, and was told as such, is no
// survivor, and keeps nobody else's end waiting: there, the keeper is gone, and each
// shell ends when what it waits for is killed.
func TestKillWhileTheyEnd(t *testing.T) {
	s := begin(t)
	canary := s.start("p9", "sleep", "1000")
	live := mustLive(t, canary.PID)
	for range 4 {
		var facts containment.Facts
		hooks := containment.Hooks{Save: func(f containment.Facts) error { facts = f; return nil }, Exit: func(containment.Exit) {}, KeeperLost: func(string) {}}
		b, err := s.host.beginAt(t.Context(), containment.Spec{Turn: selfTestID()}, hooks, api.GradeSubreaper, nil)
		if err != nil {
			t.Fatal(err)
		}
		x := b.(*bare)
		var pids []int
		for i := range 6 {
			st, err := x.Launch(t.Context(), containment.Launch{Process: fmt.Sprintf("p%d", i+1), Argv: []string{"sh", "-c", "sleep 1000; exit 3"},
				Env: os.Environ(), Cwd: "/", Stdio: api.Stdio{Stdin: null, Stdout: null, Stderr: null}}, nil)
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, st.PID)
		}
		dead := mustEnd(t, pids...)
		systest.Until(t, "their children", func() bool { ms, err := x.Members(); return err == nil && len(ms) == 2*len(pids) })
		if err := x.EndKeeper(t.Context()); err != nil {
			t.Fatal(err)
		}
		k, err := x.Kill(t.Context(), time.Minute)
		if err != nil || len(k.Survivors) > 0 || !k.Hopeless {
			t.Errorf("%+v, %v", k, err)
		}
		for _, n := range k.Notes {
			if strings.Contains(n, "already closed") || strings.Contains(n, "one cannot tell whether it lives") {
				t.Errorf("a handle was closed under the ending: %s", n)
			}
		}
		dead()
		if err := errors.Join(x.Release(t.Context()), x.Remove(t.Context()), os.RemoveAll(facts.Dir)); err != nil {
			t.Error(err)
		}
	}
	live()
	s.endTurn()
}
