package systest

import (
	"syscall"

	"github.com/elastic/go-seccomp-bpf"
)

// The flags and requests that LikeOld refuses.
const (
	pidfdGetInfo = 0xc058ff0b
	pidfdThread  = 0x80
)

// LikeOld makes this process, and what it starts, see a kernel of the 5.4 to
// 6.8 years as far as pidfds go: no PIDFD_GET_INFO (ENOTTY), no PIDFD_THREAD and
// no flags of pidfd_send_signal (EINVAL) and, unless fstatfs is wanted, no pidfs.
// The filter is the kernel's own (seccomp(2)); it cannot be taken back, so it
// is for helpers.
func LikeOld(fstatfs bool) error {
	refuse := func(errno syscall.Errno, name string, argument uint32, op seccomp.Operation, value uint64) seccomp.SyscallGroup {
		return seccomp.SyscallGroup{
			Action: seccomp.ActionErrno | seccomp.Action(errno),
			NamesWithCondtions: []seccomp.NameWithConditions{{
				Name:       name,
				Conditions: []seccomp.Condition{{Argument: argument, Operation: op, Value: value}},
			}},
		}
	}
	groups := []seccomp.SyscallGroup{
		refuse(syscall.ENOTTY, "ioctl", 1, seccomp.Equal, pidfdGetInfo),
		refuse(syscall.EINVAL, "pidfd_open", 1, seccomp.BitsSet, pidfdThread),
		refuse(syscall.EINVAL, "pidfd_send_signal", 3, seccomp.NotEqual, 0),
	}
	if !fstatfs {
		groups = append(groups, seccomp.SyscallGroup{
			Action: seccomp.ActionErrno | seccomp.Action(syscall.ENOSYS), Names: []string{"fstatfs"},
		})
	}
	return seccomp.LoadFilter(seccomp.Filter{
		NoNewPrivs: true,
		Flag:       seccomp.FilterFlagTSync,
		Policy:     seccomp.Policy{DefaultAction: seccomp.ActionAllow, Syscalls: groups},
	})
}
