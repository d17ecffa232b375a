package sys

import (
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// StopSelf stops this process as SIGTSTP stops one that does not catch it, and
// returns when it goes on. In an orphaned process group, which no shell watches,
// the kernel stops nobody for that (setpgid(2)), and it returns at once.
//
// Go's os/signal does not do: after Reset its handler stays and swallows the
// signal. So the disposition is the kernel's default for the moment, and the
// signal goes to this very thread, which is stopped before the call returns.
func StopSelf() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var def, was sigaction // a zero one is SIG_DFL
	if err := setDisposition(syscall.SIGTSTP, &def, &was); err != nil {
		return err
	}
	err := unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGTSTP)
	if serr := setDisposition(syscall.SIGTSTP, &was, nil); err == nil {
		return serr
	}
	return os.NewSyscallError("tgkill", err)
}

func setDisposition(sig syscall.Signal, to, was *sigaction) error {
	const setSize = 8 // of the kernel's sigset_t
	_, _, e := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(to)), uintptr(unsafe.Pointer(was)), setSize, 0, 0)
	if e != 0 {
		return os.NewSyscallError("rt_sigaction", e)
	}
	return nil
}
