package reaper_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/internal/sys"
	"pinfold.dev/internal/wire"
	"pinfold.dev/internal/wire/wirenet"
)

// long bounds every wait; the machine may be slow.
const long = 3 * time.Minute

const prefix = "pinfold-test.reaper."

var (
	keeperBinary string // built by TestMain
	scratch      string // a directory that everybody may read
	cgroupMount  string
)

func TestMain(m *testing.M) {
	if name := os.Getenv("PINFOLD_TEST_HELPER"); name != "" {
		os.Exit(helpers[name](os.Args[1:]))
	}
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "reaper")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer os.RemoveAll(dir)
	os.Chmod(dir, 0o755)
	scratch = dir
	if err := buildKeeper(dir); err != nil {
		fmt.Println(err)
		return 1
	}
	mount, _, err := sys.FindCgroup2()
	if err == nil {
		cgroupMount = mount.Path
		sweepDead()
	}
	return m.Run()
}

// buildKeeper builds the keeper into dir, as it is shipped, or takes the one of
// PINFOLD_BIN_DIR.
func buildKeeper(dir string) error {
	keeperBinary = filepath.Join(dir, "pinfold-init")
	if bin := os.Getenv("PINFOLD_BIN_DIR"); bin != "" {
		keeperBinary = filepath.Join(bin, "pinfold-init")
		return nil
	}
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", keeperBinary, "pinfold.dev/cmd/pinfold-init")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build keeper: %w\n%s", err, out)
	}
	return nil
}

// sweepDead removes the cgroups that a killed test run has left.
func sweepDead() {
	old, _ := filepath.Glob(filepath.Join(cgroupMount, prefix+"*"))
	for _, dir := range old {
		id, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), prefix), ".")
		pid, err := strconv.Atoi(id)
		if err == nil && syscall.Kill(pid, 0) != nil {
			removeCgroup(dir)
		}
	}
}

// needCgroup skips where no cgroup can be made, and fails where one should be.
func needCgroup(t testing.TB) {
	t.Helper()
	if cgroupMount == "" {
		t.Skip("no cgroup v2 mount")
	}
	if os.Geteuid() != 0 {
		t.Skip("not root: cannot make cgroups")
	}
}

// bed is a keeper in a cgroup of its own, and a service's connection to it.
type bed struct {
	t      testing.TB
	dir    string
	cgroup string
	work   string
	socket string
	cmd    *exec.Cmd
	*client
}

var serial struct {
	sync.Mutex
	n int
}

const testNonce = "nonce-of-the-test"

// newBed starts a keeper, says hello and gives it its cgroup.
func newBed(t testing.TB) *bed {
	t.Helper()
	b := newKeeper(t, nil)
	b.mustHold(false)
	return b
}

// newKeeper starts a keeper and says hello. adjust may change the command.
func newKeeper(t testing.TB, adjust func(*exec.Cmd)) *bed {
	t.Helper()
	return newKeeperIn(t, t.TempDir(), adjust)
}

func newKeeperIn(t testing.TB, dir string, adjust func(*exec.Cmd)) *bed {
	t.Helper()
	needCgroup(t)
	serial.Lock()
	serial.n++
	n := serial.n
	serial.Unlock()
	b := &bed{t: t, dir: dir}
	b.cgroup = filepath.Join(cgroupMount, fmt.Sprintf("%s%d.%d", prefix, os.Getpid(), n))
	b.work = filepath.Join(b.cgroup, "work")
	for _, d := range []string{b.cgroup, b.work, filepath.Join(b.cgroup, "keeper")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(b.end)
	b.start(adjust)
	b.client = b.connect()
	pid := b.cmd.Process.Pid
	if b.cmd.SysProcAttr.Cloneflags&syscall.CLONE_NEWPID != 0 {
		pid = 1
	}
	if m := b.client.hello(testNonce); m.Error != nil || m.Hello == nil || m.Hello.PID != pid {
		t.Fatalf("hello: %+v\n%s", m.Message, b.log())
	}
	return b
}

func (b *bed) start(adjust func(*exec.Cmd)) {
	b.t.Helper()
	b.socket = filepath.Join(b.dir, "keeper.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: b.socket, Net: "unix"})
	if err != nil {
		b.t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	defer l.Close()
	f, err := l.File()
	if err != nil {
		b.t.Fatal(err)
	}
	defer f.Close()
	leaf, err := os.Open(filepath.Join(b.cgroup, "keeper"))
	if err != nil {
		b.t.Fatal(err)
	}
	defer leaf.Close()
	logFile, err := os.Create(filepath.Join(b.dir, "keeper.log"))
	if err != nil {
		b.t.Fatal(err)
	}
	defer logFile.Close()
	b.cmd = exec.Command(keeperBinary, "keeper", "--turn", "t1", "--dir", b.dir)
	b.cmd.ExtraFiles = []*os.File{f}
	b.cmd.Stderr = logFile
	b.cmd.SysProcAttr = &syscall.SysProcAttr{
		UseCgroupFD: true, CgroupFD: int(leaf.Fd()), Setsid: true, Pdeathsig: syscall.SIGKILL,
	}
	if adjust != nil {
		adjust(b.cmd)
	}
	if err := startToStay(b.t, b.cmd); err != nil {
		b.t.Fatal(err)
	}
}

// startToStay starts a command on a thread that is there until the test is over:
// Pdeathsig is for the end of the thread, and one on which a goroutine ends locked
// ends with it.
func startToStay(t testing.TB, cmd *exec.Cmd) error {
	over, started := make(chan struct{}), make(chan error)
	t.Cleanup(func() { close(over) })
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		started <- cmd.Start()
		<-over
	}()
	return <-started
}

// end kills what is left and removes the cgroup; it fails the test if the
// keeper had something to complain about.
func (b *bed) end() {
	if b.cmd != nil && b.cmd.Process != nil {
		b.cmd.Process.Kill()
		b.cmd.Wait()
	}
	if !removeCgroup(b.cgroup) {
		b.t.Errorf("cgroup %s could not be removed", b.cgroup)
	}
	if text := b.log(); strings.Contains(text, "panic") {
		b.t.Errorf("the keeper's log:\n%s", text)
	}
}

func (b *bed) log() string {
	text, _ := os.ReadFile(filepath.Join(b.dir, "keeper.log"))
	return string(text)
}

// removeCgroup kills and removes a cgroup that a test has made.
func removeCgroup(dir string) bool {
	for end := time.Now().Add(long); ; time.Sleep(5 * time.Millisecond) {
		os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0)
		filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error { return err })
		removeTree(dir)
		if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}

func removeTree(dir string) {
	list, _ := os.ReadDir(dir)
	for _, d := range list {
		if d.IsDir() {
			removeTree(filepath.Join(dir, d.Name()))
		}
	}
	syscall.Rmdir(dir)
}

// connect opens one more connection.
func (b *bed) connect() *client {
	b.t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: b.socket, Net: "unix"})
	if err != nil {
		b.t.Fatal(err)
	}
	return newClient(b.t, c)
}

// client is the service's side of a connection.
type client struct {
	t    testing.TB
	conn *wire.Conn
	mu   sync.Mutex
	id   uint64
	due  map[uint64]chan answer
	gone chan struct{} // closed when the connection ends
	// events holds every announcement.
	events chan wire.Message
}

type answer struct {
	wire.Message
	fds []int
}

func newClient(t testing.TB, c *net.UnixConn) *client {
	cl := &client{
		t: t, conn: wire.NewConn(wirenet.FromUnixConn(c)), due: make(map[uint64]chan answer),
		gone: make(chan struct{}), events: make(chan wire.Message, 100_000),
	}
	t.Cleanup(func() { cl.conn.Close(); <-cl.gone })
	go cl.read()
	return cl
}

func (c *client) read() {
	defer close(c.gone)
	for {
		m, fds, err := c.conn.Recv()
		if err != nil {
			return
		}
		if m.Event != "" {
			closeFDs(fds)
			c.events <- m
			continue
		}
		c.mu.Lock()
		ch := c.due[m.ID]
		delete(c.due, m.ID)
		c.mu.Unlock()
		if ch == nil {
			c.t.Errorf("answer to no question: %+v", m)
			closeFDs(fds)
			continue
		}
		ch <- answer{m, fds}
	}
}

func closeFDs(fds []int) {
	for _, fd := range fds {
		syscall.Close(fd)
	}
}

// ask sends a request; its answer comes on the channel.
func (c *client) ask(m wire.Message, fds ...int) <-chan answer {
	ch := make(chan answer, 1)
	c.mu.Lock()
	c.id++
	m.ID = c.id
	c.due[m.ID] = ch
	c.mu.Unlock()
	if err := c.conn.Send(m, fds); err != nil {
		c.t.Logf("send %s: %v", m.Op, err)
	}
	return ch
}

// call asks and waits for the answer; closed descriptors unless keep.
func (c *client) call(m wire.Message, fds ...int) answer {
	c.t.Helper()
	return c.await(m, c.ask(m, fds...))
}

func (c *client) await(m wire.Message, ch <-chan answer) answer {
	c.t.Helper()
	select {
	case a := <-ch:
		return a
	case <-c.gone:
		select {
		case a := <-ch:
			return a
		default:
		}
		return answer{Message: wire.Message{Error: &wire.Error{Kind: "closed"}}}
	case <-time.After(long):
		c.t.Fatalf("no answer to %s", m.Op)
	}
	return answer{}
}

func (c *client) hello(nonce string) answer {
	c.t.Helper()
	return c.call(wire.Message{Op: wire.OpHello, Hello: &wire.Hello{Version: wire.Version, Turn: "t1", Nonce: nonce}})
}

func (b *bed) mustHold(gate bool) {
	b.t.Helper()
	if m := b.call(wire.Message{Op: wire.OpHold, Hold: &wire.Hold{Work: b.work, Gate: gate}}); m.Error != nil {
		b.t.Fatalf("hold: %+v", m.Error)
	}
}

var cleanEnv = []string{"PATH=/usr/bin:/bin"}

// request makes a launch request with null stdio.
func request(process string, argv ...string) *wire.Launch {
	return &wire.Launch{Process: process, Argv: argv, Env: cleanEnv, Cwd: "/", Stdin: -1, Stdout: -1, Stderr: -1}
}

func (c *client) launch(l *wire.Launch, fds ...int) answer {
	c.t.Helper()
	a := c.call(wire.Message{Op: wire.OpLaunch, Launch: l}, fds...)
	closeFDs(a.fds)
	return a
}

func (c *client) mustLaunch(l *wire.Launch, fds ...int) wire.Started {
	c.t.Helper()
	a := c.launch(l, fds...)
	if a.Error != nil || a.Started == nil {
		c.t.Fatalf("launch %s: %+v", l.Process, a.Error)
	}
	if len(a.fds) != 1 {
		c.t.Fatalf("launch %s: %d handles came along", l.Process, len(a.fds))
	}
	return *a.Started
}

// exitOf waits for the end of a process; ends of others are put aside.
func (c *client) exitOf(process string) wire.Exit {
	c.t.Helper()
	var others []wire.Message
	defer func() {
		for _, m := range others {
			c.events <- m
		}
	}()
	for end := time.After(long); ; {
		select {
		case m := <-c.events:
			if m.Event == wire.EventExit && m.Exit.Process == process {
				return *m.Exit
			}
			others = append(others, m)
		case <-end:
			c.t.Fatalf("%s does not end", process)
		}
	}
}

// output runs a launch to its end and returns what it wrote.
func (b *bed) output(l *wire.Launch) string {
	b.t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		b.t.Fatal(err)
	}
	defer r.Close()
	l.Stdout, l.Stderr = 0, 0
	b.mustLaunch(l, int(w.Fd()))
	w.Close()
	done := make(chan string)
	go func() {
		var all []byte
		buf := make([]byte, 4096)
		for {
			n, err := r.Read(buf)
			all = append(all, buf[:n]...)
			if err != nil {
				done <- string(all)
				return
			}
		}
	}()
	b.exitOf(l.Process)
	select {
	case text := <-done:
		return text
	case <-time.After(long):
		b.t.Fatal("output does not end")
	}
	return ""
}

// journal reads the keeper's.
func (b *bed) journal() []wire.Entry {
	b.t.Helper()
	f, err := os.Open(filepath.Join(b.dir, wire.JournalName))
	if err != nil {
		b.t.Fatal(err)
	}
	defer f.Close()
	list, torn, err := wire.ReadJournal(f)
	if err != nil || torn != 0 {
		b.t.Fatalf("journal: %d torn lines, %v", torn, err)
	}
	return list
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(long); !f(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// leaves lists the cgroups below work.
func (b *bed) leaves() []string {
	var names []string
	list, _ := os.ReadDir(b.work)
	for _, d := range list {
		if d.IsDir() {
			names = append(names, d.Name())
		}
	}
	return names
}
