package spawn

import (
	"syscall"
	"unsafe"

	"pinfold.dev/reaper/spawn/inherited"
)

// args is all that the child reads. It lives on the heap and is referenced by
// the Child until the child has let go of our memory.
type args struct {
	fds       [3]int
	status    int // write end of the status pipe
	gate      int // read end of the gate, or -1
	gateWrite int // the keeper's end of it, or -1
	extra     *extra
	nextra    uintptr
	base      int // above every number that the child is to have
	tty       uintptr
	umask     uintptr
	limits    *limit
	nlimits   uintptr
	nice      uintptr
	oomText   *byte
	oomLen    uintptr
	setNice   bool
	noPrivs   bool // no_new_privs
	nearest   bool // or the nearest parent of dir
	private   bool // memory is a copy
	setUser   bool
	setGroups bool
	uid, gid  uintptr
	groups    *uint32
	ngroups   uintptr
	reset     uint64 // signals to give their default disposition
	nofile    inherited.Limit
	dir       *byte // may be cut short by the child
	dirLen    uintptr
	paths     **byte // NUL-terminated strings, nil-terminated list; so the two below
	argv      **byte
	envv      **byte
	report    [3]uint32 // step, errno, and what the step says more: an index, or a length

	clone cloneArgs // the parent's, for the time of the call; on the heap as all this
	pidfd int32
}

// System call numbers that package syscall lacks on amd64; the newer ones are
// the same on every architecture.
const (
	sysClone3     = 435 // Linux 5.3
	sysCloseRange = 436 // Linux 5.9
)

const (
	fDupfdCloexec = 1030
	sigSetmask    = 2
	lastSignal    = 64
)

// child runs in the clone, in the parent's memory, on a stack of its own, with
// all signals blocked. It may only make raw system calls: no allocation, no
// lock, no stack growth, no bounds check that can fail, no return.
//
//go:nosplit
//go:norace
//go:nocheckptr
//go:noinline
func child(a *args) {
	resetSignals(a.reset)
	syscall.RawSyscall(syscall.SYS_SETSID, 0, 0, 0)
	if a.tty != 0 {
		if _, _, e := syscall.RawSyscall(syscall.SYS_IOCTL, a.tty, syscall.TIOCSCTTY, 0); e != 0 {
			fail(a, StepTerminal, e, 0)
		}
	}
	if e := setFDs(a); e != 0 {
		fail(a, StepStdio, e, 0)
	}
	if a.gate >= 0 && !passGate(a) {
		exit(127)
	}
	setAttributes(a)
	enter(a)
	var none uint64
	syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, sigSetmask, uintptr(unsafe.Pointer(&none)), 0, 8, 0, 0)
	execute(a)
}

// resetSignals gives the signals of a set their default disposition: what an
// ancestor ignored and, where the clone could not do it, the runtime's handlers.
//
//go:nosplit
//go:norace
func resetSignals(set uint64) {
	var dfl [4]uint64 // struct sigaction of the kernel: handler, flags, restorer, mask
	for s := uintptr(1); s <= lastSignal; s++ {
		if set>>(s-1)&1 == 0 {
			continue
		}
		syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, s, uintptr(unsafe.Pointer(&dfl)), 0, 8, 0, 0)
	}
}

// setFDs puts the descriptors in place and closes everything else but the
// pipes, so that a child that is held up keeps no connection of the keeper's
// open. Before Linux 5.9 execve closes them. What is in the way of a number
// that the child is to have moves above all of them first.
//
//go:nosplit
//go:norace
//go:nocheckptr
func setFDs(a *args) syscall.Errno {
	if e := lift(&a.status, a.base); e != 0 {
		return e
	}
	if e := lift(&a.gate, a.base); e != 0 {
		return e
	}
	for i := range a.fds {
		if e := lift(&a.fds[i], a.base); e != 0 {
			return e
		}
	}
	for i := range a.nextra {
		x := (*extra)(unsafe.Add(unsafe.Pointer(a.extra), i*unsafe.Sizeof(*a.extra)))
		if e := lift(&x.fd, a.base); e != 0 {
			return e
		}
	}
	if a.gate >= 0 {
		syscall.RawSyscall(syscall.SYS_CLOSE, uintptr(a.gateWrite), 0, 0)
	}
	if e := place(a); e != 0 {
		return e
	}
	closeOthers(a)
	return 0
}

// lift moves a descriptor to base or above, and leaves -1 alone.
//
//go:nosplit
//go:norace
func lift(fd *int, base int) syscall.Errno {
	if *fd < 0 || *fd >= base {
		return 0
	}
	n, _, e := syscall.RawSyscall(syscall.SYS_FCNTL, uintptr(*fd), fDupfdCloexec, uintptr(base))
	if e == 0 {
		*fd = int(n)
	}
	return e
}

// place gives the descriptors the numbers that the child is to have.
//
//go:nosplit
//go:norace
//go:nocheckptr
func place(a *args) syscall.Errno {
	for i := range a.fds {
		if _, _, e := syscall.RawSyscall(syscall.SYS_DUP3, uintptr(a.fds[i]), uintptr(i), 0); e != 0 {
			return e
		}
	}
	for i := range a.nextra {
		x := (*extra)(unsafe.Add(unsafe.Pointer(a.extra), i*unsafe.Sizeof(*a.extra)))
		if _, _, e := syscall.RawSyscall(syscall.SYS_DUP3, uintptr(x.fd), uintptr(x.number), 0); e != 0 {
			return e
		}
	}
	return 0
}

// closeOthers closes all but the child's descriptors, which ascend, and the
// pipes, which are above them.
//
//go:nosplit
//go:norace
//go:nocheckptr
func closeOthers(a *args) {
	next := uintptr(3)
	for i := range a.nextra {
		x := (*extra)(unsafe.Add(unsafe.Pointer(a.extra), i*unsafe.Sizeof(*a.extra)))
		if n := uintptr(x.number); n > next {
			syscall.RawSyscall(sysCloseRange, next, n-1, 0)
		}
		next = uintptr(x.number) + 1
	}
	low, high := uintptr(a.status), uintptr(a.status)
	if a.gate >= 0 {
		low, high = min(low, uintptr(a.gate)), max(high, uintptr(a.gate))
	}
	if low > next {
		syscall.RawSyscall(sysCloseRange, next, low-1, 0)
	}
	if high > low+1 {
		syscall.RawSyscall(sysCloseRange, low+1, high-1, 0)
	}
	syscall.RawSyscall(sysCloseRange, high+1, 1<<31-1, 0)
}

// passGate waits until the keeper opens the gate. The end of the pipe means
// that the keeper has died: nothing may run then.
//
//go:nosplit
//go:norace
func passGate(a *args) bool {
	var b [1]byte
	for {
		n, _, e := syscall.RawSyscall(syscall.SYS_READ, uintptr(a.gate), uintptr(unsafe.Pointer(&b)), 1)
		if e == syscall.EINTR {
			continue
		}
		return e == 0 && n == 1
	}
}

// execute tries one path after the other as execvp does: what is missing is
// passed over, a refusal is remembered, anything else ends the search.
//
//go:nosplit
//go:norace
//go:nocheckptr
func execute(a *args) {
	last, at := syscall.ENOENT, uintptr(0)
	for i := uintptr(0); ; i++ {
		p := *(**byte)(unsafe.Add(unsafe.Pointer(a.paths), i*unsafe.Sizeof(a.paths)))
		if p == nil {
			break
		}
		e := execOne(a, p)
		switch e {
		case syscall.EACCES:
			last, at = e, i
		case syscall.ENOENT, syscall.ENOTDIR, syscall.ESTALE, syscall.ENODEV, syscall.ETIMEDOUT:
			if i == 0 {
				last = e
			}
		default:
			fail(a, StepExec, e, i)
		}
	}
	fail(a, StepExec, last, at)
}

// execOne executes p. A file that is just being written (ETXTBSY) is tried
// again for about 100 ms: often a descriptor in somebody else's fork.
//
//go:nosplit
//go:norace
func execOne(a *args, p *byte) syscall.Errno {
	wait := syscall.Timespec{Nsec: 1e6}
	for try := 0; ; try++ {
		_, _, e := syscall.RawSyscall(syscall.SYS_EXECVE, uintptr(unsafe.Pointer(p)),
			uintptr(unsafe.Pointer(a.argv)), uintptr(unsafe.Pointer(a.envv)))
		if e != syscall.ETXTBSY || try == 7 {
			return e
		}
		syscall.RawSyscall(syscall.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&wait)), 0, 0)
		wait.Nsec *= 2
	}
}

// fail reports the step and exits.
//
//go:nosplit
//go:norace
func fail(a *args, step Step, e syscall.Errno, index uintptr) {
	tell(a, step, e, index)
	exit(127)
}

//go:nosplit
//go:norace
func tell(a *args, step Step, e syscall.Errno, index uintptr) {
	a.report = [3]uint32{uint32(step), uint32(e), uint32(index)}
	syscall.RawSyscall(syscall.SYS_WRITE, uintptr(a.status), uintptr(unsafe.Pointer(&a.report)), unsafe.Sizeof(a.report))
}

//go:nosplit
//go:norace
func exit(code uintptr) {
	for {
		syscall.RawSyscall(syscall.SYS_EXIT_GROUP, code, 0, 0)
	}
}
