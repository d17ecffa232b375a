package reaper_test

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/internal/sys"
	"pinfold.dev/internal/wire"
)

func (b *bed) dialRaw() *net.UnixConn {
	b.t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: b.socket, Net: "unix"})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { c.Close() })
	return c
}

// mustEnd checks that the keeper closes a connection.
func (b *bed) mustEnd(c *net.UnixConn, why string) {
	b.t.Helper()
	c.SetReadDeadline(time.Now().Add(long))
	if _, err := io.Copy(io.Discard, c); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		b.t.Errorf("%s: connection is not closed: %v", why, err)
	}
}

func TestHelloIsRefused(t *testing.T) {
	b := newBed(t)
	for _, tt := range []struct {
		name string
		m    wire.Message
	}{
		{"wrong nonce", wire.Message{Op: wire.OpHello, Hello: &wire.Hello{Version: 1, Turn: "t1", Nonce: "guess"}}},
		{"no nonce", wire.Message{Op: wire.OpHello, Hello: &wire.Hello{Version: 1, Turn: "t1"}}},
		{"another turn", wire.Message{Op: wire.OpHello, Hello: &wire.Hello{Version: 1, Turn: "t2", Nonce: testNonce}}},
		{"no version", wire.Message{Op: wire.OpHello, Hello: &wire.Hello{Turn: "t1", Nonce: testNonce}}},
		{"no hello", wire.Message{Op: wire.OpCensus}},
		{"quit without hello", wire.Message{Op: wire.OpQuit}},
	} {
		c := b.connect()
		if m := c.call(tt.m); m.Error == nil || m.Error.Kind != wire.ErrProtocol {
			t.Errorf("%s: %+v", tt.name, m.Message)
		}
		select {
		case <-c.gone:
		case <-time.After(long):
			t.Errorf("%s: connection stays open", tt.name)
		}
	}
	if m := b.hello(testNonce); m.Error != nil {
		t.Error(m.Error)
	}
	if m := b.call(wire.Message{Op: "dance"}); m.Error == nil || m.Error.Kind != wire.ErrProtocol {
		t.Errorf("unknown operation: %+v", m.Message)
	}
	if m := b.call(wire.Message{Op: wire.OpLaunch}); m.Error == nil || m.Error.Kind != wire.ErrProtocol {
		t.Errorf("launch without a body: %+v", m.Message)
	}
}

func TestGarbage(t *testing.T) {
	b := newBed(t)
	fds := b.keeperFDs()
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range 100 {
		c := b.dialRaw()
		junk := make([]byte, 1+rnd.IntN(5000))
		for j := range junk {
			junk[j] = byte(rnd.Uint32())
		}
		f, _ := c.File()
		sys.SendMsg(int(f.Fd()), junk, []int{0, 1, 2}[:rnd.IntN(4)])
		f.Close()
		if i%2 == 0 {
			c.CloseWrite()
			b.mustEnd(c, "garbage")
		}
		c.Close()
	}
	if out := b.output(request("p1", "echo", "fine")); out != "fine\n" {
		t.Errorf("output %q", out)
	}
	eventually(t, "descriptors are as before", func() bool { return b.keeperFDs() == fds })
}

func TestTwoConnections(t *testing.T) {
	b := newBed(t)
	other := b.connect()
	other.hello(testNonce)
	silent := b.dialRaw() // has not said hello, so it is told nothing
	s := b.mustLaunch(request("p1", "sh", "-c", "exit 5"))
	if e := b.exitOf("p1"); e.Code != 5 {
		t.Errorf("first: %+v", e)
	}
	if m := <-other.events; m.Event != wire.EventStarted || m.Started.PID != s.PID {
		t.Errorf("the other is told %+v first", m)
	}
	if e := other.exitOf("p1"); e.Code != 5 {
		t.Errorf("other: %+v", e)
	}
	silent.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if n, err := silent.Read(make([]byte, 1)); n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a stranger is told something: %d bytes, %v", n, err)
	}
	b.conn.Close()
	if out := other.call(wire.Message{Op: wire.OpCensus}); out.Error != nil {
		t.Error(out.Error)
	}
	for i := range 40 { // there is a bound, and the newest is the one that counts
		c := b.connect()
		if m := c.hello(testNonce); m.Error != nil {
			t.Fatalf("connection %d: %+v", i, m.Error)
		}
	}
	<-other.gone
}

// A launch whose asker has gone is told to whoever came since.
func TestLaunchOutlivesItsConnection(t *testing.T) {
	b := newBed(t)
	other := b.connect()
	other.hello(testNonce)
	b.ask(wire.Message{Op: wire.OpLaunch, Launch: request("p1", "sh", "-c", "exit 4")})
	b.conn.Close()
	if e := other.exitOf("p1"); e.Code != 4 {
		t.Errorf("exit %+v", e)
	}
	m := other.hello(testNonce)
	if len(m.Hello.Processes) != 1 || m.Hello.Processes[0].Exit == nil || m.Hello.Processes[0].Exit.Code != 4 {
		t.Errorf("hello: %+v", m.Hello)
	}
}

func TestConnectionThatDoesNotRead(t *testing.T) {
	b := newBed(t)
	c := b.dialRaw()
	f, err := c.File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	syscall.SetNonblock(int(f.Fd()), true)
	hello, _ := wire.Encode(wire.Message{ID: 1, Op: wire.OpHello, Hello: &wire.Hello{Version: 1, Turn: "t1", Nonce: testNonce}}, 0)
	b.mustLaunch(request("p1", "sleep", "600")) // so that answers carry a handle
	fds := b.keeperFDs()
	closed := false
	for i := 0; i < 200_000 && !closed; i++ {
		_, err := sys.SendMsg(int(f.Fd()), hello, nil)
		switch {
		case errors.Is(err, syscall.EAGAIN):
			time.Sleep(time.Millisecond)
		case err != nil:
			closed = true
		}
		if i%1000 == 0 {
			if e := b.launch(request(fmt.Sprintf("q%d", i), noop(t))); e.Error != nil {
				t.Fatal(e.Error)
			}
		}
	}
	if !closed {
		t.Error("a connection that does not read is kept")
	}
	eventually(t, "its descriptors are closed", func() bool { return b.keeperFDs() < fds })
}

func TestPeerOfAnotherUser(t *testing.T) {
	b := newBed(t)
	for d := b.dir; strings.HasPrefix(d, os.TempDir()+"/"); d = filepath.Dir(d) {
		os.Chmod(d, 0o755)
	}
	if err := os.Chmod(b.socket, 0o666); err != nil {
		t.Fatal(err)
	}
	done := make(chan *net.UnixConn)
	go func() {
		runtime.LockOSThread() // for good: the thread has another user and ends with the goroutine
		if _, _, e := syscall.RawSyscall(syscall.SYS_SETRESUID, 65534, 65534, 65534); e != 0 {
			t.Error("setresuid:", e)
		}
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: b.socket, Net: "unix"})
		if err != nil {
			t.Error(err)
		}
		done <- c
	}()
	c := <-done
	if c == nil {
		return
	}
	defer c.Close()
	b.mustEnd(c, "another user")
	if m := b.hello(testNonce); m.Error != nil {
		t.Error(m.Error)
	}
}
