package spawn

import (
	"syscall"
	"unsafe"
)

// extra is a descriptor that the child gets in addition, and its number there.
type extra struct{ fd, number int }

// limit is a resource limit and its number; value is struct rlimit64.
type limit struct {
	resource uintptr
	value    [2]uint64
}

const (
	atFDCWD         = ^uintptr(99) // -100
	prSetDumpable   = 4
	prSetNoNewPrivs = 38
	sizeofLimit     = unsafe.Sizeof(limit{})
)

// setAttributes sets what only the keeper may, and becomes the user. It does
// not return when one is refused.
//
//go:nosplit
//go:norace
//go:nocheckptr
func setAttributes(a *args) {
	if a.umask <= 0o777 {
		syscall.RawSyscall(syscall.SYS_UMASK, a.umask, 0, 0)
	}
	if a.nofile.Hard != 0 {
		syscall.RawSyscall6(syscall.SYS_PRLIMIT64, 0, syscall.RLIMIT_NOFILE, uintptr(unsafe.Pointer(&a.nofile)), 0, 0, 0)
	}
	for i := range a.nlimits {
		l := (*limit)(unsafe.Add(unsafe.Pointer(a.limits), i*sizeofLimit))
		if _, _, e := syscall.RawSyscall6(syscall.SYS_PRLIMIT64, 0, l.resource, uintptr(unsafe.Pointer(&l.value)), 0, 0, 0); e != 0 {
			fail(a, StepRlimit, e, i)
		}
	}
	if a.setNice {
		if _, _, e := syscall.RawSyscall(syscall.SYS_SETPRIORITY, 0, 0, a.nice); e != 0 {
			fail(a, StepNice, e, 0)
		}
	}
	oom := openOOM(a)
	if a.setUser {
		if e := setUser(a); e != 0 {
			fail(a, StepUser, e, 0)
		}
	}
	if a.private { // a shared memory the keeper takes care of
		syscall.RawSyscall6(syscall.SYS_PRCTL, prSetDumpable, 0, 0, 0, 0, 0)
	}
	if oom >= 0 {
		if _, _, e := syscall.RawSyscall(syscall.SYS_WRITE, uintptr(oom), uintptr(unsafe.Pointer(a.oomText)), a.oomLen); e != 0 {
			fail(a, StepOOM, e, 0)
		}
		syscall.RawSyscall(syscall.SYS_CLOSE, uintptr(oom), 0, 0)
	}
	if a.noPrivs {
		if _, _, e := syscall.RawSyscall6(syscall.SYS_PRCTL, prSetNoNewPrivs, 1, 0, 0, 0, 0); e != 0 {
			fail(a, StepNoNewPrivs, e, 0)
		}
	}
}

// openOOM opens oom_score_adj, which is written once the user is another: the
// kernel then lets it only be raised. The memory is a copy here, or the keeper's
// would change with it (__set_oom_adj of fs/proc/base.c, all that share it).
// The file of an undumpable process is root's: where the keeper is not root, the
// child must be dumpable for a moment.
//
//go:nosplit
//go:norace
func openOOM(a *args) int {
	if a.oomText == nil {
		return -1
	}
	path := [...]byte{'/', 'p', 'r', 'o', 'c', '/', 's', 'e', 'l', 'f', '/', 'o', 'o', 'm', '_', 's', 'c', 'o', 'r', 'e', '_', 'a', 'd', 'j', 0}
	const flags = syscall.O_WRONLY | syscall.O_CLOEXEC
	fd, _, e := syscall.RawSyscall6(syscall.SYS_OPENAT, atFDCWD, uintptr(unsafe.Pointer(&path)), flags, 0, 0, 0)
	if e == syscall.EACCES {
		syscall.RawSyscall6(syscall.SYS_PRCTL, prSetDumpable, 1, 0, 0, 0, 0)
		fd, _, e = syscall.RawSyscall6(syscall.SYS_OPENAT, atFDCWD, uintptr(unsafe.Pointer(&path)), flags, 0, 0, 0)
	}
	if e != 0 {
		fail(a, StepOOM, e, 0)
	}
	return int(fd)
}

//go:nosplit
//go:norace
func setUser(a *args) syscall.Errno {
	if a.setGroups {
		if _, _, e := syscall.RawSyscall(syscall.SYS_SETGROUPS, a.ngroups, uintptr(unsafe.Pointer(a.groups)), 0); e != 0 {
			return e
		}
	}
	if _, _, e := syscall.RawSyscall(syscall.SYS_SETRESGID, a.gid, a.gid, a.gid); e != 0 {
		return e
	}
	_, _, e := syscall.RawSyscall(syscall.SYS_SETRESUID, a.uid, a.uid, a.uid)
	return e
}

// enter changes to the directory, or to the nearest parent that the user may
// enter, and then tells its length.
//
//go:nosplit
//go:norace
//go:nocheckptr
func enter(a *args) {
	n := a.dirLen
	for {
		_, _, e := syscall.RawSyscall(syscall.SYS_CHDIR, uintptr(unsafe.Pointer(a.dir)), 0, 0)
		if e == 0 {
			break
		}
		if !a.nearest || n <= 1 {
			fail(a, StepCwd, e, 0)
		}
		n = parent(a.dir, n)
	}
	if a.nearest {
		tell(a, StepCwd, 0, n)
	}
}

// parent cuts the last name from a path of n bytes, and the slashes around it.
// What is left is never empty.
//
//go:nosplit
//go:norace
//go:nocheckptr
func parent(path *byte, n uintptr) uintptr {
	for n > 1 && *at(path, n-1) == '/' {
		n--
	}
	for n > 1 && *at(path, n-1) != '/' {
		n--
	}
	for n > 1 && *at(path, n-1) == '/' {
		n--
	}
	*at(path, n) = 0
	return n
}

//go:nosplit
//go:norace
//go:nocheckptr
func at(path *byte, i uintptr) *byte { return (*byte)(unsafe.Add(unsafe.Pointer(path), i)) }
