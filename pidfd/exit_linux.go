package pidfd

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"pinfold.dev/internal/sys"
)

// FromPeer makes a handle from a pidfd that names a process of which only that
// is known, such as SO_PEERPIDFD's. It owns the descriptor from then on, also
// after an error. The process must have a number here and be alive.
func FromPeer(fd int) (*Handle, error) {
	h := FromFD(fd, 0)
	h.pid = h.number()
	if h.pid == 0 {
		_ = h.Close()
		return nil, fmt.Errorf("identify the peer: %w", errNoNumber)
	}
	return h, nil
}

// errNotExited tells that a process has no exit status yet.
var errNotExited = errors.New("it has not exited")

// ExitStatus tells how a process ended that need not be our child. Before it is
// reaped that is in field 52 of /proc/pid/stat, for those who may see it;
// afterwards the kernel still tells from Linux 6.15 on (PIDFD_INFO_EXIT). An
// error means that nobody can tell.
func (h *Handle) ExitStatus() (syscall.WaitStatus, error) {
	exited, err := h.Exited()
	if err != nil {
		return 0, err
	}
	if !exited {
		return 0, errNotExited
	}
	if st, err := h.zombieStatus(); err == nil {
		return st, nil
	}
	var in sys.PidfdInfo
	err = h.use(func(fd int) (err error) { in, err = sys.PidfdGetInfo(fd, sys.PidfdInfoExit); return })
	switch {
	case err != nil:
		return 0, fmt.Errorf("read exit status of process %d, which was reaped by its parent: %w", h.pid, err)
	case in.Mask&sys.PidfdInfoExit == 0:
		return 0, fmt.Errorf("read exit status of process %d: %w", h.pid, errors.ErrUnsupported)
	}
	return syscall.WaitStatus(in.ExitCode), nil
}

// zombieStatus reads it from /proc. For those who may not see it, the field
// reads 0; whether we may shows in what the kernel says to readlink(2) of exe,
// which needs the same permission, and which a zombie does not have.
func (h *Handle) zombieStatus() (syscall.WaitStatus, error) {
	n := h.number()
	if n == 0 || !sys.ReadHere().Proc {
		return 0, errNoNumber
	}
	b, err := sys.ProcFile(n, "stat")
	if err != nil {
		return 0, err
	}
	if _, err := os.Readlink("/proc/" + strconv.Itoa(n) + "/exe"); !errors.Is(err, syscall.ENOENT) {
		return 0, fmt.Errorf("see exit status: %w", errors.Join(os.ErrPermission, err))
	}
	if err := h.held(); err != nil { // the number was its own all along
		return 0, err
	}
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	const first, exitCode = 3, 52
	if len(f) <= exitCode-first || string(f[0]) != "Z" {
		return 0, sys.ErrParse
	}
	code, err := strconv.ParseUint(string(f[exitCode-first]), 10, 32)
	return syscall.WaitStatus(code), err
}
