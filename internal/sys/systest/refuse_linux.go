package systest

import (
	"syscall"

	"github.com/elastic/go-seccomp-bpf"
)

// Refuse has the kernel answer these system calls with errno from now on, to this
// process and what it starts: a filter (seccomp(2)) that cannot be taken back, so
// it is for helpers.
func Refuse(errno syscall.Errno, names ...string) error {
	return seccomp.LoadFilter(seccomp.Filter{
		NoNewPrivs: true,
		Flag:       seccomp.FilterFlagTSync,
		Policy: seccomp.Policy{
			DefaultAction: seccomp.ActionAllow,
			Syscalls:      []seccomp.SyscallGroup{{Action: seccomp.ActionErrno | seccomp.Action(errno), Names: names}},
		},
	})
}
