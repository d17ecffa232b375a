package systemd

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// mailbox is a real datagram socket, where what sd_notify(3) says has to arrive.
type mailbox struct {
	*net.UnixConn
	path string
}

func newMailbox(t *testing.T) mailbox {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return mailbox{c, path}
}

// next is the next message, with its descriptors.
func (m mailbox) next(t *testing.T) (string, []int) {
	t.Helper()
	b, oob := make([]byte, 4096), make([]byte, 256)
	_ = m.SetReadDeadline(time.Now().Add(time.Minute))
	n, oobn, _, _, err := m.ReadMsgUnix(b, oob)
	if err != nil {
		t.Fatal(err)
	}
	var fds []int
	if oobn > 0 {
		cs, err := syscall.ParseSocketControlMessage(oob[:oobn])
		if err != nil {
			t.Fatal(err)
		}
		if fds, err = syscall.ParseUnixRights(&cs[0]); err != nil {
			t.Fatal(err)
		}
	}
	return string(b[:n]), fds
}

// nothing checks that there is no message.
func (m mailbox) nothing(t *testing.T) {
	t.Helper()
	_ = m.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	b := make([]byte, 4096)
	if n, err := m.Read(b); err == nil {
		t.Errorf("there is a message %q", b[:n])
	}
}

func (m mailbox) notifier(t *testing.T, most int, have ...Passed) *Notifier {
	t.Helper()
	env := map[string]string{"NOTIFY_SOCKET": m.path, "FDSTORE": strconv.Itoa(most)}
	n, err := NewNotifier(func(k string) string { return env[k] }, slog.New(slog.DiscardHandler), have)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// closeSoon closes a notifier, whose manager reads.
func closeSoon(t *testing.T, n *Notifier) {
	t.Helper()
	closeWithin(t, n, time.Minute)
}

// closeWithin closes a notifier, which must not take longer than it may.
func closeWithin(t *testing.T, n *Notifier, most time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), most)
	defer cancel()
	done := make(chan struct{})
	go func() { n.Close(ctx); close(done) }()
	select {
	case <-done:
	case <-time.After(2 * time.Minute):
		t.Fatal("Close does not return")
	}
}

func TestNotify(t *testing.T) {
	m := newMailbox(t)
	n := m.notifier(t, 0)
	for _, say := range []struct{ line, want string }{
		{"READY=1", "READY=1"}, {"STATUS=" + Description("3 turns\nMAINPID=1"), "STATUS=3 turns MAINPID=1"}, {"STOPPING=1", "STOPPING=1"},
	} {
		n.Say(say.line)
		if got, _ := m.next(t); got != say.want {
			t.Errorf("got %q, want %q", got, say.want)
		}
	}
	closeSoon(t, n)
	none, err := NewNotifier(func(string) string { return "" }, nil, nil)
	if none != nil || err != nil {
		t.Errorf("without a socket: %v, %v", none, err)
	}
	none.Say("READY=1")
	none.Remove("x")
	closeSoon(t, none)
	if _, err := NewNotifier(func(string) string { return "vsock:2:1" }, nil, nil); err == nil {
		t.Error("an address that is none is no error")
	}
}

func openNull(t *testing.T) int {
	t.Helper()
	fd, err := syscall.Open(os.DevNull, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

func TestStore(t *testing.T) {
	m := newMailbox(t)
	before := openFDs(t)
	n := m.notifier(t, 3, Passed{Name: "old"})
	if n.Store("old", openNull(t), 0) {
		t.Error("it stores what the manager has")
	}
	if !n.Store("a", openNull(t), 0) {
		t.Error("it does not store")
	}
	got, fds := m.next(t)
	if got != "FDSTORE=1\nFDPOLL=0\nFDNAME=a" || len(fds) != 1 {
		t.Errorf("got %q with %d descriptors", got, len(fds))
	}
	_ = syscall.Close(fds[0])
	n.Store("short", openNull(t), time.Hour)
	if n.Store("too many", openNull(t), 0) {
		t.Error("it stores more than the manager keeps")
	}
	n.Remove("short")
	m.nothing(t) // it was never worth it
	n.Remove("old")
	n.Remove("never there")
	if got, _ := m.next(t); got != "FDSTOREREMOVE=1\nFDNAME=old" {
		t.Errorf("got %q", got)
	}
	n.Store("late", openNull(t), time.Hour)
	closeSoon(t, n) // with which it is sent
	got, fds = m.next(t)
	if got != "FDSTORE=1\nFDPOLL=0\nFDNAME=late" || len(fds) != 1 {
		t.Errorf("got %q with %d descriptors", got, len(fds))
	}
	_ = syscall.Close(fds[0])
	m.nothing(t)
	eventually(t, "no more descriptors than before", func() bool { return openFDs(t) <= before })
}

// A manager that reads nothing holds nobody up.
func TestNotifyManagerHangs(t *testing.T) {
	m := newMailbox(t)
	before := openFDs(t)
	n := m.notifier(t, 1<<20)
	began := time.Now()
	for i := range 2000 {
		n.Say("STATUS=" + strconv.Itoa(i))
		n.Store("x"+strconv.Itoa(i), openNull(t), 0)
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("it took %v", took)
	}
	for i := range 2000 {
		n.Remove("x" + strconv.Itoa(i))
	}
	last, _ := m.next(t) // the rest stays unread
	closeWithin(t, n, 200*time.Millisecond)
	for range 2001 { // what had its place in the socket's queue
		_ = m.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		b := make([]byte, 4096)
		c, _, _, _, err := m.ReadMsgUnix(b, nil)
		if err != nil {
			break
		}
		last = string(b[:c])
	}
	if last == "" {
		t.Error("what arrived is empty")
	}
	eventually(t, "no more descriptors than before", func() bool { return openFDs(t) <= before })
}

func TestWatchdog(t *testing.T) {
	pid := strconv.Itoa(os.Getpid())
	for _, c := range []struct {
		usec, pid string
		want      time.Duration
	}{
		{"2000000", pid, time.Second}, {"2000000", "", time.Second}, {"2000000", "1", 0}, {"", pid, 0}, {"x", pid, 0}, {"-5", pid, 0},
	} {
		env := map[string]string{"WATCHDOG_USEC": c.usec, "WATCHDOG_PID": c.pid}
		if got := WatchdogEvery(func(k string) string { return env[k] }); got != c.want {
			t.Errorf("%q for %q: %v, want %v", c.usec, c.pid, got, c.want)
		}
	}
	m := newMailbox(t)
	n := m.notifier(t, 0)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stuck := make(chan struct{})
	go n.Guard(ctx, time.Millisecond, func() {
		select {
		case <-stuck:
			<-ctx.Done()
		default:
		}
	})
	if got, _ := m.next(t); got != "WATCHDOG=1" {
		t.Errorf("got %q", got)
	}
	close(stuck)
	time.Sleep(20 * time.Millisecond)
	for { // it is silent in the end
		_ = m.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		if _, err := m.Read(make([]byte, 64)); err != nil {
			break
		}
		if t.Context().Err() != nil {
			t.Fatal("a service that hangs is called well")
		}
	}
	closeSoon(t, n)
}

func TestTakePassed(t *testing.T) {
	pid := strconv.Itoa(os.Getpid())
	env := map[string]string{}
	take := func(pid, fds, names string) ([]Passed, error) {
		env["LISTEN_PID"], env["LISTEN_FDS"], env["LISTEN_FDNAMES"] = pid, fds, names
		return TakePassed(func(k string) string { return env[k] })
	}
	for _, c := range [][3]string{{"1", "2", "a:b"}, {"", "", ""}, {pid, "0", ""}} {
		if got, err := take(c[0], c[1], c[2]); len(got) > 0 || err != nil {
			t.Errorf("%q: %v, %v", c, got, err)
		}
	}
	for _, bad := range []string{"-1", "x", "99999999999"} {
		if _, err := take(pid, bad, ""); err == nil || !strings.Contains(err.Error(), bad) {
			t.Errorf("LISTEN_FDS=%s: %v", bad, err)
		}
	}
	got, err := take(pid, "3", "a::")
	want := []Passed{{"a", 3}, {"unknown", 4}, {"unknown", 5}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
}
