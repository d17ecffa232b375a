package inits

import (
	"encoding/json"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	seccomp "github.com/elastic/go-seccomp-bpf"
)

// playStage sets a stage and executes the init there. It does not return.
func playStage(text string) {
	runtime.LockOSThread()
	var s stage
	check(json.Unmarshal([]byte(text), &s))
	env := without(os.Environ(), stageEnv)
	if !s.Bare {
		check(syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""))
		if s.NoProc {
			check(syscall.Mount("none", "/proc", "tmpfs", 0, ""))
		} else {
			check(syscall.Mount("proc", "/proc", "proc", 0, ""))
		}
	}
	for _, file := range s.Cgroups {
		check(os.WriteFile(file, []byte("0"), 0))
	}
	s.mounts()
	if len(s.Calls) > 0 {
		check(seccomp.LoadFilter(seccomp.Filter{Flag: seccomp.FilterFlagTSync, NoNewPrivs: true, Policy: seccomp.Policy{
			DefaultAction: seccomp.ActionAllow,
			Syscalls: []seccomp.SyscallGroup{{Names: s.Calls,
				Action: seccomp.ActionErrno | seccomp.Action(s.Errno)}},
		}}))
	}
	if s.UID != 0 {
		check(syscall.Setgid(s.UID))
		check(syscall.Setuid(s.UID))
	}
	for _, fd := range s.Close {
		_ = syscall.Close(fd)
	}
	s.dispositions()
	_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, 2, uintptr(unsafe.Pointer(&s.Block)), 0, 8, 0, 0)
	check(syscall.Exec(s.Argv[0], s.Argv, env))
}

// mounts lays out the file systems.
func (s stage) mounts() {
	for _, dir := range s.Tmpfs {
		mode := "mode=755"
		if dir == "/dev/shm" {
			mode = "mode=1777"
		}
		check(syscall.Mount("none", dir, "tmpfs", 0, mode))
	}
	const cgroups = "/sys/fs/cgroup"
	if s.Cgroup2 != "" {
		check(syscall.Unshare(syscall.CLONE_NEWCGROUP))
		check(syscall.Mount("none", cgroups, "tmpfs", 0, "mode=755"))
	}
	if s.Cgroup2 == "rw" || s.Cgroup2 == "ro" {
		check(syscall.Mount("none", cgroups, "cgroup2", syscall.MS_NOSUID|syscall.MS_NODEV|syscall.MS_NOEXEC, ""))
	}
	if s.Cgroup2 == "ro" {
		check(syscall.Mount("", cgroups, "", syscall.MS_REMOUNT|syscall.MS_BIND|syscall.MS_RDONLY|syscall.MS_NOSUID|syscall.MS_NODEV|syscall.MS_NOEXEC, ""))
	}
	if s.ReadOnly {
		check(syscall.Mount("", "/", "", syscall.MS_REMOUNT|syscall.MS_BIND|syscall.MS_RDONLY, ""))
	}
}

// dispositions sets every signal's: what this run has inherited itself, as under
// nohup(1), is none of the stage's.
func (s stage) dispositions() {
	for i := range 64 {
		if n := syscall.Signal(i + 1); n == syscall.SIGKILL || n == syscall.SIGSTOP {
			continue
		}
		act := [4]uint64{uint64(s.Ignore >> i & 1)} // SIG_IGN is 1, SIG_DFL 0
		_, _, e := syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(i+1), uintptr(unsafe.Pointer(&act)), 0, 8, 0, 0)
		if e != 0 {
			check(e)
		}
	}
}
