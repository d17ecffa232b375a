package turns

import (
	"syscall"
	"unsafe"
)

// Processes that are forked without an exec, as C programs do: cheap, of one
// thread, sharing memory until they write. After the fork only the forking
// thread exists, so nothing here may enter the Go runtime: no allocation, no
// stack growth (nosplit), system calls without the scheduler (RawSyscall).

// job is what a forked process does; it is prepared before the fork.
type job struct {
	fd    int              // the heartbeat file; -1: none
	pause syscall.Timespec // between beats
	mark  [1]byte
	setup uintptr // a bit set of the do constants
	until int64   // clock seconds after which it exits; 0: never
	most  uintptr // who has forked a pid above this forks no more; 0: forks no more
}

// What a forked process does first.
const (
	doSetsid = 1 << iota
	doStop   // SIGSTOP itself
)

// raw forks; 0 in the child.
//
//go:nosplit
//go:norace
func rawFork() uintptr {
	pid, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return ^uintptr(0)
	}
	return pid
}

//go:nosplit
//go:norace
func rawExit() {
	for {
		syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
	}
}

//go:nosplit
//go:norace
func (j *job) beat() {
	if j.fd >= 0 {
		syscall.RawSyscall(syscall.SYS_WRITE, uintptr(j.fd), uintptr(unsafe.Pointer(&j.mark[0])), 1)
	}
	syscall.RawSyscall(syscall.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&j.pause)), 0, 0)
}

//go:nosplit
//go:norace
func (j *job) late(now *syscall.Timespec) bool {
	syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, 1, uintptr(unsafe.Pointer(now)), 0)
	return j.until != 0 && now.Sec > j.until
}

//go:nosplit
//go:norace
func (j *job) begin() {
	pid, _, _ := syscall.RawSyscall(syscall.SYS_GETPID, 0, 0, 0)
	if j.setup&doSetsid != 0 {
		syscall.RawSyscall(syscall.SYS_SETSID, 0, 0, 0)
	}
	if j.setup&doStop != 0 {
		if j.fd >= 0 {
			syscall.RawSyscall(syscall.SYS_WRITE, uintptr(j.fd), uintptr(unsafe.Pointer(&j.mark[0])), 1)
		}
		syscall.RawSyscall(syscall.SYS_KILL, pid, uintptr(syscall.SIGSTOP), 0)
	}
}

// fork starts a process that does the job, and returns its pid.
//
//go:nosplit
//go:norace
func (j *job) fork() uintptr {
	pid := rawFork()
	if pid != 0 {
		return pid
	}
	j.begin()
	var now syscall.Timespec
	for !j.late(&now) {
		j.beat()
	}
	rawExit()
	return 0
}

// forkTwice starts a daemon: its parent has exited when it returns.
//
//go:nosplit
//go:norace
func (j *job) forkTwice() {
	pid := rawFork()
	if pid == 0 {
		syscall.RawSyscall(syscall.SYS_SETSID, 0, 0, 0)
		j.fork()
		rawExit()
	}
	syscall.RawSyscall6(syscall.SYS_WAIT4, pid, 0, 0, 0, 0, 0)
}

// bomb is a fork bomb: every process of it forks another for as long as the
// bounds allow, each in a session of its own. A moving one forks and exits, so
// that no process of it lives for long.
//
//go:nosplit
//go:norace
func (j *job) bomb(moving bool) {
	var now syscall.Timespec
	for !j.late(&now) {
		if moving || j.most > 0 {
			switch pid := rawFork(); {
			case pid == 0:
				if own, _, _ := syscall.RawSyscall(syscall.SYS_SETSID, 0, 0, 0); own > j.most && !moving {
					j.most = 0
				}
			case pid == ^uintptr(0): // no pid to be had: try again
			case moving:
				rawExit()
			case pid > j.most:
				j.most = 0 // this process, whose memory is its own, has done its share
			}
		}
		j.beat()
	}
	rawExit()
}
