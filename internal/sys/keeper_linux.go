package sys

import (
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// SetDisposition has the kernel ignore a signal, or do its default, behind the
// back of the Go runtime, which would end the process or keep a handler.
func SetDisposition(sig syscall.Signal, ignore bool) error {
	var act [4]uint64 // struct sigaction of the kernel: handler, flags, restorer, mask
	if ignore {
		act[0] = 1 // SIG_IGN
	}
	_, _, e := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&act)), 0, 8, 0, 0)
	if e != 0 {
		return os.NewSyscallError("rt_sigaction", e)
	}
	return nil
}

// Eventfd makes a blocking event counter, close-on-exec.
func Eventfd() (int, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	return fd, os.NewSyscallError("eventfd", err)
}

// CloseOnExecFrom marks every descriptor from first on (Linux 5.11; EINVAL or
// ENOSYS before).
func CloseOnExecFrom(first int) error {
	return os.NewSyscallError("close_range", unix.CloseRange(uint(first), 1<<31-1, unix.CLOSE_RANGE_CLOEXEC))
}

// Listening tells whether a descriptor is a listening socket.
func Listening(fd int) error {
	n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err == nil && n == 0 {
		err = unix.EINVAL
	}
	return os.NewSyscallError("getsockopt SO_ACCEPTCONN", err)
}

// WaitWritable waits up to ms milliseconds until fd can be written.
func WaitWritable(fd, ms int) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, ms)
	return err == nil && n > 0
}
