package wire_test

import (
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"pinfold.dev/internal/sys"
	"pinfold.dev/internal/wire"
	"pinfold.dev/internal/wire/wirenet"
)

// A frame that a write deadline cut is finished before the next one, so that
// whoever reads at last gets whole frames; of one that had not begun, nothing.
func TestSendCutByADeadline(t *testing.T) {
	for range 50 { // on a busy machine a deadline may be over before a frame begins
		if sendCut(t) {
			return
		}
	}
	t.Error("no frame was cut")
}

// sendCut sends until a deadline cuts a frame; false: one was over before its frame.
func sendCut(t *testing.T) bool {
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
	raw := c.(*net.UnixConn)
	a, b := wire.NewConn(wirenet.FromUnixConn(raw)), wire.NewConn(wire.FD(fdb))
	defer a.Close()
	defer b.Abort()

	send := func(op string) error {
		if err := raw.SetWriteDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		return a.Send(wire.Message{Op: wire.OpLaunch, Launch: &wire.Launch{Process: op, Argv: []string{strings.Repeat("x", 100_000)}}}, nil)
	}
	sent := []string{}
	for err == nil { // until the socket is full, within a frame
		op := "p" + strings.Repeat("1", len(sent)+1)
		err = send(op)
		sent = append(sent, op)
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the socket is full, and Send says %v", err)
	}
	if err := send("never"); err == nil {
		return false // it was not full
	} else if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the socket is still full, and Send says %v", err)
	}

	last := make(chan error, 1)
	go func() {
		if err := raw.SetWriteDeadline(time.Time{}); err != nil {
			last <- err
			return
		}
		last <- a.Send(wire.Message{Op: wire.OpFence}, nil)
	}()
	for i, op := range sent {
		m, _, err := b.Recv()
		if err == nil && m.Op == wire.OpFence && i == len(sent)-1 {
			if err := <-last; err != nil {
				t.Error(err)
			}
			return false // of the last, nothing was sent
		}
		if err != nil || m.Launch == nil || m.Launch.Process != op || len(m.Launch.Argv[0]) != 100_000 {
			t.Fatalf("received %+v, %v; sent was %s", m.Op, err, op)
		}
	}
	if m, _, err := b.Recv(); err != nil || m.Op != wire.OpFence {
		t.Errorf("after the cut frame came %+v, %v", m, err)
	}
	if err := <-last; err != nil {
		t.Error(err)
	}
	return true
}
