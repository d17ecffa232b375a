package sys

import (
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Cred is who is at the other end of a unix socket: SO_PEERCRED, unix(7).
type Cred struct {
	PID      int
	UID, GID uint32
}

// PeerCred tells who connected, at the time of connect(2) or socketpair(2).
func PeerCred(fd int) (Cred, error) {
	c, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return Cred{}, os.NewSyscallError("getsockopt SO_PEERCRED", err)
	}
	return Cred{PID: int(c.Pid), UID: c.Uid, GID: c.Gid}, nil
}

// PeerPidfd opens a pidfd of the peer, close-on-exec (Linux 6.5; of a reaped
// peer only from 6.16, ESRCH or EINVAL before). ENOPROTOOPT: older.
func PeerPidfd(fd int) (int, error) {
	n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if err != nil {
		return -1, os.NewSyscallError("getsockopt SO_PEERPIDFD", err)
	}
	return n, nil
}

// PeerGroups lists the peer's supplementary groups (Linux 4.13).
func PeerGroups(fd int) ([]uint32, error) {
	groups := make([]uint32, 64)
	for {
		size := uint32(len(groups) * 4)
		_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch {
		case e == 0:
			return groups[:size/4], nil
		case e == unix.ERANGE && int(size) > len(groups)*4:
			groups = make([]uint32, size/4)
		default:
			return nil, os.NewSyscallError("getsockopt SO_PEERGROUPS", e)
		}
	}
}

// SocketPair makes a pair of connected unix stream sockets, close-on-exec.
func SocketPair() (a, b int, err error) {
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	return p[0], p[1], os.NewSyscallError("socketpair", err)
}

// SendMsg sends p with descriptors attached to its first byte and returns how
// many bytes went. The descriptors stay the caller's. EAGAIN: non-blocking, and
// the buffer is full.
func SendMsg(fd int, p []byte, fds []int) (int, error) {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	n := 0
	err := ignoringEINTR(func() (err error) {
		n, err = unix.SendmsgN(fd, p, oob, nil, unix.MSG_NOSIGNAL)
		return
	})
	return max(n, 0), os.NewSyscallError("sendmsg", err)
}

// RecvMsg receives into p, with up to maxFDs descriptors, which are the
// caller's and close-on-exec. n 0 without an error is the end. More
// descriptors than maxFDs are an error (EMSGSIZE), and all are closed.
func RecvMsg(fd int, p []byte, maxFDs int) (n int, fds []int, err error) {
	oob := make([]byte, unix.CmsgSpace(4*maxFDs))
	var oobn, flags int
	err = ignoringEINTR(func() (err error) {
		n, oobn, flags, _, err = unix.Recvmsg(fd, p, oob, unix.MSG_CMSG_CLOEXEC)
		return
	})
	if err != nil {
		return 0, nil, os.NewSyscallError("recvmsg", err)
	}
	fds, err = ParseRights(oob[:oobn])
	if err == nil && (flags&unix.MSG_CTRUNC != 0 || len(fds) > maxFDs) {
		err = os.NewSyscallError("recvmsg: more than "+strconv.Itoa(maxFDs)+" descriptors", unix.EMSGSIZE)
	}
	if err != nil {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		return 0, nil, err
	}
	return n, fds, nil
}

// ParseRights takes the descriptors out of control messages of SCM_RIGHTS. On
// an error it has still returned those that it found.
func ParseRights(oob []byte) ([]int, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, os.NewSyscallError("control message", err)
	}
	var fds []int
	for i := range msgs {
		if msgs[i].Header.Level != unix.SOL_SOCKET || msgs[i].Header.Type != unix.SCM_RIGHTS {
			continue
		}
		got, e := unix.ParseUnixRights(&msgs[i])
		fds = append(fds, got...)
		if e != nil {
			err = os.NewSyscallError("control message", e)
		}
	}
	return fds, err
}

// Rights is the control message that carries descriptors: the oob of sendmsg(2).
func Rights(fds ...int) []byte { return unix.UnixRights(fds...) }
