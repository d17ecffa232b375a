package sys

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Monotonic is CLOCK_MONOTONIC: the time since some moment of this boot, which
// all processes of a time namespace share. It stands still in suspend.
func Monotonic() time.Duration {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

// MonotonicOffset is what Monotonic is ahead of the same clock in the host's time
// namespace, proc_pid_timens_offsets in time_namespaces(7): it differs from one
// namespace to the other, and never changes in one. 0 before Linux 5.6, or without /proc.
func MonotonicOffset() time.Duration {
	b, err := ReadFileAt(unix.AT_FDCWD, "/proc/self/timens_offsets")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		var name string
		var sec, nsec int64
		if n, _ := fmt.Sscan(line, &name, &sec, &nsec); n == 3 && (name == "monotonic" || name == "1") {
			return time.Duration(sec)*time.Second + time.Duration(nsec)
		}
	}
	return 0
}

// HardLimit is this process's hard limit of a resource, see getrlimit(2).
func HardLimit(resource int) (uint64, error) {
	var l unix.Rlimit
	if err := unix.Prlimit(0, resource, nil, &l); err != nil {
		return 0, os.NewSyscallError("prlimit", err)
	}
	return l.Max, nil
}

// Nice is this process's nice value.
func Nice() (int, error) {
	n, err := unix.Getpriority(unix.PRIO_PROCESS, 0) // the call itself says 20-nice, getpriority(2)
	return 20 - n, os.NewSyscallError("getpriority", err)
}

// HungUp tells whether the other end of a stream socket has been closed, or its
// writing half shut down, whatever is left to read.
func HungUp(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0 && p[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
}

// PipeWith makes a pipe that holds b and has no writer, and returns its end for
// reading, close-on-exec and blocking. EAGAIN: b does not fit.
func PipeWith(b []byte) (int, error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return -1, os.NewSyscallError("pipe2", err)
	}
	err := unix.SetNonblock(p[1], true) // each end has flags of its own
	if err == nil && len(b) > 0 {
		var n int
		n, err = unix.Write(p[1], b)
		if err == nil && n < len(b) {
			err = syscall.EAGAIN
		}
	}
	_ = unix.Close(p[1])
	if err != nil {
		_ = unix.Close(p[0])
		return -1, os.NewSyscallError("write", err)
	}
	return p[0], nil
}
