package sys

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// PlainFile makes an *os.File of a descriptor that somebody else sent, and
// takes the descriptor over, also when it fails. Unlike os.NewFile it never
// gives the file to the runtime's poller: epoll_ctl(2) asks the file's driver,
// and a sender who serves the file himself (FUSE) could leave it, and with it
// every other connection, waiting.
func PlainFile(fd int, name string) (*os.File, error) {
	defer unix.Close(fd)
	own, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "/dev/null", Err: err}
	}
	f := os.NewFile(uintptr(own), name) // blocking, so not polled
	if err := ignoringEINTR(func() error { return unix.Dup3(fd, own, unix.O_CLOEXEC) }); err != nil {
		f.Close()
		return nil, os.NewSyscallError("dup3", err)
	}
	return f, nil
}

// WithUmask runs f under a umask that no other thread sees: the thread stops
// sharing its file-system attributes (unshare(2), CLONE_FS) and dies when f
// has returned. Where that is refused (some container profiles) the umask of
// the whole process is set while f runs.
func WithUmask(mask int, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // not unlocked: the thread ends with the goroutine
		if unix.Unshare(unix.CLONE_FS) == nil {
			unix.Umask(mask)
			done <- f()
			return
		}
		defer runtime.UnlockOSThread()
		was := unix.Umask(mask)
		err := f()
		unix.Umask(was)
		done <- err
	}()
	return <-done
}

// LockFile opens path, which it makes with mode 0600 and never follows through
// a link, and takes an exclusive lock on it, see flock(2). Closing it unlocks.
func LockFile(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	if err := ignoringEINTR(func() error { return unix.Flock(fd, unix.LOCK_EX) }); err != nil {
		unix.Close(fd)
		return nil, &os.PathError{Op: "flock", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}
