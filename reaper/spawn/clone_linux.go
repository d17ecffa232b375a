package spawn

import (
	"syscall"
	"unsafe"
)

const (
	cloneVM         = 0x100
	clonePidfd      = 0x1000
	cloneClearSig   = 0x100000000 // CLONE_CLEAR_SIGHAND, Linux 5.5
	cloneIntoCgroup = 0x200000000 // Linux 5.7
)

// cloneArgs is struct clone_args of clone3(2), up to Linux 5.7.
type cloneArgs struct {
	flags, pidfd, childTID, parentTID, exitSignal uint64
	stack, stackSize, tls, setTID, setTIDSize     uint64
	cgroup                                        uint64
}

// rawClone makes the system call nr; the child calls entry(arg) on its stack.
//
//go:noescape
func rawClone(nr, a1, a2, a3, entry uintptr, arg *args) uintptr

// childEntry is the address of child's code. An assembly CALL of the name would
// go through a wrapper, and that one calls the race detector when there is one.
func childEntry() uintptr {
	f := child
	return **(**uintptr)(unsafe.Pointer(&f))
}

// clone makes the child. Without a cgroup it uses clone(2), which sandboxes
// that refuse clone3 let through.
func (c *Child) clone(cgroup int) syscall.Errno {
	a := c.args
	a.pidfd = -1
	vm := uintptr(cloneVM)
	if a.private {
		vm = 0
	}
	var r uintptr
	if cgroup < 0 {
		a.reset = ^uint64(0)
		r = cloneBlocked(syscall.SYS_CLONE, vm|clonePidfd|uintptr(syscall.SIGCHLD),
			c.stack+stackSize, uintptr(unsafe.Pointer(&a.pidfd)), childEntry(), a)
	} else {
		a.reset = c.owner.ignored()
		a.clone = cloneArgs{
			flags: uint64(vm) | clonePidfd | cloneClearSig | cloneIntoCgroup, exitSignal: uint64(syscall.SIGCHLD),
			pidfd: uint64(uintptr(unsafe.Pointer(&a.pidfd))),
			stack: uint64(c.stack), stackSize: stackSize, cgroup: uint64(cgroup),
		}
		r = cloneBlocked(sysClone3, uintptr(unsafe.Pointer(&a.clone)), unsafe.Sizeof(a.clone), 0, childEntry(), a)
	}
	if errno := -int(r); errno > 0 && errno < 4096 {
		return syscall.Errno(errno)
	}
	c.PID, c.PIDFD = int(r), int(a.pidfd)
	return 0
}

// cloneBlocked clones with all signals blocked: the child must not run one of
// the runtime's handlers, and this thread must not be preempted in between.
//
//go:nosplit
//go:norace
func cloneBlocked(nr, a1, a2, a3, entry uintptr, a *args) uintptr {
	all, old := ^uint64(0), uint64(0)
	syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, sigSetmask,
		uintptr(unsafe.Pointer(&all)), uintptr(unsafe.Pointer(&old)), 8, 0, 0)
	r := rawClone(nr, a1, a2, a3, entry, a)
	syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, sigSetmask, uintptr(unsafe.Pointer(&old)), 0, 8, 0, 0)
	return r
}

// ignored is the set of signals that this process ignores, which clearing the
// handlers does not touch. It is looked at once.
func (s *Spawner) ignored() uint64 {
	if s.looked {
		return s.ignore
	}
	s.looked = true
	var act [4]uint64
	for sig := uintptr(1); sig <= lastSignal; sig++ {
		syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, sig, 0, uintptr(unsafe.Pointer(&act)), 8, 0, 0)
		if act[0] == 1 { // SIG_IGN
			s.ignore |= 1 << (sig - 1)
		}
	}
	return s.ignore
}
