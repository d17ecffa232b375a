package pid1

import (
	"syscall"
	"unsafe"
)

// System call numbers that package syscall lacks on amd64, the same everywhere.
const (
	sysSignalfd4  = (1-isArm64)*289 + isArm64*74
	sysPpoll      = (1-isArm64)*271 + isArm64*73
	sysFstatat    = (1-isArm64)*262 + isArm64*79
	sysCloseRange = 436 // Linux 5.9
	sysPidfdOpen  = 434 // Linux 5.3
	sysPidfdSend  = 424 // Linux 5.1
)

const (
	atFDCWD                 = ^uintptr(99) // -100
	atNoFollow, atRemoveDir = 0x100, 0x200
	sigMax                  = 64
	everySig                = ^uint64(0)
	wNoHang                 = 1
	wUntraced               = 2
	wAll                    = 0x40000000 // __WALL

	fDupfdCloexec      = 1030
	prSetPdeathsig     = 1
	prSetSubreaper     = 36
	prGetSubreaper     = 37
	oRdonlyCloexec     = syscall.O_RDONLY | syscall.O_CLOEXEC
	oPath              = 0x200000
	sigBlock, sigSet   = 0, 2
	clockMonotonic     = 1
	siTkill, siQueue   = -6, -1
	siUser, siKernel   = 0, 0x80
	maxPath            = 4096
	tiocgpgrp, tioctty = syscall.TIOCGPGRP, syscall.TIOCSCTTY
)

type timespec struct{ sec, nsec int64 }

// siginfo is the kernel's, as far as it is read.
type siginfo struct {
	signo, _, code, _ int32
	pid, _            int32 // the user
	_                 [104]byte
}

// action is the kernel's struct sigaction.
type action struct {
	handler, flags, restorer uintptr
	mask                     uint64
}

func sys(nr, a, b, c uintptr) (uintptr, syscall.Errno) {
	r, _, e := syscall.RawSyscall6(nr, a, b, c, 0, 0, 0)
	return r, e
}

func sys4(nr, a, b, c, d uintptr) (uintptr, syscall.Errno) {
	r, _, e := syscall.RawSyscall6(nr, a, b, c, d, 0, 0)
	return r, e
}

func addr[T any](p *T) uintptr { return uintptr(unsafe.Pointer(p)) }

func getpid() int  { r, _ := sys(syscall.SYS_GETPID, 0, 0, 0); return int(r) }
func getppid() int { r, _ := sys(syscall.SYS_GETPPID, 0, 0, 0); return int(r) }
func getpgrp() int { r, _ := sys(syscall.SYS_GETPGID, 0, 0, 0); return int(r) }

// getsid is 0 for a process that there is not.
func getsid(pid int) int {
	r, e := sys(syscall.SYS_GETSID, uintptr(pid), 0, 0)
	if e != 0 {
		return 0
	}
	return int(r)
}

func kill(pid, sig int) syscall.Errno {
	_, e := sys(syscall.SYS_KILL, uintptr(pid), uintptr(sig), 0)
	return e
}

// prctl passes zeroes for the rest: some of the kernel's insist.
func prctl(what, arg uintptr) syscall.Errno {
	_, e := sys(syscall.SYS_PRCTL, what, arg, 0)
	return e
}

// sigaction is rt_sigaction; set or old may be nil.
func sigaction(sig int, set, old *action) syscall.Errno {
	_, e := sys4(syscall.SYS_RT_SIGACTION, uintptr(sig), addr(set), addr(old), 8)
	return e
}

func sigmask(how int, set *uint64) {
	_, _ = sys4(syscall.SYS_RT_SIGPROCMASK, uintptr(how), addr(set), 0, 8)
}

// now is the monotonic clock in ms.
func now() int64 {
	var t timespec
	_, _ = sys(syscall.SYS_CLOCK_GETTIME, clockMonotonic, addr(&t), 0)
	return t.sec*1000 + t.nsec/1e6
}

// open opens a path, which ends with a zero byte.
func open(path *byte, flags int, mode uintptr) (fd int, e syscall.Errno) {
	r, e := sys4(syscall.SYS_OPENAT, atFDCWD, addr(path), uintptr(flags), mode)
	if e != 0 {
		return -1, e
	}
	return int(r), 0
}

// read reads until the buffer is full or there is no more.
func read(fd int, b *byte, size int) int {
	n := 0
	for n < size {
		r, e := sys(syscall.SYS_READ, uintptr(fd), addr(b)+uintptr(n), uintptr(size-n))
		if e == syscall.EINTR {
			continue
		}
		if e != 0 || r == 0 {
			break
		}
		n += int(r)
	}
	return n
}

func closeFD(fd int) { _, _ = sys(syscall.SYS_CLOSE, uintptr(fd), 0, 0) }

// above moves a descriptor out of the way of standard input and output, which may
// not be open.
func above(fd int) int {
	if fd > 2 {
		return fd
	}
	r, e := sys(syscall.SYS_FCNTL, uintptr(fd), fDupfdCloexec, 3)
	closeFD(fd)
	if e != 0 {
		return -1
	}
	return int(r)
}

// closeFrom closes every descriptor from there on.
func closeFrom(first int) { closeRange(first, 1<<31-1) }

func closeRange(first, last int) {
	if _, e := sys(sysCloseRange, uintptr(first), uintptr(last), 0); e == 0 {
		return
	}
	var l [2]uint64
	_, _ = sys4(syscall.SYS_PRLIMIT64, 0, syscall.RLIMIT_NOFILE, 0, addr(&l))
	for fd := first; fd <= last && fd < int(min(l[0], 1<<16)); fd++ {
		closeFD(fd)
	}
}

// mapPages has memory of the kernel, zeroed; nil if there is none.
func mapPages(size uintptr) unsafe.Pointer {
	const private = syscall.MAP_PRIVATE | syscall.MAP_ANONYMOUS
	p, _, e := syscall.RawSyscall6(syscall.SYS_MMAP, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, private, ^uintptr(0), 0)
	if e != 0 {
		return nil
	}
	return *(*unsafe.Pointer)(unsafe.Pointer(&p))
}

// exit ends the process.
func exit(code int) {
	for {
		_, _ = sys(syscall.SYS_EXIT_GROUP, uintptr(code), 0, 0)
	}
}

// hide keeps the compiler from seeing that a pointer is stored: what it points to
// outlives that.
func hide[T any](p *T) *T {
	x := uintptr(unsafe.Pointer(p))
	return *(**T)(unsafe.Pointer(&x))
}

// str is a string of the kernel's: bytes up to a zero.
func str(p *byte) string {
	if p == nil {
		return ""
	}
	n := 0
	for *at(p, n) != 0 {
		n++
	}
	return unsafe.String(p, n)
}

func at(p *byte, i int) *byte { return (*byte)(unsafe.Add(unsafe.Pointer(p), i)) }

// list is a nil-terminated list of strings of the kernel's.
type list struct{ p **byte }

func (l list) at(i int) *byte {
	return *(**byte)(unsafe.Add(unsafe.Pointer(l.p), uintptr(i)*unsafe.Sizeof(l.p)))
}

func (l list) from(i int) list {
	return list{(**byte)(unsafe.Add(unsafe.Pointer(l.p), uintptr(i)*unsafe.Sizeof(l.p)))}
}

// env finds a variable's value; ok also when that is empty.
func (l list) env(name string) (value string, ok bool) {
	for i := 0; l.at(i) != nil; i++ {
		s := str(l.at(i))
		if len(s) > len(name) && s[:len(name)] == name && s[len(name)] == '=' {
			return s[len(name)+1:], true
		}
	}
	return "", false
}
