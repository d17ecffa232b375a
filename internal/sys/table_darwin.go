package sys

import (
	"encoding/hex"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The layout of kinfo.go is that of the system's headers, or this does not
// compile.
const (
	_ = uint(unix.SizeofKinfoProc-648) * uint(648-unix.SizeofKinfoProc)
	_ = uint(unsafe.Offsetof(unix.KinfoProc{}.Eproc)-296) * uint(296-unsafe.Offsetof(unix.KinfoProc{}.Eproc))
	_ = uint(unsafe.Offsetof(unix.ExternProc{}.P_starttime)) * uint(0-unsafe.Offsetof(unix.ExternProc{}.P_starttime))
	_ = uint(unsafe.Offsetof(unix.ExternProc{}.P_stat)-36) * uint(36-unsafe.Offsetof(unix.ExternProc{}.P_stat))
	_ = uint(unsafe.Offsetof(unix.ExternProc{}.P_pid)-40) * uint(40-unsafe.Offsetof(unix.ExternProc{}.P_pid))
	_ = uint(unsafe.Offsetof(unix.Eproc{}.Ppid)-264) * uint(264-unsafe.Offsetof(unix.Eproc{}.Ppid))
	_ = uint(unsafe.Offsetof(unix.Eproc{}.Pgid)-268) * uint(268-unsafe.Offsetof(unix.Eproc{}.Pgid))
)

// ReadEntry reads a process's row of the kernel's table: sysctl kern.proc.pid,
// or where that is refused proc_info(2). Its start is what the clock said when it
// forked. ErrNoEntry: there is no row; see TableWhole.
func ReadEntry(pid int) (ProcEntry, error) {
	b, err := unix.SysctlRaw("kern.proc.pid", pid)
	if err == nil {
		return ParseDarwinKinfo(b)
	}
	e, err2 := readBSDInfo(pid)
	if err2 != nil {
		return ProcEntry{}, os.NewSyscallError("sysctl kern.proc.pid", err)
	}
	return e, nil
}

// readBSDInfo is proc_pidinfo(pid, PROC_PIDTBSDINFO, 1), zombies included, of
// libproc.h, without that library.
func readBSDInfo(pid int) (ProcEntry, error) {
	const callPidinfo, pidTBSDInfo = 2, 3 // sys/proc_info.h
	var b [136]byte
	//lint:ignore SA1019 x/sys has no wrapper of it, and libproc is not to be had without cgo
	n, _, errno := unix.Syscall6(unix.SYS_PROC_INFO, callPidinfo, uintptr(pid), pidTBSDInfo, 1,
		uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	if errno != 0 {
		return ProcEntry{}, os.NewSyscallError("proc_info", errno)
	}
	if n == 0 || n > uintptr(len(b)) {
		return ProcEntry{}, ErrParse
	}
	return ParseDarwinBSDInfo(b[:n])
}

// BootID is the UUID of this boot (kern.bootsessionuuid), or, where there is
// none, the time of the boot.
func BootID() string {
	if s, err := unix.Sysctl("kern.bootsessionuuid"); err == nil && len(s) == 36 {
		return s
	}
	b, err := unix.SysctlRaw("kern.boottime")
	if err != nil || len(b) != 16 {
		return ""
	}
	return BootTimeID + hex.EncodeToString(b)
}

// TableWhole tells whether the kernel's table shows everybody, so that who is
// not in it is not there.
func TableWhole() bool { return true }
