package containers

import (
	"slices"
	"syscall"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// dockerSeccomp has the shape of Docker's default profile for a process without
// CAP_SYS_ADMIN: what its documentation names as blocked is refused, namespaces
// cannot be made, and clone3, whose flags no filter can see, does not exist.
func dockerSeccomp() *specs.LinuxSeccomp {
	s := &specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{
		{Action: specs.ActErrno, ErrnoRet: errno(syscall.EPERM), Names: []string{
			"acct", "add_key", "bpf", "clock_adjtime", "clock_settime", "create_module", "delete_module", "finit_module",
			"get_kernel_syms", "get_mempolicy", "init_module", "ioperm", "iopl", "kcmp", "kexec_file_load", "kexec_load",
			"keyctl", "lookup_dcookie", "mbind", "mount", "move_pages", "nfsservctl", "open_by_handle_at",
			"perf_event_open", "pivot_root", "quotactl", "reboot", "request_key", "set_mempolicy",
			"setns", "settimeofday", "stime", "swapon", "swapoff", "sysfs", "_sysctl", "umount", "umount2", "unshare",
			"uselib", "userfaultfd", "ustat", "vm86", "vm86old",
		}},
		{Action: specs.ActErrno, ErrnoRet: errno(syscall.ENOSYS), Names: []string{"clone3"}},
	}}
	for _, flag := range []uint64{syscall.CLONE_NEWNS, syscall.CLONE_NEWUTS, syscall.CLONE_NEWIPC, syscall.CLONE_NEWUSER,
		syscall.CLONE_NEWPID, syscall.CLONE_NEWNET, syscall.CLONE_NEWCGROUP} {
		s.Syscalls = append(s.Syscalls, specs.LinuxSyscall{Action: specs.ActErrno, ErrnoRet: errno(syscall.EPERM), Names: []string{"clone"},
			Args: []specs.LinuxSeccompArg{{Index: 0, Value: flag, ValueTwo: flag, Op: specs.OpMaskedEqual}}})
	}
	return s
}

// refuse adds calls that fail with an error to what the container is refused.
func (b *bundle) refuse(e syscall.Errno, calls ...string) {
	s := b.Linux.Seccomp
	if s == nil {
		s = &specs.LinuxSeccomp{DefaultAction: specs.ActAllow}
		b.Linux.Seccomp = s
	}
	for i := range s.Syscalls { // the first rule of a call is the one that counts, for one runtime; for the other all must agree
		s.Syscalls[i].Names = slices.DeleteFunc(s.Syscalls[i].Names, func(n string) bool { return slices.Contains(calls, n) })
	}
	s.Syscalls = slices.DeleteFunc(s.Syscalls, func(c specs.LinuxSyscall) bool { return len(c.Names) == 0 })
	s.Syscalls = append(s.Syscalls, specs.LinuxSyscall{Action: specs.ActErrno, ErrnoRet: errno(e), Names: calls})
}

func errno(e syscall.Errno) *uint {
	n := uint(e)
	return &n
}

// refusePrctl refuses what an init would like to do by prctl(2): be a subreaper,
// and have a signal when its parent ends.
func (b *bundle) refusePrctl() {
	for _, option := range []uint64{1, 36} { // PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER
		b.Linux.Seccomp.Syscalls = append(b.Linux.Seccomp.Syscalls, specs.LinuxSyscall{Action: specs.ActErrno, ErrnoRet: errno(syscall.EPERM),
			Names: []string{"prctl"}, Args: []specs.LinuxSeccompArg{{Index: 0, Value: option, Op: specs.OpEqualTo}}})
	}
}
