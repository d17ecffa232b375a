// Package wirenet lets a net.UnixConn carry frames. It is apart from package
// wire so that the keeper, which speaks the same frames, does not link net.
package wirenet

import (
	"io"
	"net"
	"syscall"

	"pinfold.dev/internal/sys"
	"pinfold.dev/internal/wire"
)

// FromUnixConn makes a stream socket's connection fit for wire.NewConn.
func FromUnixConn(c *net.UnixConn) wire.MsgReadWriter { return unixConn{c} }

type unixConn struct{ *net.UnixConn }

// ReadMsg reads what is there; the net package asks for MSG_CMSG_CLOEXEC.
func (u unixConn) ReadMsg(p []byte) (int, []int, error) {
	oob := make([]byte, syscall.CmsgSpace(wire.MaxFDs*4))
	n, oobn, _, _, err := u.ReadMsgUnix(p, oob)
	fds, rerr := sys.ParseRights(oob[:oobn])
	switch {
	case err != nil:
		return n, fds, err
	case rerr != nil:
		return n, fds, rerr
	case n == 0 && len(p) > 0:
		return 0, fds, io.EOF
	}
	return n, fds, nil
}

// WriteMsg writes p, with fds attached to its first byte.
func (u unixConn) WriteMsg(p []byte, fds []int) (int, error) {
	if len(fds) == 0 {
		return u.Write(p)
	}
	n, _, err := u.WriteMsgUnix(p, syscall.UnixRights(fds...), nil)
	return n, err
}
