//go:build linux

package systest

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Helper is what a re-executed test binary does instead of testing. Its process
// ends with 0 when it returns nil, and with 1 and the error on stderr otherwise.
type Helper func(args []string) error

// Suite is a test binary with its helpers.
type Suite struct {
	helpers map[string]Helper
	mu      sync.Mutex
	used    map[string]bool
	after   []func()
}

const helperVariable = "PINFOLD_TEST_HELPER"

// New registers helpers.
func New(helpers map[string]Helper) *Suite {
	return &Suite{helpers: helpers, used: make(map[string]bool)}
}

// Main is the body of TestMain: it plays the helper that was asked for or runs
// the tests, and fails when they left descriptors open or, unless only some
// were run, a helper unused.
func (s *Suite) Main(m *testing.M) {
	if name := os.Getenv(helperVariable); name != "" {
		os.Exit(s.play(name))
	}
	flag.Parse()
	before := descriptors()
	code := m.Run()
	for _, f := range s.after {
		f()
	}
	if code == 0 {
		code = s.check(before)
	}
	os.Exit(code)
}

// After has f called when all tests of the run are over.
func (s *Suite) After(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.after = append(s.after, f)
}

func (s *Suite) play(name string) int {
	_ = os.Unsetenv(helperVariable)
	h, ok := s.helpers[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "no helper %q is registered\n", name)
		return 2
	}
	if err := h(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "helper %s: %v\n", name, err)
		return 1
	}
	return 0
}

func (s *Suite) check(before map[string]string) int {
	code := 0
	left := leftOpen(before)
	for end := time.Now().Add(30 * time.Second); len(left) > 0 && time.Now().Before(end); left = leftOpen(before) {
		time.Sleep(10 * time.Millisecond) // a goroutine may be about to close it
	}
	for _, what := range left {
		fmt.Fprintf(os.Stderr, "left open: descriptor %s\n", what)
		code = 1
	}
	if flag.Lookup("test.run").Value.String() != "" || flag.Lookup("test.skip").Value.String() != "" || testing.Short() {
		return code
	}
	for _, name := range slices.Sorted(maps.Keys(s.helpers)) {
		if !s.used[name] && flag.Lookup("test.list").Value.String() == "" {
			fmt.Fprintf(os.Stderr, "helper %q was used by no test\n", name)
			code = 1
		}
	}
	return code
}

// leftOpen is what is open and was not before.
func leftOpen(before map[string]string) (left []string) {
	for fd, to := range descriptors() {
		if before[fd] != to {
			left = append(left, fd+", "+to)
		}
	}
	return left
}

// descriptors lists what is open, after the runtime has opened its own.
func descriptors() map[string]string {
	if r, w, err := os.Pipe(); err == nil { // starts the netpoller
		_ = r.SetReadDeadline(time.Now())
		_, _ = r.Read(make([]byte, 1))
		r.Close()
		w.Close()
	}
	out := make(map[string]string)
	dir, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return out
	}
	for _, e := range dir {
		to, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err == nil && !strings.HasPrefix(to, "/proc/") {
			out[e.Name()] = to
		}
	}
	return out
}

// Command prepares a helper. It dies with the test binary.
func (s *Suite) Command(t testing.TB, name string, args ...string) *exec.Cmd {
	t.Helper()
	if _, ok := s.helpers[name]; !ok {
		t.Fatalf("no helper %q is registered", name)
	}
	s.mu.Lock()
	s.used[name] = true
	s.mu.Unlock()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, args...)
	cmd.Env = append(os.Environ(), helperVariable+"="+name)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// Proc is a process that a test started.
type Proc struct {
	*exec.Cmd
	out    *bufio.Reader
	waited sync.Once
	over   chan struct{} // closed when it was waited for
}

// Start starts a command and kills and reaps it when the test is over.
func Start(t testing.TB, cmd *exec.Cmd) *Proc {
	t.Helper()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	p := StartGently(t, cmd)
	t.Cleanup(p.End)
	return p
}

// StartGently starts a command that ends by itself; the test has to see to it.
func StartGently(t testing.TB, cmd *exec.Cmd) *Proc {
	t.Helper()
	out, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close() })
	if cmd.Stdout == nil {
		cmd.Stdout = w
	}
	p := &Proc{Cmd: cmd, out: bufio.NewReader(out), over: make(chan struct{})}
	err = p.start()
	w.Close()
	if err != nil {
		t.Fatalf("start %s: %v", cmd.Path, err)
	}
	return p
}

// start starts it on a thread that is there as long as it is: Pdeathsig is for the
// end of the thread, and one on which some goroutine ends locked ends with it.
func (p *Proc) start() error {
	if p.SysProcAttr == nil || p.SysProcAttr.Pdeathsig == 0 {
		return p.Start()
	}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.Start()
		started <- err
		if err == nil {
			<-p.over
		}
	}()
	return <-started
}

// PID is its process id.
func (p *Proc) PID() int { return p.Process.Pid }

// Line reads a line of its output.
func (p *Proc) Line(t testing.TB) string {
	t.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil && err != io.EOF {
		t.Fatalf("read from %s: %v", p.Path, err)
	}
	if err == io.EOF {
		t.Fatalf("%s %q ended without saying anything (%q)", p.Path, p.Args, line)
	}
	return strings.TrimSuffix(line, "\n")
}

// Rest reads its output to the end.
func (p *Proc) Rest(t testing.TB) string {
	t.Helper()
	b, err := io.ReadAll(p.out)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// End kills it, if it has not ended, and reaps it.
func (p *Proc) End() {
	p.waited.Do(func() {
		defer close(p.over)
		_ = p.Process.Kill()
		_ = p.Cmd.Wait()
	})
}

// Reap waits for it to end by itself and returns its state.
func (p *Proc) Reap() *os.ProcessState {
	p.waited.Do(func() {
		defer close(p.over)
		_ = p.Cmd.Wait()
	})
	return p.ProcessState
}

// EndMainThread ends the main thread of a helper, whose other threads live on:
// the process is a zombie to look at, and is not. It says on stdout the number
// of a thread that lives.
func EndMainThread() error {
	for range 1000 { // a goroutine of these is on it
		main := make(chan bool)
		go func() {
			runtime.LockOSThread()
			if syscall.Gettid() != os.Getpid() {
				main <- false
				select {}
			}
			main <- true
			time.Sleep(20 * time.Millisecond)
			syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0)
		}()
		if <-main {
			runtime.LockOSThread()
			fmt.Println(syscall.Gettid())
			time.Sleep(time.Hour)
		}
	}
	return errors.New("no goroutine came to the main thread")
}

// Root skips a test that needs root.
func Root(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("skipped: not root")
	}
}

// Feature goes on when err is nil, which is to come from trying the feature. It
// skips on kernels older than since (like 6.13), and fails on others: they have
// it, so a test that does not find it is wrong.
func Feature(t testing.TB, name, since string, err error) {
	t.Helper()
	if err == nil {
		return
	}
	if have := kernel(); !older(have, since) {
		t.Fatalf("%s not found on Linux %s, though %s has it: %v", name, have, since, err)
	}
	t.Skipf("skipped: no %s (requires Linux %s): %v", name, since, err)
}

// Lacking skips a test on a host that has not got something which no kernel
// version brings, like a mount or a device: err is to come from looking for it.
func Lacking(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Skipf("skipped: no %s: %v", what, err)
	}
}

// Program finds a program, or skips. It fails where scripts/test.sh has had
// scripts/deps.sh install the programs that tests need.
func Program(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err == nil {
		return path
	}
	if os.Getenv("PINFOLD_TEST_DEPS") != "" {
		t.Fatalf("%v, though scripts/deps.sh was run", err)
	}
	t.Skipf("skipped: no program %s; scripts/deps.sh installs it", name)
	return ""
}

func kernel() string {
	b, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "0.0"
	}
	return strings.TrimSpace(string(b))
}

// older compares the first two numbers of kernel releases.
func older(a, b string) bool {
	x, y := release(a), release(b)
	return x[0] < y[0] || (x[0] == y[0] && x[1] < y[1])
}

func release(s string) (out [2]int) {
	for i, f := range strings.FieldsFunc(s, func(r rune) bool { return r < '0' || r > '9' }) {
		if i == len(out) {
			break
		}
		out[i], _ = strconv.Atoi(f)
	}
	return out
}

// Until calls ok until it returns true, for up to a generous time.
func Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}
