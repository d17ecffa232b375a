package feature

import (
	"errors"
	"os"
	"syscall"

	"pinfold.dev/internal/sys"
)

// A seccomp filter says ENOSYS or EPERM for a call that it does not know.
// Nothing here can be refused with EPERM otherwise: we only try ourselves.

// withSelf gives a probe a pidfd of this process.
func withSelf(try func(fd int) error) func(string) error {
	return func(string) error {
		fd, err := sys.PidfdOpen(os.Getpid(), 0)
		if err != nil {
			return absent(err, syscall.ENOSYS, syscall.EPERM)
		}
		defer sys.Close(fd)
		return try(fd)
	}
}

func trySendSignal(fd int) error {
	return absent(sys.PidfdSendSignal(fd, 0, 0), syscall.ENOSYS, syscall.EPERM)
}

// tryWait waits for ourselves: ECHILD, for we are no child of ours, comes only
// from a kernel that knows P_PIDFD.
func tryWait(fd int) error {
	_, err := sys.Waitid(sys.PPidfd, fd, sys.WExited|sys.WNoHang)
	if errors.Is(err, syscall.ECHILD) {
		return nil
	}
	return absent(err, syscall.EINVAL, syscall.ENOSYS, syscall.EPERM)
}

var errOneInode = errors.New("all pidfds are on one inode")

func tryInode(fd int) error {
	if _, ok := sys.PidfsIno(fd); !ok {
		return &absence{errOneInode}
	}
	return nil
}

func trySignalFlags(fd int) error {
	err := sys.PidfdSendSignal(fd, 0, sys.PidfdSignalThreadGroup)
	return absent(err, syscall.EINVAL, syscall.ENOSYS, syscall.EPERM)
}

func tryInfo(fd int) error { return tryMask(fd, sys.PidfdInfoPID) }

func tryInfoCgroup(fd int) error { return tryMask(fd, sys.PidfdInfoCgroupID) }

var errMask = errors.New("not in the mask that came back")

func tryMask(fd int, mask uint64) error {
	in, err := sys.PidfdGetInfo(fd, mask)
	if err == nil && in.Mask&mask == 0 {
		return &absence{errMask}
	}
	return absent(err, syscall.ENOTTY, syscall.EINVAL, syscall.ENOSYS, syscall.EPERM)
}

func tryPeerPidfd(string) error {
	a, b, err := sys.SocketPair()
	if err != nil {
		return err
	}
	defer sys.Close(a)
	defer sys.Close(b)
	fd, err := sys.PeerPidfd(a)
	if err != nil {
		return absent(err, syscall.ENOPROTOOPT)
	}
	return sys.Close(fd)
}
