package wire_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pinfold.dev/internal/sys"
	"pinfold.dev/internal/wire"
	"pinfold.dev/internal/wire/wirenet"
)

// pair makes both ends of a connection: a through Go's poller, b raw.
func pair(t testing.TB) (a *wire.Conn, b *wire.Conn, rawB int) {
	t.Helper()
	fda, fdb, err := sys.SocketPair()
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fda), "a")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	a, b = wire.NewConn(wirenet.FromUnixConn(c.(*net.UnixConn))), wire.NewConn(wire.FD(fdb))
	t.Cleanup(func() { a.Close(); b.Abort() })
	return a, b, fdb
}

func openFDs(t testing.TB) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}

func frame(body string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

func TestBothWaysWithDescriptors(t *testing.T) {
	a, b, _ := pair(t)
	before := openFDs(t)
	for _, way := range []struct {
		name     string
		from, to *wire.Conn
	}{{"poller to raw", a, b}, {"raw to poller", b, a}} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		sent := wire.Message{ID: 7, Op: wire.OpLaunch, Launch: &wire.Launch{Process: "p1", Argv: []string{"x", "ä\n\x00"}, Env: []string{}}}
		if err := way.from.Send(sent, []int{int(w.Fd())}); err != nil {
			t.Fatal(way.name, err)
		}
		got, fds, err := way.to.Recv()
		if err != nil || len(fds) != 1 {
			t.Fatalf("%s: %d descriptors, %v", way.name, len(fds), err)
		}
		sent.FDs = 1
		if d := cmp.Diff(sent, got); d != "" {
			t.Errorf("%s: %s", way.name, d)
		}
		w.Close()
		syscall.Write(fds[0], []byte("hi"))
		syscall.Close(fds[0])
		text, err := io.ReadAll(r)
		if r.Close(); string(text) != "hi" || err != nil {
			t.Errorf("%s: read %q through the descriptor, %v", way.name, text, err)
		}
	}
	if after := openFDs(t); after > before {
		t.Errorf("%d descriptors, before %d", after, before)
	}
}

func TestManyFramesKeepTheirDescriptors(t *testing.T) {
	a, b, _ := pair(t)
	before := openFDs(t)
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	const frames = 500
	var wg sync.WaitGroup
	for w := range 4 { // Send is for several goroutines
		wg.Go(func() {
			for i := range frames {
				fds := make([]int, (i+w)%3)
				for j := range fds {
					fds[j] = int(null.Fd())
				}
				big := strings.Repeat("x", i%7*3000)
				m := wire.Message{ID: uint64(len(fds)), Launch: &wire.Launch{Cwd: big, Stdin: len(big)}}
				if err := a.Send(m, fds); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 4 * frames {
		m, fds, err := b.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if len(fds) != int(m.ID) || len(m.Launch.Cwd) != m.Launch.Stdin {
			t.Fatalf("frame for %d descriptors came with %d", m.ID, len(fds))
		}
		for _, fd := range fds {
			syscall.Close(fd)
		}
	}
	wg.Wait()
	if after := openFDs(t); after > before+1 {
		t.Errorf("%d descriptors, before %d", after, before+1)
	}
}

func TestLargestFrame(t *testing.T) {
	a, b, _ := pair(t)
	m := wire.Message{ID: 1, Launch: &wire.Launch{Cwd: strings.Repeat("x", wire.MaxFrame-200)}}
	done := make(chan error, 1)
	go func() { done <- a.Send(m, nil) }()
	got, _, err := b.Recv()
	if err != nil || got.Launch.Cwd != m.Launch.Cwd {
		t.Error("largest frame:", err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	m.Launch.Cwd += strings.Repeat("x", 200)
	if err := a.Send(m, nil); !errors.Is(err, wire.ErrTooLarge) {
		t.Errorf("frame over the limit: %v", err)
	}
	if err := a.Send(wire.Message{}, make([]int, wire.MaxFDs+1)); !errors.Is(err, wire.ErrTooLarge) {
		t.Errorf("descriptors over the limit: %v", err)
	}
}

func TestHostileInput(t *testing.T) {
	huge := binary.BigEndian.AppendUint32(nil, 1<<31)
	over := binary.BigEndian.AppendUint32(nil, wire.MaxFrame+1)
	for _, tt := range []struct {
		name string
		data []byte
		fds  int
		want error
	}{
		{"length 0", []byte{0, 0, 0, 0}, 0, wire.ErrFrame},
		{"length 2^31", huge, 0, wire.ErrFrame},
		{"length over the limit", over, 1, wire.ErrFrame},
		{"no JSON", frame("hello"), 1, wire.ErrFrame},
		{"JSON of another shape", frame(`{"id":"x"}`), 1, wire.ErrFrame},
		{"an array", frame(`[]`), 0, wire.ErrFrame},
		{"descriptors that nobody announced", frame(`{"id":1}`), 3, wire.ErrFrame},
		{"fewer than announced", frame(`{"id":1,"fds":3}`), 2, wire.ErrFrame},
		{"a negative number of them", frame(`{"id":1,"fds":-1}`), 1, wire.ErrFrame},
		{"end within the length", []byte{0, 0}, 1, io.ErrUnexpectedEOF},
		{"end within the body", frame(`{"id":1}`)[:7], 2, io.ErrUnexpectedEOF},
		{"length alone", binary.BigEndian.AppendUint32(nil, wire.MaxFrame), 0, io.ErrUnexpectedEOF},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := openFDs(t)
			fda, fdb, err := sys.SocketPair()
			if err != nil {
				t.Fatal(err)
			}
			fds := make([]int, tt.fds)
			for i := range fds {
				fds[i] = fdb
			}
			if _, err := sys.SendMsg(fda, tt.data, fds); err != nil {
				t.Fatal(err)
			}
			syscall.Shutdown(fda, syscall.SHUT_WR)
			c := wire.NewConn(wire.FD(fdb))
			if _, got, err := c.Recv(); !errors.Is(err, tt.want) || got != nil {
				t.Errorf("%d descriptors, error %v, want %v", len(got), err, tt.want)
			}
			if _, _, err := c.Recv(); err == nil {
				t.Error("goes on after a refusal")
			}
			c.Close()
			syscall.Close(fda)
			if after := openFDs(t); after > before {
				t.Errorf("%d descriptors, before %d", after, before)
			}
		})
	}
}

func TestDescriptorsWithinAFrame(t *testing.T) {
	before := openFDs(t)
	fda, fdb, err := sys.SocketPair()
	if err != nil {
		t.Fatal(err)
	}
	c := wire.NewConn(wire.FD(fdb))
	f := frame(`{"id":1,"fds":0}`)
	many := make([]int, wire.MaxFDs)
	for i := range many {
		many[i] = fdb
	}
	for i := range 3 {
		if _, err := sys.SendMsg(fda, f[i:i+1], many); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := c.Recv(); !errors.Is(err, wire.ErrFrame) {
		t.Errorf("759 descriptors in one frame: %v", err)
	}
	c.Close()
	syscall.Close(fda)
	if after := openFDs(t); after > before {
		t.Errorf("%d descriptors, before %d", after, before)
	}
}

func TestNonBlockingGoesOn(t *testing.T) {
	fda, fdb, err := sys.SocketPair()
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fda)
	syscall.SetNonblock(fdb, true)
	c := wire.NewConn(wire.FD(fdb))
	defer c.Close()
	f := append(frame(`{"id":5}`), frame(`{"id":6}`)...)
	for i, b := range f {
		if i != 12 {
			if _, _, err := c.Recv(); !errors.Is(err, syscall.EAGAIN) {
				t.Fatalf("after %d bytes: %v", i, err)
			}
		} else if m, _, err := c.Recv(); err != nil || m.ID != 5 {
			t.Fatalf("first frame: %+v, %v", m, err)
		}
		if _, err := syscall.Write(fda, []byte{b}); err != nil {
			t.Fatal(err)
		}
	}
	if m, _, err := c.Recv(); err != nil || m.ID != 6 {
		t.Errorf("second frame: %+v, %v", m, err)
	}
}

func TestCloseWakesRecvAndKeepsNothing(t *testing.T) {
	before := openFDs(t)
	a, b, raw := pair(t)
	if _, err := sys.SendMsg(raw, []byte{0, 0, 0, 9, '{'}, []int{raw, raw}); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		_, _, err := a.Recv()
		done <- err
	}()
	time.Sleep(20 * time.Millisecond)
	a.Close()
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Recv of a closed connection: %v", err)
	}
	b.Abort()
	if after := openFDs(t); after > before {
		t.Errorf("%d descriptors, before %d", after, before)
	}
}

// stream is a socket of which the fuzzer decides what one read brings.
type stream struct {
	data []byte
	cut  byte
}

func (s *stream) ReadMsg(p []byte) (int, []int, error) {
	if len(s.data) == 0 {
		return 0, nil, io.EOF
	}
	n := copy(p, s.data[:min(len(s.data), 1+int(s.cut))])
	s.data = s.data[n:]
	var fds []int
	if s.cut%3 == 0 {
		if fd, err := syscall.Dup(1); err == nil {
			fds = append(fds, fd)
		}
	}
	return n, fds, nil
}
func (*stream) WriteMsg(p []byte, _ []int) (int, error) { return len(p), nil }
func (*stream) Close() error                            { return nil }

func FuzzRecv(f *testing.F) {
	f.Add(frame(`{"id":1,"op":"fence"}`), byte(200))
	f.Add(append(frame(`{"id":1,"fds":1}`), frame(`{"id":2,"fds":1}`)...), byte(20))
	f.Add(frame(`{"op":"launch","launch":{"argv":["a"],"env":null}}`), byte(3))
	f.Add([]byte{0, 0x7f, 0xff, 0xff, '{'}, byte(1))
	f.Fuzz(func(t *testing.T, data []byte, cut byte) {
		before := openFDs(t)
		c := wire.NewConn(&stream{bytes.Clone(data), cut})
		for {
			m, fds, err := c.Recv()
			for _, fd := range fds {
				syscall.Close(fd)
			}
			if err != nil {
				break
			}
			if len(fds) != m.FDs {
				t.Fatalf("%d descriptors for %d", len(fds), m.FDs)
			}
			if _, err := wire.Encode(m, m.FDs); err != nil {
				t.Fatal("encode what was decoded:", err)
			}
		}
		c.Abort()
		if after := openFDs(t); after > before {
			t.Fatalf("%d descriptors, before %d", after, before)
		}
	})
}
