package sys

import (
	"os"

	"golang.org/x/sys/unix"
)

// PidfdSignalThread is a flag of pidfd_send_signal(2).
const PidfdSignalThread = unix.PIDFD_SIGNAL_THREAD // Linux 6.9

// PidfsRoot stands for a file of pidfs in OpenHandle (Linux 6.17). EBADF before.
const PidfsRoot = unix.FD_PIDFS_ROOT

// HandleOf is the file handle of an open file, name_to_handle_at(2): its type and
// its bytes. EOPNOTSUPP: the file system has none; pidfs has since Linux 6.14.
func HandleOf(fd int) (kind int32, bytes []byte, err error) {
	h, _, err := unix.NameToHandleAt(fd, "", unix.AT_EMPTY_PATH)
	if err != nil {
		return 0, nil, os.NewSyscallError("name_to_handle_at", err)
	}
	return h.Type(), h.Bytes(), nil
}

// OpenHandle opens a file handle, close-on-exec, on the file system that mount
// is a file of, open_by_handle_at(2). ESTALE: there is no such file (any more).
func OpenHandle(mount int, kind int32, bytes []byte) (int, error) {
	fd, err := unix.OpenByHandleAt(mount, unix.NewFileHandle(kind, bytes), unix.O_CLOEXEC)
	return fd, os.NewSyscallError("open_by_handle_at", err)
}
