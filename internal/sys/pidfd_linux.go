package sys

import (
	"math"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Flags of pidfd_open(2) and pidfd_send_signal(2), and the mask of
// PIDFD_GET_INFO.
const (
	PidfdThread             = unix.PIDFD_THREAD                // Linux 6.9
	PidfdSignalThreadGroup  = unix.PIDFD_SIGNAL_THREAD_GROUP   // Linux 6.9
	PidfdSignalProcessGroup = unix.PIDFD_SIGNAL_PROCESS_GROUP  // Linux 6.9
	PidfdInfoPID            = uint64(unix.PIDFD_INFO_PID)      // Linux 6.13
	PidfdInfoCreds          = uint64(unix.PIDFD_INFO_CREDS)    // Linux 6.13
	PidfdInfoCgroupID       = uint64(unix.PIDFD_INFO_CGROUPID) // Linux 6.13
	PidfdInfoExit           = uint64(unix.PIDFD_INFO_EXIT)     // Linux 6.15
)

// PidfdInfo is what PIDFD_GET_INFO tells. A field is valid where Mask has its
// bit. Pid is -1 when the process has been reaped.
type PidfdInfo struct {
	Mask      uint64
	CgroupID  uint64
	PID, TGID int
	PPID      int
	RUID      uint32
	EUID      uint32
	SUID      uint32
	FSUID     uint32
	ExitCode  int32 // wait status, as waitpid(2) gives it
}

// PidfdOpen opens a pidfd, close-on-exec. ESRCH: no such process. A number that
// is a thread's gives EINVAL, from 6.18 at the latest ENOENT. One of more than 32
// bits is nobody's: the kernel would take its lower half for the number.
func PidfdOpen(pid, flags int) (int, error) {
	if pid > math.MaxInt32 {
		return -1, os.NewSyscallError("pidfd_open", unix.ESRCH)
	}
	fd, err := unix.PidfdOpen(pid, flags)
	return fd, os.NewSyscallError("pidfd_open", err)
}

// PidfdSendSignal signals through a pidfd. EINVAL: an unknown flag.
func PidfdSendSignal(fd int, sig syscall.Signal, flags int) error {
	return os.NewSyscallError("pidfd_send_signal", unix.PidfdSendSignal(fd, sig, nil, flags))
}

// PidfdGetInfo asks about the process behind a pidfd. It needs neither /proc
// nor privilege. ENOTTY (EINVAL, on some): the kernel is older than 6.13.
// ESRCH: reaped, and mask did not ask for the exit (6.15).
func PidfdGetInfo(fd int, mask uint64) (PidfdInfo, error) {
	in := unix.PidfdInfo{Mask: mask}
	if err := ignoringEINTR(func() error { return unix.IoctlPidfdInfo(fd, &in) }); err != nil {
		return PidfdInfo{}, os.NewSyscallError("pidfd_get_info", err)
	}
	return PidfdInfo{
		Mask: in.Mask, CgroupID: in.Cgroupid,
		PID: int(int32(in.Pid)), TGID: int(int32(in.Tgid)), PPID: int(int32(in.Ppid)),
		RUID: in.Ruid, EUID: in.Euid, SUID: in.Suid, FSUID: in.Fsuid, ExitCode: in.Exit_code,
	}, nil
}

// PidfsIno returns the inode number of a pidfd where it identifies the process:
// 64 bits, unique for the boot, in every namespace (Linux 6.9, pidfs). Before
// that all pidfds share one inode, and ok is false.
func PidfsIno(fd int) (ino uint64, ok bool) {
	var sfs unix.Statfs_t
	if unix.Fstatfs(fd, &sfs) != nil || int64(sfs.Type) != unix.PID_FS_MAGIC {
		return 0, false
	}
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return 0, false
	}
	return st.Ino, st.Ino != 0
}

// PidfdExited tells whether every thread of the process has ended: the pidfd is
// readable then, and stays so after the process was reaped.
func PidfdExited(fd int) (bool, error) {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	var n int
	err := ignoringEINTR(func() (err error) { n, err = unix.Poll(p, 0); return })
	if err == nil && n > 0 && p[0].Revents&unix.POLLNVAL != 0 {
		err = unix.EBADF
	}
	return n > 0 && p[0].Revents&(unix.POLLIN|unix.POLLHUP) != 0, os.NewSyscallError("poll", err)
}

// ignoringEINTR calls fn again for as long as a signal interrupts it.
func ignoringEINTR(fn func() error) error {
	for {
		if err := fn(); err != unix.EINTR {
			return err
		}
	}
}
