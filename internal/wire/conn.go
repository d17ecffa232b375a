package wire

import (
	"encoding/binary"
	"errors"
	"strconv"
	"sync"
)

// MaxFDs is how many descriptors one frame can carry: SCM_MAX_FD of unix(7).
const MaxFDs = 253

// ErrFrame is wrapped by every refusal of what the peer sent. The stream is
// out of step then; the connection is good for nothing but closing.
var ErrFrame = errors.New("bad frame")

// MsgReadWriter is a unix stream socket that carries descriptors. ReadMsg
// returns io.EOF at the end; the descriptors that it returns are the caller's,
// close-on-exec. As the kernel does, it reads up to what descriptors came with,
// and not beyond. WriteMsg attaches fds to the first byte; when it returns
// n > 0, they have gone.
type MsgReadWriter interface {
	ReadMsg(p []byte) (n int, fds []int, err error)
	WriteMsg(p []byte, fds []int) (n int, err error)
	Close() error
}

// Conn sends and receives frames. Send may be called at the same time as Recv
// and as other Sends; Recv by one goroutine at a time.
type Conn struct {
	rw   MsgReadWriter
	wmu  sync.Mutex
	rest []byte // of a frame that a deadline cut
	in   input
}

// NewConn makes a Conn over rw, which it owns from then on.
func NewConn(rw MsgReadWriter) *Conn { return &Conn{rw: rw} }

// Send writes one frame. The descriptors stay the caller's. Message.FDs is set
// from them. A deadline of the socket that is over (an error with Timeout, as in
// net) leaves the stream in step: what is left of the frame goes before the next
// one. After any other error but ErrTooLarge the connection is good for nothing
// but closing.
func (c *Conn) Send(m Message, fds []int) error {
	frame, err := Encode(m, len(fds))
	if err != nil {
		return err
	}
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if c.rest, err = c.write(c.rest, nil); err != nil {
		return err
	}
	whole := len(frame)
	frame, err = c.write(frame, fds)
	if err != nil && len(frame) < whole {
		c.rest = frame
	}
	return err
}

// write returns what it could not write, and why.
func (c *Conn) write(p []byte, fds []int) ([]byte, error) {
	for len(p) > 0 {
		n, err := c.rw.WriteMsg(p, fds)
		if n > 0 {
			p, fds = p[n:], nil
		}
		if err != nil {
			return p, &wrapped{"send frame: " + err.Error(), err}
		}
	}
	return nil, nil
}

// Recv reads one frame. The descriptors are the caller's. It returns io.EOF
// when the peer closed between frames, io.ErrUnexpectedEOF within one, and an
// error that wraps ErrFrame for what it refuses; descriptors that came with
// those are closed. After a temporary error of the socket (EAGAIN, a deadline)
// it may be called again and goes on where it was; after any other the
// connection is good for nothing but closing.
func (c *Conn) Recv() (Message, []int, error) { return c.in.recv(c.rw) }

// Buffered tells that a Recv would return without asking the socket.
func (c *Conn) Buffered() bool { return c.in.ready() }

// Close closes the socket. A Recv that waits in Go's poller returns, and closes
// the descriptors of a frame that has not come whole.
func (c *Conn) Close() error { return c.rw.Close() }

// Abort closes the socket and the descriptors of a frame that has not come
// whole. No Recv may be running or follow.
func (c *Conn) Abort() error {
	c.in.drop()
	return c.rw.Close()
}

// ErrTooLarge is wrapped by the refusal to send more than MaxFrame bytes or
// MaxFDs descriptors; nothing was sent.
var ErrTooLarge = errors.New("frame too large")

// Encode renders m as a frame that announces nfds descriptors.
func Encode(m Message, nfds int) ([]byte, error) {
	if nfds > MaxFDs {
		return nil, &wrapped{"encode frame: " + strconv.Itoa(nfds) + " descriptors: " + ErrTooLarge.Error(), ErrTooLarge}
	}
	m.FDs = nfds
	frame := encode(make([]byte, 4, 256), &m)
	if n := len(frame) - 4; n > MaxFrame {
		return nil, &wrapped{"encode frame: " + strconv.Itoa(n) + " bytes: " + ErrTooLarge.Error(), ErrTooLarge}
	}
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-4))
	return frame, nil
}

// wrapped is what fmt.Errorf makes, without fmt.
type wrapped struct {
	text string
	err  error
}

func (w *wrapped) Error() string { return w.text }
func (w *wrapped) Unwrap() error { return w.err }

// badFrame is an error that wraps ErrFrame.
func badFrame(what string) error { return &wrapped{ErrFrame.Error() + ": " + what, ErrFrame} }
