package systemd

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

func openFDs(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

func TestReconnects(t *testing.T) {
	needBed(t, bedRoot)
	m := connect(t, Config{})
	n := 1000
	if testing.Short() {
		n = 30
	}
	p := sleeper(t)
	s := start(t, m, p)
	once := func() {
		l, err := m.current()
		if err != nil || l == nil {
			t.Fatal("no connection", err)
		}
		l.close()
		if active, err := m.active(t.Context(), s.Unit); !active {
			t.Fatal("after a reconnect the scope is not active", err)
		}
	}
	for range 10 {
		once()
	}
	settle := func() (fds, routines int) {
		time.Sleep(100 * time.Millisecond)
		return openFDs(t), runtime.NumGoroutine()
	}
	fds, routines := settle()
	began := time.Now()
	for range n {
		once()
	}
	fds2, routines2 := settle()
	for try := 0; (fds2 > fds+2 || routines2 > routines+5) && try < 300; try++ { // what is closed goes in its time
		fds2, routines2 = settle()
	}
	t.Logf("%d reconnects, %v each; descriptors %d → %d, goroutines %d → %d",
		n, time.Since(began)/time.Duration(n), fds, fds2, routines, routines2)
	if fds2 > fds+2 || routines2 > routines+5 {
		t.Error("reconnects leak")
	}
	p.alive(t)
}

// The bus daemon dies between two calls; with its socket gone too, root still
// has the manager's own one.
func TestBusDies(t *testing.T) {
	needBed(t, bedRoot)
	m := connect(t, Config{})
	canary := sleeper(t)
	held := start(t, m, canary)

	systemctl(t, "kill", "--signal=KILL", "dbus.service")
	start(t, m, sleeper(t))
	systemctl(t, "start", "dbus.service")
	start(t, m, sleeper(t))

	systemctl(t, "stop", "dbus.socket", "dbus.service")
	without := start(t, m, sleeper(t))
	if err := m.StopScope(t.Context(), without.Unit); err != nil {
		t.Error(err)
	}
	if err := Available(t.Context(), false); err != nil {
		t.Errorf("without a bus: %v", err)
	}
	systemctl(t, "start", "dbus.socket", "dbus.service")
	l, err := m.current()
	if err != nil || l == nil {
		t.Fatal("no connection", err)
	}
	l.close()
	start(t, m, sleeper(t))

	if got := canary.cgroup(t); got != held.ControlGroup {
		t.Errorf("the canary is in %s", got)
	}
	canary.alive(t)
}

// A manager that replaces itself drops its connections.
func TestManagerReexecutes(t *testing.T) {
	needBed(t, bedRoot)
	m := connect(t, Config{})
	canary := sleeper(t)
	held := start(t, m, canary)
	for range 3 {
		systemctl(t, "daemon-reexec")
		start(t, m, sleeper(t))
	}
	if got := canary.cgroup(t); got != held.ControlGroup {
		t.Errorf("the canary is in %s", got)
	}
	canary.alive(t)
}

// The bus daemon hangs, with all its connections open. Every call returns in
// bounded time, also when so many are made that the socket fills up.
func TestBusHangs(t *testing.T) {
	needBed(t, bedRoot)
	calls, patience := 2000, 3*time.Second
	if testing.Short() { // on a slow machine
		calls, patience = 200, 4*time.Second
	}
	m := connect(t, Config{Timeout: patience})
	pid, err := strconv.Atoi(show(t, "dbus.service", "MainPID"))
	if err != nil || pid <= 1 {
		t.Fatalf("dbus.service has pid %d, %v", pid, err)
	}
	daemon := &process{pid: pid} // the bed's, which is ours
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	resume := func() { _ = syscall.Kill(pid, syscall.SIGCONT) }
	defer resume()
	eventually(t, "the bus daemon stopped", func() bool { return daemon.state() == "T" })

	began := time.Now()
	var wg sync.WaitGroup
	for range calls {
		wg.Go(func() { _ = m.StopScope(t.Context(), newUnit()) })
	}
	wg.Wait()
	took := time.Since(began)
	t.Logf("%d calls took %v", calls, took)
	if took > 3*time.Minute {
		t.Errorf("bounded by %v, %d calls at once took %v", patience, calls, took)
	}
	began = time.Now()
	start(t, m, sleeper(t)) // over the manager's own socket
	t.Logf("then a scope took %v", time.Since(began))

	// Whoever meets the hang within a start is served as well.
	resume()
	fresh := connect(t, Config{Timeout: patience})
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the bus daemon stopped", func() bool { return daemon.state() == "T" })
	began = time.Now()
	start(t, fresh, sleeper(t))
	t.Logf("a scope whose first try hung took %v", time.Since(began))
}

// The manager's own socket answers every first call, see wakePause.
func TestPrivateSocket(t *testing.T) {
	needBed(t, bedRoot)
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+filepath.Join(t.TempDir(), "none"))
	for range 100 {
		m, err := Connect(t.Context(), Config{Timeout: 30 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		m.Close()
	}
	start(t, connect(t, Config{}), sleeper(t))
}
