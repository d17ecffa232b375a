package wire

import (
	"io"
	"syscall"

	"pinfold.dev/internal/sys"
)

// FD is a connected unix stream socket, blocking or not, without Go's poller.
// On a non-blocking one the errors of ReadMsg and WriteMsg are EAGAIN where
// the socket is not ready (errors.Is). Close closes it.
type FD int

// ReadMsg receives what is there.
func (f FD) ReadMsg(p []byte) (int, []int, error) {
	n, fds, err := sys.RecvMsg(int(f), p, MaxFDs)
	if err == nil && n == 0 && len(p) > 0 {
		err = io.EOF
	}
	return n, fds, err
}

// WriteMsg sends p, with fds attached to its first byte.
func (f FD) WriteMsg(p []byte, fds []int) (int, error) { return sys.SendMsg(int(f), p, fds) }

// Close closes the socket.
func (f FD) Close() error { return syscall.Close(int(f)) }
