package sys

import (
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sigaction is the kernel's, not libc's.
type sigaction struct {
	handler  uintptr
	flags    uint64
	restorer uintptr
	mask     uint64
}

// RawSigaction has the kernel call a handler that is no Go code, on the
// signal stack, with all signals blocked, behind the back of the Go runtime. On
// amd64 the handler returns to restorer, which calls rt_sigreturn(2).
func RawSigaction(sig syscall.Signal, handler, restorer uintptr) error {
	const noCldStop, restore, onStack, restart = 1, 0x04000000, 0x08000000, 0x10000000 // SA_*, sigaction(2)
	act := sigaction{
		handler: handler, restorer: restorer, mask: ^uint64(0),
		flags: noCldStop | restore | onStack | restart,
	}
	_, _, e := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&act)), 0, 8, 0, 0)
	if e != 0 {
		return os.NewSyscallError("rt_sigaction", e)
	}
	return nil
}

// UnblockSignal unblocks a signal in the calling thread.
func UnblockSignal(sig syscall.Signal) error {
	set := uint64(1) << (sig - 1)
	_, _, e := unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_UNBLOCK, uintptr(unsafe.Pointer(&set)), 0, 8, 0, 0)
	if e != 0 {
		return os.NewSyscallError("rt_sigprocmask", e)
	}
	return nil
}

// Eventfd makes a non-blocking event counter, close-on-exec.
func Eventfd() (int, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
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

// NoHugePage keeps the kernel from making huge pages of a mapping.
func NoHugePage(start, length uintptr) error {
	_, _, e := unix.Syscall(unix.SYS_MADVISE, start, length, unix.MADV_NOHUGEPAGE)
	if e != 0 {
		return os.NewSyscallError("madvise", e)
	}
	return nil
}
