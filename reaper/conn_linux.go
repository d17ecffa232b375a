package reaper

import (
	"errors"
	"io"
	"slices"
	"syscall"

	"pinfold.dev/internal/sys"
	"pinfold.dev/internal/wire"
)

const (
	maxConns  = 16      // the oldest goes when there is one more
	maxQueue  = 1 << 20 // bytes that wait for a connection besides one frame
	maxFrames = 4096    // and frames
)

// listener accepts connections.
type listener struct{}

func (listener) ready(k *keeper, _ uint32) {
	for {
		fd, _, err := syscall.Accept4(k.opts.Listener, syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK)
		switch err {
		case nil:
			k.accept(fd)
		case syscall.EINTR, syscall.ECONNABORTED:
		case syscall.EMFILE, syscall.ENFILE:
			k.shedConn()
			return
		default:
			return // EAGAIN
		}
	}
}

// shedConn closes a waiting connection by means of the spare descriptor: it
// would otherwise wake the loop without end.
func (k *keeper) shedConn() {
	_ = syscall.Close(k.spare)
	if fd, _, err := syscall.Accept4(k.opts.Listener, syscall.SOCK_CLOEXEC); err == nil {
		_ = syscall.Close(fd)
	}
	k.spare, _ = sys.Dup(k.null)
}

// accept takes a connection of root or of our own user.
func (k *keeper) accept(fd int) {
	cred, err := sys.PeerCred(fd)
	if err != nil || (cred.UID != 0 && cred.UID != k.uid) {
		_ = syscall.Close(fd)
		return
	}
	if len(k.conns) >= maxConns {
		k.conns[0].close(k)
	}
	c := &conn{fd: fd, in: wire.NewConn(wire.FD(fd))}
	if err := k.poll.add(fd, syscall.EPOLLIN, c); err != nil {
		logLine("accept: ", err.Error())
		_ = syscall.Close(fd)
		return
	}
	k.conns = append(k.conns, c)
}

// conn is a connection of a service.
type conn struct {
	fd      int
	in      *wire.Conn
	greeted bool // it has said hello
	closed  bool
	out     []frame
	queued  int // bytes in out
}

// frame is (the rest of) a frame that the socket had no room for. It owns its
// descriptors.
type frame struct {
	bytes []byte
	fds   []int
}

func (c *conn) ready(k *keeper, events uint32) {
	if events&syscall.EPOLLOUT != 0 {
		c.flush(k)
	}
	if events&^syscall.EPOLLOUT != 0 {
		c.read(k)
	}
}

// read handles the frames that one read brings. Whatever else is in the socket
// brings the loop back here.
func (c *conn) read(k *keeper) {
	for i := 0; !c.closed && !k.quit && (i == 0 || c.in.Buffered()); i++ {
		m, fds, err := c.in.Recv()
		if err != nil {
			if !errors.Is(err, syscall.EAGAIN) {
				if !errors.Is(err, io.EOF) {
					logLine("connection: ", err.Error())
				}
				c.close(k)
			}
			return
		}
		func() {
			defer func() {
				for _, fd := range fds {
					_ = syscall.Close(fd)
				}
			}()
			k.handle(c, &m, fds)
		}()
		k.garbage.did(sizeOf(&m))
	}
}

// send sends a message, or queues it. It never waits; a connection that lets
// too much pile up is closed, and its peer gets everything anew by hello.
func (k *keeper) send(c *conn, m wire.Message, fds []int) {
	if c.closed {
		return
	}
	m.JournalErrors = k.journal.failed
	bytes, err := wire.Encode(m, len(fds))
	if err != nil {
		logLine("answer: ", err.Error())
		c.close(k)
		return
	}
	k.garbage.did(len(bytes))
	if len(c.out) == 0 {
		n, err := wire.FD(c.fd).WriteMsg(bytes, fds)
		if err != nil && !errors.Is(err, syscall.EAGAIN) {
			c.close(k)
			return
		}
		if n == len(bytes) {
			return
		}
		if n > 0 {
			bytes, fds = bytes[n:], nil
		}
		k.poll.change(c.fd, syscall.EPOLLIN|syscall.EPOLLOUT)
	}
	if len(c.out) >= maxFrames || (len(c.out) > 0 && c.queued+len(bytes) > maxQueue) {
		logLine("connection does not read: closed")
		c.close(k)
		return
	}
	if err := c.queue(bytes, fds); err != nil {
		logLine("answer: ", err.Error())
		c.close(k)
	}
}

// queue keeps a frame for later. Descriptors are copied: the process may end,
// and its handle be closed, before they are sent.
func (c *conn) queue(bytes []byte, fds []int) error {
	f := frame{bytes: bytes}
	for _, fd := range fds {
		d, err := sys.Dup(fd)
		if err != nil {
			f.drop()
			return err
		}
		f.fds = append(f.fds, d)
	}
	c.out = append(c.out, f)
	c.queued += len(bytes)
	return nil
}

// flush sends what was queued, as far as there is room.
func (c *conn) flush(k *keeper) {
	for len(c.out) > 0 && !c.closed {
		f := &c.out[0]
		n, err := wire.FD(c.fd).WriteMsg(f.bytes, f.fds)
		if n > 0 {
			f.drop()
			f.bytes = f.bytes[n:]
			c.queued -= n
		}
		switch {
		case errors.Is(err, syscall.EAGAIN):
			return
		case err != nil:
			c.close(k)
			return
		case len(f.bytes) == 0:
			c.out = c.out[1:]
		}
	}
	c.out = nil
	k.poll.change(c.fd, syscall.EPOLLIN)
}

func (f *frame) drop() {
	for _, fd := range f.fds {
		_ = syscall.Close(fd)
	}
	f.fds = nil
}

// close ends a connection. It shuts it down first, because a child that has not
// executed yet may have a copy of the descriptor.
func (c *conn) close(k *keeper) {
	if c.closed {
		return
	}
	c.closed = true
	k.poll.remove(c.fd)
	_ = syscall.Shutdown(c.fd, syscall.SHUT_RDWR)
	_ = c.in.Abort()
	for i := range c.out {
		c.out[i].drop()
	}
	c.out = nil
	k.conns = slices.DeleteFunc(k.conns, func(x *conn) bool { return x == c })
}
