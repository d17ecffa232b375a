//go:build linux

package hold

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/cgroup"
	"pinfold.dev/containment"
	"pinfold.dev/internal/spool"
	"pinfold.dev/internal/sys/systest"
	"pinfold.dev/pidfd"
)

var suite = systest.New(map[string]systest.Helper{
	"family":   family,
	"storm":    storm,
	"headless": func([]string) error { return systest.EndMainThread() },
	"beat":     beat,
	"herd":     herd,
	"promoter": promoter,
})

const bedPrefix = "pinfold-test.hold."

func TestMain(m *testing.M) {
	if os.Getenv("PINFOLD_TEST_HELPER") == "" && os.Geteuid() == 0 {
		sweep()
	}
	suite.Main(m)
}

// bed is a directory of the run with pinfold-init, made by the first test that
// needs it. PINFOLD_BIN_DIR says where there is one that was built before.
var bed = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", bedPrefix+strconv.Itoa(os.Getpid())+".")
	if err != nil {
		return "", err
	}
	suite.After(func() { os.RemoveAll(dir) })
	if at := os.Getenv("PINFOLD_BIN_DIR"); at != "" {
		return dir, os.Symlink(filepath.Join(at, "pinfold-init"), filepath.Join(dir, "pinfold-init"))
	}
	out, err := exec.Command("go", "build", "-o", dir+"/", "pinfold.dev/cmd/pinfold-init").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build pinfold-init: %w: %s", err, out)
	}
	return dir, nil
})

// sweep removes what runs that were killed have left.
func sweep() {
	base, err := testBase()
	if err != nil {
		return
	}
	dead := func(path string) bool {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(path), bedPrefix), ".")
		n, err := strconv.Atoi(pid)
		if err != nil || n == os.Getpid() || n == os.Getppid() {
			return false
		}
		h, err := pidfd.Open(n)
		if err == nil {
			h.Close()
		}
		return errors.Is(err, pidfd.ErrGone)
	}
	groups, _ := filepath.Glob(filepath.Join(base, bedPrefix+"*"))
	for _, path := range groups {
		if d, err := cgroup.Open(path); err == nil && dead(path) {
			_, _ = d.Kill(context.Background(), 10*time.Second)
			_ = d.Remove(context.Background())
			d.Close()
		}
	}
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), bedPrefix+"*"))
	for _, path := range dirs {
		if dead(path) {
			_ = os.RemoveAll(path)
		}
	}
}

// testBase is where tests make their cgroups: in our own, or, where that has
// controllers and so can hand none down with us in it, beside it.
func testBase() (string, error) {
	m, err := cgroup.FindMount()
	if err != nil {
		return "", err
	}
	own, err := m.Own()
	if err != nil || own == m.Path {
		return own, err
	}
	if d, err := cgroup.Open(own); err == nil {
		defer d.Close()
		if have, err := d.Controllers(); err == nil && len(have) > 0 {
			return filepath.Dir(own), nil
		}
	}
	return own, nil
}

var number atomic.Int32

// place is a cgroup of the test's own, ended and removed after it.
func place(t testing.TB) *cgroup.Dir {
	t.Helper()
	systest.Root(t)
	base, err := testBase()
	if err != nil {
		t.Fatalf("no cgroup v2 to test in: %v", err)
	}
	d, err := cgroup.Make(fmt.Sprintf("%s/%s%d.%d", base, bedPrefix, os.Getpid(), number.Add(1)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		defer d.Close()
		if _, err := d.Kill(context.Background(), time.Minute); err != nil {
			t.Errorf("clean up: %v", err)
		}
		if err := d.Remove(context.Background()); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	return d
}

// stage is a host and one turn on it.
type stage struct {
	t    *testing.T
	host *Host
	*hold
	mu    sync.Mutex
	told  []containment.Exit
	lost  string
	facts containment.Facts
}

var turns atomic.Int64

// begin begins a turn.
func begin(t *testing.T) *stage {
	t.Helper()
	systest.Root(t)
	dir, err := bed()
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{t: t}
	run, err := os.MkdirTemp(dir, "run")
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Grade: api.GradeCgroup, Init: filepath.Join(dir, "pinfold-init"), RuntimeDir: run}
	if g := api.Grade(os.Getenv("PINFOLD_TEST_GRADE")); g == api.GradeScope {
		cfg.Grade = g
	} else {
		cfg.CgroupParent = place(t).Path()
	}
	if s.host, err = Open(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.host.Close() })
	spec := containment.Spec{Turn: fmt.Sprintf("%016x", turns.Add(1)), Spool: filepath.Join(run, "spool")}
	h, err := s.host.Begin(t.Context(), spec, s.hooks())
	if err != nil {
		t.Fatal(err)
	}
	s.hold = h.(*hold)
	t.Cleanup(func() { s.Close() })
	return s
}

func (s *stage) hooks() containment.Hooks {
	return containment.Hooks{
		Save: func(f containment.Facts) error { s.mu.Lock(); defer s.mu.Unlock(); s.facts = f; return nil },
		Exit: func(e containment.Exit) { s.mu.Lock(); defer s.mu.Unlock(); s.told = append(s.told, e) },
		KeeperLost: func(why string) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.lost = why
		},
		Started: func(containment.Recovered) {},
	}
}

// restart lets the turn go and finds it again, as a later service does.
func (s *stage) restart() {
	s.t.Helper()
	if err := s.Close(); err != nil {
		s.t.Fatal(err)
	}
	s.find()
}

func (s *stage) find() {
	s.t.Helper()
	s.mu.Lock()
	facts := s.facts
	s.told = nil
	s.mu.Unlock()
	h, v, err := s.host.Recover(s.t.Context(), s.turn, facts, s.hooks())
	if err != nil || v != api.VerdictOwned {
		s.t.Fatalf("recover: %s, %v", v, err)
	}
	s.hold = h.(*hold)
	systest.Until(s.t, "the keeper answers, or is dead", func() bool { return !s.unreached.Load() || s.keeperDead() })
}

// exit waits until the end of a launch was told, which has to be once.
func (s *stage) exit(process string) api.Status {
	s.t.Helper()
	var all []containment.Exit
	systest.Until(s.t, "the end of "+process, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		all = nil
		for _, e := range s.told {
			if e.Process == process {
				all = append(all, e)
			}
		}
		return len(all) > 0
	})
	if len(all) != 1 {
		s.t.Fatalf("the end of %s was told %d times: %+v", process, len(all), all)
	}
	return all[0].Status
}

func (s *stage) noExit(process string) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.told {
		if e.Process == process {
			s.t.Errorf("told an end of %s: %+v", process, e.Status)
		}
	}
}

// start launches a command.
func (s *stage) start(process string, argv ...string) containment.Started {
	s.t.Helper()
	return s.launch(containment.Launch{Process: process, Argv: argv})
}

// help launches a helper, whose standard output is kept.
func (s *stage) help(process, name string, args ...string) containment.Started {
	s.t.Helper()
	cmd := suite.Command(s.t, name, args...)
	return s.launch(containment.Launch{Process: process, Argv: append([]string{cmd.Path}, args...), Env: cmd.Env,
		Stdio: api.Stdio{Stdin: null, Stdout: api.Stream{Mode: api.StdioSpool, MaxBytes: 1 << 20}, Stderr: null}})
}

var null = api.Stream{Mode: api.StdioNull}

func (s *stage) launch(l containment.Launch) containment.Started {
	s.t.Helper()
	if l.Cwd == "" {
		l.Cwd = "/"
	}
	if l.Env == nil {
		l.Env = os.Environ()
	}
	if l.Stdio.Stdin.Mode == "" {
		l.Stdio = api.Stdio{Stdin: null, Stdout: null, Stderr: null}
	}
	st, err := s.Launch(s.t.Context(), l, nil)
	if err != nil {
		s.t.Fatalf("launch %s %q: %v", l.Process, l.Argv, err)
	}
	return st
}

// output is what a launch has written so far.
func (s *stage) output(process string) string {
	s.t.Helper()
	r, err := spool.Open(filepath.Join(s.hold.facts.Spool, process+".stdout"))
	if err != nil {
		s.t.Fatal(err)
	}
	defer r.Close()
	b, off := make([]byte, 1<<20), int64(0)
	for {
		n, next, gap, err := r.ReadAt(b[off:], off)
		if err != nil && err != io.EOF || gap != nil {
			s.t.Fatalf("read the output of %s: %v, %v", process, gap, err)
		}
		if n == 0 {
			return string(b[:off])
		}
		off = next
	}
}

// lines waits for n lines of output and returns them.
func (s *stage) lines(process string, n int) []string {
	s.t.Helper()
	var all []string
	systest.Until(s.t, fmt.Sprintf("%d lines of %s", n, process), func() bool {
		all = nil
		for line := range strings.Lines(s.output(process)) {
			if strings.HasSuffix(line, "\n") {
				all = append(all, strings.TrimSpace(line))
			}
		}
		return len(all) >= n
	})
	return all
}

// mustLive are processes that have to live on; it is checked with each call.
func mustLive(t *testing.T, pids ...int) func() {
	t.Helper()
	var hs []*pidfd.Handle
	for _, pid := range pids {
		h, err := pidfd.Open(pid)
		if err != nil {
			t.Fatalf("process %d: %v", pid, err)
		}
		t.Cleanup(func() { h.Close() })
		hs = append(hs, h)
	}
	return func() {
		t.Helper()
		for _, h := range hs {
			if over, err := h.Exited(); err != nil || over {
				t.Errorf("process %d does not live (%v)", h.PID(), err)
			}
		}
	}
}

// mustEnd waits until all have ended.
func mustEnd(t *testing.T, pids ...int) func() {
	t.Helper()
	var hs []*pidfd.Handle
	for _, pid := range pids {
		h, err := pidfd.Open(pid)
		if err != nil {
			t.Fatalf("process %d: %v", pid, err)
		}
		t.Cleanup(func() { h.Close() })
		hs = append(hs, h)
	}
	return func() {
		t.Helper()
		for _, h := range hs {
			systest.Until(t, fmt.Sprintf("the end of process %d", h.PID()), func() bool { over, err := h.Exited(); return over && err == nil })
		}
	}
}

// pidsOf are the members' numbers.
func pidsOf(t *testing.T, ms []api.Member, err error) []int {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	out := make([]int, 0, len(ms))
	for _, m := range ms {
		out = append(out, m.PID)
	}
	return out
}

// endTurn kills what is left of the turn, and its job, and lets all of it go.
func (s *stage) endTurn() {
	s.t.Helper()
	if k, err := s.Kill(context.Background(), time.Minute); err != nil || k.EmptyAt.IsZero() {
		s.t.Fatalf("kill the turn: %+v, %v", k, err)
	}
	if err := s.Release(context.Background()); err != nil {
		s.t.Fatal(err)
	}
	path := s.dir.Path()
	if err := s.Remove(context.Background()); err != nil {
		s.t.Fatal(err)
	}
	systest.Until(s.t, "the removal of "+path, func() bool { _, err := os.Stat(path); return errors.Is(err, os.ErrNotExist) })
}

// oldKernel tells one that does not say how a process ended that somebody else
// has reaped (before Linux 6.15), by asking for one.
func oldKernel(t *testing.T) bool {
	t.Helper()
	cmd := exec.Command("true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h, err := pidfd.Open(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	_, err = h.ExitStatus()
	return err != nil
}
