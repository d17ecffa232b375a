package sys

import (
	"encoding/binary"
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// UnixSocket is a unix socket of our network namespace, as sock_diag(7) tells it.
type UnixSocket struct {
	Ino, Peer uint32 // inode numbers; Peer 0: not connected
	Listens   bool
	Name      string // path, or @ and an abstract name; empty: none
}

// sockDiagTime bounds one answer of the kernel.
const sockDiagTime = 2 // seconds

// UnixSockets lists the unix sockets of our network namespace (NETLINK_SOCK_DIAG,
// Linux 3.3, CONFIG_UNIX_DIAG). Sandboxes may refuse it.
func UnixSockets() ([]UnixSocket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, os.NewSyscallError("socket NETLINK_SOCK_DIAG", err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: sockDiagTime}); err != nil {
		return nil, os.NewSyscallError("setsockopt", err)
	}
	if err := unix.Sendto(fd, unixDiagRequest(), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, os.NewSyscallError("sendto", err)
	}
	var all []UnixSocket
	buf := make([]byte, 64<<10)
	for {
		n := 0
		err := ignoringEINTR(func() (err error) { n, _, err = unix.Recvfrom(fd, buf, 0); return })
		if err != nil {
			return nil, os.NewSyscallError("recvfrom", err)
		}
		more, done, err := parseUnixDiag(buf[:max(n, 0)])
		all = append(all, more...)
		if err != nil || done {
			return all, err
		}
	}
}

// The header of linux/netlink.h, and the request of linux/unix_diag.h.
const (
	sockDiagByFamily = 20
	unixShowName     = 1
	unixShowPeer     = 4
	unixAttrName     = 0
	unixAttrPeer     = 2
	tcpListen        = 10
)

func unixDiagRequest() []byte {
	b := make([]byte, unix.NLMSG_HDRLEN+24)
	binary.NativeEndian.PutUint32(b[0:], uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], sockDiagByFamily)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	r := b[unix.NLMSG_HDRLEN:]
	r[0] = unix.AF_UNIX
	binary.NativeEndian.PutUint32(r[4:], ^uint32(0)) // all states
	binary.NativeEndian.PutUint32(r[12:], unixShowName|unixShowPeer)
	return b
}

var errDiag = errors.New("malformed answer of sock_diag")

// parseUnixDiag takes the sockets out of one datagram; done: it was the last.
func parseUnixDiag(b []byte) (out []UnixSocket, done bool, err error) {
	const head, fixed = unix.NLMSG_HDRLEN, 16
	for len(b) >= head {
		size := int(binary.NativeEndian.Uint32(b))
		if size < head || size > len(b) {
			return out, true, errDiag
		}
		body := b[head:size]
		switch kind := binary.NativeEndian.Uint16(b[4:]); {
		case kind == unix.NLMSG_DONE:
			return out, true, nil
		case kind == unix.NLMSG_ERROR && len(body) >= 4:
			return out, true, os.NewSyscallError("sock_diag", unix.Errno(-int32(binary.NativeEndian.Uint32(body))))
		case kind == sockDiagByFamily && len(body) >= fixed:
			s := UnixSocket{Listens: body[2] == tcpListen, Ino: binary.NativeEndian.Uint32(body[4:])}
			s.attributes(body[fixed:])
			out = append(out, s)
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	return out, false, nil
}

// attributes reads length (2 bytes), type (2), value, to 4 bytes each.
func (s *UnixSocket) attributes(b []byte) {
	for len(b) >= 4 {
		size := int(binary.NativeEndian.Uint16(b))
		if size < 4 || size > len(b) {
			return
		}
		v := b[4:size]
		switch binary.NativeEndian.Uint16(b[2:]) {
		case unixAttrName:
			if s.Name = string(v); strings.HasPrefix(s.Name, "\x00") {
				s.Name = "@" + s.Name[1:]
			}
			s.Name = strings.TrimRight(s.Name, "\x00")
		case unixAttrPeer:
			if len(v) >= 4 {
				s.Peer = binary.NativeEndian.Uint32(v)
			}
		}
		b = b[min((size+3)&^3, len(b)):]
	}
}

// What kcmp(2) compares.
const (
	kcmpFiles = 2
	kcmpFS    = 3
)

// SameFiles tells whether two threads share their descriptors; false also where
// the kernel does not tell (kcmp(2): CONFIG_KCMP, and the right to trace both).
func SameFiles(tid1, tid2 int) bool { return kcmp(tid1, tid2, kcmpFiles) }

// SameFS tells whether they share working directory and root.
func SameFS(tid1, tid2 int) bool { return kcmp(tid1, tid2, kcmpFS) }

func kcmp(tid1, tid2, what int) bool {
	n, _, e := unix.Syscall6(unix.SYS_KCMP, uintptr(tid1), uintptr(tid2), uintptr(what), 0, 0, 0)
	return e == 0 && n == 0
}
