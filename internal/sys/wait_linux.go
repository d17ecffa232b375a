package sys

import (
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Which children waitid(2) looks at, and how.
const (
	PAll    = unix.P_ALL
	PPid    = unix.P_PID
	PPidfd  = unix.P_PIDFD // Linux 5.4
	WExited = unix.WEXITED
	WNoHang = unix.WNOHANG
	WNoWait = unix.WNOWAIT // leave it waitable
	WAll    = unix.WALL    // every child, whatever its exit signal
)

// How a child ended: Child.Code.
const (
	CldExited = 1
	CldKilled = 2
	CldDumped = 3
)

// Child is what waitid(2) says of a child. PID 0: none is ready.
type Child struct {
	PID    int
	UID    uint32
	Code   int // CldExited, CldKilled or CldDumped
	Status int // exit code, or signal number
}

// siginfo is the SIGCHLD form of siginfo_t on 64-bit systems.
type siginfo struct {
	signo, errno, code, _ int32
	pid                   int32
	uid                   uint32
	status                int32
	_                     [100]byte
}

// The two must be of one size: the kernel writes 128 bytes.
var _ = [1]struct{}{}[unsafe.Sizeof(siginfo{})-unsafe.Sizeof(unix.Siginfo{})]

// Waitid waits for a child. ECHILD: there is none. EAGAIN: the pidfd is
// non-blocking and the child has not ended.
func Waitid(idType, id, options int) (Child, error) {
	var in siginfo
	err := ignoringEINTR(func() error {
		return unix.Waitid(idType, id, (*unix.Siginfo)(unsafe.Pointer(&in)), options, nil)
	})
	if err != nil {
		return Child{}, os.NewSyscallError("waitid", err)
	}
	return Child{PID: int(in.pid), UID: in.uid, Code: int(in.code), Status: int(in.status)}, nil
}

// SetSubreaper makes orphaned descendants children of this process, or no
// longer (PR_SET_CHILD_SUBREAPER, prctl(2)). Not inherited by fork.
func SetSubreaper(on bool) error { return prctlBool(unix.PR_SET_CHILD_SUBREAPER, on) }

// SetDumpable with false makes the process undumpable: others of its uid can
// neither trace it nor read its /proc. execve resets it.
func SetDumpable(on bool) error { return prctlBool(unix.PR_SET_DUMPABLE, on) }

// SetNoNewPrivs makes every later execve grant nothing. It cannot be undone.
func SetNoNewPrivs() error { return prctlBool(unix.PR_SET_NO_NEW_PRIVS, true) }

// SetParentDeathSignal has the kernel send sig when the thread that made this
// process ends; 0 turns it off. Cleared by a set-id execve.
func SetParentDeathSignal(sig syscall.Signal) error {
	return os.NewSyscallError("prctl", unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(sig), 0, 0, 0))
}

func prctlBool(option int, on bool) error {
	var arg uintptr
	if on {
		arg = 1
	}
	return os.NewSyscallError("prctl", unix.Prctl(option, arg, 0, 0, 0))
}

// Nanosleep sleeps for about ns nanoseconds. Unlike time.Sleep, which sleeps at
// least a millisecond in an idle program (Go issue 44343), it keeps to what
// was asked within the kernel's timer slack of 50 µs. It holds a thread.
func Nanosleep(ns int64) {
	ts := unix.NsecToTimespec(ns)
	_ = unix.Nanosleep(&ts, nil)
}

// BootTicks is the time since boot in the unit of field 22 of /proc/pid/stat,
// in our own time namespace as that field is.
func BootTicks() uint64 {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return 0
	}
	return uint64(ts.Nano()) / (1e9 / TicksPerSecond)
}
