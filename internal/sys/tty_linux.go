package sys

import (
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// OpenTerminal makes a pseudo-terminal: its master, non-blocking, and its
// slave, both close-on-exec and nobody's controlling terminal. The slave comes
// from the master itself (TIOCGPTPEER, Linux 4.13), whatever is mounted on
// /dev/pts here; before that it is opened by its name.
func OpenTerminal() (master, slave int, err error) {
	const flags = unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC
	err = ignoringEINTR(func() (err error) {
		master, err = unix.Open("/dev/ptmx", flags|unix.O_NONBLOCK, 0)
		return
	})
	if err != nil {
		return -1, -1, os.NewSyscallError("open /dev/ptmx", err)
	}
	if err = unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err == nil {
		slave, err = openSlave(master, flags)
	}
	if err != nil {
		_ = unix.Close(master)
		return -1, -1, os.NewSyscallError("open terminal", err)
	}
	return master, slave, nil
}

func openSlave(master, flags int) (int, error) {
	r, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, uintptr(flags))
	if e == 0 {
		return int(r), nil
	}
	if e != unix.ENOTTY && e != unix.EINVAL {
		return -1, e
	}
	n, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
	if err != nil {
		return -1, err
	}
	fd := -1
	err = ignoringEINTR(func() (err error) {
		fd, err = unix.Open("/dev/pts/"+strconv.Itoa(n), flags, 0)
		return
	})
	return fd, err
}

// SetWinSize sets a terminal's size in characters. Its foreground group is told
// by SIGWINCH when it is another than before.
func SetWinSize(fd, rows, cols int) error {
	ws := unix.Winsize{Row: uint16(rows), Col: uint16(cols)}
	return os.NewSyscallError("ioctl TIOCSWINSZ", unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &ws))
}

// SignalForeground sends SIGINT, SIGQUIT or SIGTSTP to the foreground group of
// the terminal whose master fd is; the kernel refuses others with EINVAL.
func SignalForeground(fd int, sig syscall.Signal) error {
	return os.NewSyscallError("ioctl TIOCSIG", unix.IoctlSetInt(fd, unix.TIOCSIG, int(sig)))
}

// EOFCharacter is what, typed at the beginning of a line, ends a terminal's
// input (VEOF of termios(3)).
func EOFCharacter(fd int) (byte, error) {
	t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return 0, os.NewSyscallError("ioctl TCGETS", err)
	}
	return t.Cc[unix.VEOF], nil
}

// Foreground is the process group that a terminal listens to; the caller's
// controlling terminal only, else ENOTTY.
func Foreground(fd int) (int, error) {
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return n, os.NewSyscallError("ioctl TIOCGPGRP", err)
}
