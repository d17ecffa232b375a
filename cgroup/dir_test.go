//go:build linux

package cgroup

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys/systest"
)

func TestMake(t *testing.T) {
	d := testDir(t)
	c := child(t, d, "leaf")
	if c.Path() != d.Path()+"/leaf" || c.ID() == 0 || c.ID() == d.ID() || c.FD() < 0 {
		t.Errorf("%s %d %d", c.Path(), c.ID(), c.FD())
	}
	if _, err := d.Make("leaf"); !errors.Is(err, syscall.EEXIST) {
		t.Errorf("a second time: %v", err)
	}
	for _, name := range []string{"", ".", "..", "a/b", "/a", "a\nb", "a\x00"} {
		if x, err := d.Make(name); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("Make(%q): %v, %v", name, x, err)
		}
		if x, err := d.Open(name); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("Open(%q): %v, %v", name, x, err)
		}
	}
	if err := os.WriteFile(d.Path()+"/cgroup.max.descendants", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Make("one-too-many"); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("over cgroup.max.descendants: %v", err)
	}
	for range 2 {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := c.Populated(); !errors.Is(err, os.ErrClosed) || c.FD() != -1 {
		t.Errorf("closed: %v, %d", err, c.FD())
	}
}

// TestMakeElsewhere: nothing is made, and nothing opened, that is no cgroup.
func TestMakeElsewhere(t *testing.T) {
	dir := t.TempDir()
	if _, err := Make(dir + "/x"); !errors.Is(err, errNotCgroup2) {
		t.Error(err)
	}
	if _, err := Open(dir); !errors.Is(err, errNotCgroup2) {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
	d := testDir(t)
	if err := os.Symlink(d.Path(), dir+"/link"); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir + "/link"); err == nil {
		t.Error("followed a link")
	}
	if _, err := Open(d.Path() + "/cgroup.procs"); !errors.Is(err, syscall.ENOTDIR) {
		t.Error(err)
	}
}

func TestOpenVerified(t *testing.T) {
	d := testDir(t)
	c := child(t, d, "turn")
	unmarked := child(t, d, "unmarked")
	if err := c.Mark("n-1"); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Nonce(); n != "n-1" || err != nil {
		t.Fatal(n, err)
	}
	if n, err := unmarked.Nonce(); !errors.Is(err, syscall.ENODATA) {
		t.Errorf("no mark: %q, %v", n, err)
	}
	old, oldID := c.Path(), c.ID()
	if err := os.Remove(old); err != nil {
		t.Fatal(err)
	}
	again := child(t, d, "turn")
	if again.ID() == oldID {
		t.Fatal("an id came back")
	}
	if err := again.Mark("n-2"); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		path  string
		id    uint64
		nonce string
		want  api.Verdict
	}{
		"owned":           {again.Path(), again.ID(), "n-2", api.VerdictOwned},
		"owned, no nonce": {again.Path(), again.ID(), "", api.VerdictOwned},
		"re-created":      {old, oldID, "n-1", api.VerdictForeign},
		"other id":        {again.Path(), again.ID() + 1, "n-2", api.VerdictForeign},
		"other nonce":     {again.Path(), again.ID(), "n-1", api.VerdictForeign},
		"gone":            {d.Path() + "/none", oldID, "n-1", api.VerdictGone},
		"nonce missing":   {unmarked.Path(), unmarked.ID(), "n-1", api.VerdictUnverifiable},
		"no id recorded":  {again.Path(), 0, "n-2", api.VerdictUnverifiable},
		"not a cgroup":    {t.TempDir(), 5, "n-2", api.VerdictUnverifiable},
		"not a directory": {again.Path() + "/cgroup.procs", 5, "", api.VerdictUnverifiable},
	} {
		t.Run(name, func(t *testing.T) {
			x, v, err := OpenVerified(test.path, test.id, test.nonce)
			if v != test.want || (x != nil) != (v == api.VerdictOwned) || (err != nil) != (v == api.VerdictUnverifiable) {
				t.Errorf("%s, %v, %v", v, x, err)
			}
			if x != nil {
				x.Close()
			}
		})
	}
}

func TestFindMount(t *testing.T) {
	m, err := FindMount()
	if err != nil {
		t.Fatal(err)
	}
	own, err := m.Own()
	if err != nil {
		t.Fatal(err)
	}
	pids, err := os.ReadFile(own + "/cgroup.procs")
	if err != nil || !slices.Contains(strings.Fields(string(pids)), strconv.Itoa(os.Getpid())) {
		t.Errorf("%s does not list us: %v", own, err)
	}
	if _, err := m.Dir("/../elsewhere"); !errors.Is(err, ErrOutside) {
		t.Error(err)
	}
}

func TestPids(t *testing.T) {
	d := testDir(t)
	a, b := child(t, d, "a"), child(t, child(t, d, "b"), "c")
	want := []Pid{{born(t, d).PID(), ""}, {born(t, a).PID(), "a"}, {born(t, b).PID(), "b/c"}}
	got, err := d.Pids()
	byPID := func(x, y Pid) int { return x.PID - y.PID }
	slices.SortFunc(got, byPID)
	slices.SortFunc(want, byPID)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, want %v; %v", got, want, err)
	}
	ms, err := d.Members()
	if err != nil || len(ms) != 3 {
		t.Fatal(ms, err)
	}
	systest.Until(t, "they sleep", func() bool {
		ms, err = d.Members()
		return err == nil && !slices.ContainsFunc(ms, func(m api.Member) bool { return m.State != "S" })
	})
	for _, m := range ms {
		if m.Comm != "sleep" || m.PPID != os.Getpid() || m.RSS <= 0 || m.AgeMS < 0 || m.AgeMS > 600_000 || m.UID != 0 {
			t.Errorf("%+v", m)
		}
	}
}

func TestSignal(t *testing.T) {
	newCanary(t)
	d := testDir(t)
	a, b := child(t, d, "a"), child(t, d, "b")
	term, untouched, stopped := born(t, a), born(t, b), born(t, a)
	if err := stopped.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	n, err := d.Signal(func(rel string) syscall.Signal {
		if rel == "a" {
			return syscall.SIGTERM
		}
		return 0
	})
	if n != 2 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	for _, p := range []*systest.Proc{term, stopped} {
		if sig := p.Reap().Sys().(syscall.WaitStatus).Signal(); sig != syscall.SIGTERM {
			t.Errorf("ended by %v", sig)
		}
	}
	if err := handle(t, untouched.PID()).Signal(0); err != nil {
		t.Error(err)
	}
	lone := testDir(t)
	for want := 1; want <= 2; want++ { // by itself, and beside another
		p := zombieLeader(t, suite.Command(t, "leaderless"))
		if err := lone.Add(p.PID()); err != nil {
			t.Fatal(err)
		}
		if want == 2 {
			born(t, child(t, lone, "beside"))
		}
		if n, err := lone.Signal(func(string) syscall.Signal { return syscall.SIGKILL }); n != want || err != nil {
			t.Errorf("leaderless, moved in: %d of %d, %v", n, want, err)
		}
		p.Reap()
	}
}

// TestLiving: each is there once, those too that only their threads show, and no
// main thread that stayed behind.
func TestLiving(t *testing.T) {
	for name, run := range scenarios() {
		t.Run(name, func(t *testing.T) {
			d := testDir(t)
			behind := zombieLeader(t, into(d, suite.Command(t, "leaderless")))
			if err := testDir(t).Add(behind.PID()); err != nil {
				t.Fatal(err)
			}
			want := run(t, d)
			pids, hidden, err := d.Living()
			ms, merr := d.Members()
			slices.Sort(want)
			if got := numbers(pids, func(p Pid) int { return p.PID }); !slices.Equal(got, want) || hidden != 0 || err != nil {
				t.Errorf("%v and %d hidden live, want %v; %v", got, hidden, want, err)
			}
			if got := numbers(ms, func(m api.Member) int { return m.PID }); !slices.Equal(got, want) || merr != nil {
				t.Errorf("members %v, want %v; %v", got, want, merr)
			}
		})
	}
}

func numbers[T any](all []T, of func(T) int) (out []int) {
	for _, x := range all {
		out = append(out, of(x))
	}
	slices.Sort(out)
	return out
}

// TestEmpty: several wait at once, through the short and the long wait.
func TestEmpty(t *testing.T) {
	for name, after := range map[string]time.Duration{"soon": time.Millisecond, "late": 150 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			d := testDir(t)
			p := born(t, child(t, d, "sub"))
			var wg sync.WaitGroup
			for range 20 {
				wg.Go(func() {
					if err := d.Empty(t.Context()); err != nil {
						t.Error(err)
					}
					if populated, err := d.Populated(); populated || err != nil {
						t.Errorf("populated %v, %v", populated, err)
					}
				})
			}
			ctx, cancel := context.WithTimeout(t.Context(), after/2)
			defer cancel()
			if err := d.Empty(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			time.Sleep(after / 2)
			p.End()
			wg.Wait()
		})
	}
}

// TestEmptyRemoved: removal is emptiness, also for those who wait already.
func TestEmptyRemoved(t *testing.T) {
	d := testDir(t)
	c := child(t, d, "sub")
	p := born(t, c)
	done := make(chan error)
	go func() { done <- c.Empty(t.Context()) }()
	time.Sleep(50 * time.Millisecond)
	p.End()
	systest.Until(t, "removed", func() bool { return os.Remove(c.Path()) == nil })
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := c.Empty(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestEmptyRoot(t *testing.T) {
	systest.Root(t)
	m, err := FindMount()
	if err != nil {
		t.Fatal(err)
	}
	d, err := Open(m.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if _, err := os.Stat(m.Path + "/cgroup.events"); err == nil {
		systest.Lacking(t, "root of the hierarchy", errors.New("mounted is "+m.Root))
	}
	if populated, err := d.Populated(); !errors.Is(err, errRoot) {
		t.Errorf("the root was taken for a removed cgroup: %v, %v", populated, err)
	}
}

func TestRemove(t *testing.T) {
	parent := testDir(t)
	d := child(t, parent, "turn")
	for c, i := d, 0; i < 5; i++ {
		c = child(t, c, "deep"+strconv.Itoa(i))
		child(t, c, "side")
	}
	for range 2 {
		if err := d.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := filepath.Glob(parent.Path() + "/turn*"); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
	full := child(t, parent, "full")
	p := born(t, full)
	go func() {
		time.Sleep(30 * time.Millisecond)
		_ = p.Process.Kill()
	}()
	if err := full.Remove(t.Context()); err != nil {
		t.Errorf("busy for a while: %v", err)
	}
	busy := child(t, parent, "busy")
	q := born(t, busy)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := busy.Remove(ctx); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("busy for good: %v", err)
	}
	if err := handle(t, q.PID()).Signal(0); err != nil {
		t.Errorf("removing killed: %v", err)
	}
}

func TestSurvivors(t *testing.T) {
	d := testDir(t)
	sub := child(t, d, "sub")
	p := born(t, sub)
	leaderless := zombieLeader(t, into(sub, suite.Command(t, "leaderless")))
	calm, wchan := 0, "" // one that starts sleeps, too, for its pages
	systest.Until(t, "it sleeps", func() bool {
		s, ok := readStat(p.PID(), "stat")
		now, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID()) + "/wchan")
		if err != nil || string(now) == "0" { // the kernel may be built without
			now = nil
		}
		if !ok || s.State != 'S' || string(now) != wchan {
			calm, wchan = 0, string(now)
		}
		calm++
		time.Sleep(5 * time.Millisecond)
		return calm > 30 && (wchan == "" || strings.Contains(wchan, "nanosleep"))
	})
	got := d.Survivors()
	if len(got) != 2 {
		t.Fatalf("%+v", got)
	}
	for _, s := range got {
		switch s.PID {
		case p.PID():
			if s.TID != 0 || s.State != "S" || s.Comm != "sleep" || s.Cgroup != "sub" || s.WaitChannel != wchan {
				t.Errorf("%+v", s)
			}
		case leaderless.PID():
			if s.TID == 0 || s.State == "Z" {
				t.Errorf("%+v", s)
			}
		default:
			t.Errorf("%+v", s)
		}
	}
}
