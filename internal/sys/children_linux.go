package sys

import (
	"errors"
	"math"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

var errNotInit = errors.New("not init of a PID namespace of our own")

// SignalChild signals a child of ours that has not been reaped, by its number:
// nobody else has it as long as that is so. It is for parents that know that; see
// package pidfd for everybody else.
func SignalChild(pid int, sig syscall.Signal) error {
	if pid <= 1 || pid > math.MaxInt32 { // kill(2) sees the lower half
		return os.NewSyscallError("kill", syscall.EINVAL)
	}
	return os.NewSyscallError("kill", unix.Kill(pid, sig))
}

// SignalNamespace signals everybody in the PID namespace that we are init of, but
// us (kill(2), pid -1). It refuses where we are not.
func SignalNamespace(sig syscall.Signal) error {
	if os.Getpid() != 1 {
		return errNotInit
	}
	return os.NewSyscallError("kill", unix.Kill(-1, sig))
}

// EnterPIDNamespace gives init of a fresh PID namespace, in a mount namespace of
// its own, its /proc, and drops the ambient capabilities that it was given for that. What is mounted outside later still shows inside.
func EnterPIDNamespace() error {
	if os.Getpid() != 1 {
		return errNotInit
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return os.NewSyscallError("mount / as slave", err)
	}
	err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	if err != nil {
		return os.NewSyscallError("mount /proc", err)
	}
	// What a user's namespace gave for that, children must not inherit.
	err = unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
	if os.Geteuid() == 0 || errors.Is(err, unix.EINVAL) {
		return nil
	}
	return os.NewSyscallError("prctl", err)
}
