package sys

import (
	"encoding/hex"
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// ReadEntry reads a process's row of the kernel's table: sysctl kern.proc.pid.
// Its start is since the boot, which setting the clock leaves as it is.
// ErrNoEntry: there is no row; see TableWhole.
func ReadEntry(pid int) (ProcEntry, error) {
	for range 8 {
		before, err := unix.SysctlRaw("kern.boottime")
		if err != nil {
			return ProcEntry{}, os.NewSyscallError("sysctl kern.boottime", err)
		}
		b, err := unix.SysctlRaw("kern.proc.pid", pid)
		if errors.Is(err, syscall.ESRCH) {
			return ProcEntry{}, ErrNoEntry
		}
		if err != nil {
			return ProcEntry{}, os.NewSyscallError("sysctl kern.proc.pid", err)
		}
		after, err := unix.SysctlRaw("kern.boottime")
		if err != nil || string(before) != string(after) {
			continue // the clock was set in between
		}
		e, err := ParseFreeBSDKinfo(b)
		if err != nil {
			return ProcEntry{}, err
		}
		boot, err := ParseTimeval(after, 8)
		if err == nil {
			e.StartUS, err = SinceBoot(e.StartUS, boot)
		}
		return e, err
	}
	return ProcEntry{}, os.NewSyscallError("sysctl kern.boottime", syscall.EAGAIN)
}

// BootID is the random id of this boot (kern.boot_id, FreeBSD 13), or, where
// there is none, the time of the boot, which is another once the clock was set.
func BootID() string {
	if b, err := unix.SysctlRaw("kern.boot_id"); err == nil && len(b) == 16 {
		return hex.EncodeToString(b)
	}
	b, err := unix.SysctlRaw("kern.boottime")
	if err != nil || len(b) != 16 {
		return ""
	}
	return BootTimeID + hex.EncodeToString(b)
}

// TableWhole tells whether the kernel's table shows everybody, so that who is
// not in it is not there. In a jail it does not, and others' processes may be
// kept from who is not root (security.bsd.see_other_uids and its like,
// mac_seeotheruids(4)).
func TableWhole() bool {
	if n, err := unix.SysctlUint32("security.jail.jailed"); err != nil || n != 0 {
		return false
	}
	if os.Geteuid() == 0 {
		return true
	}
	for _, name := range []string{"security.bsd.see_other_uids", "security.bsd.see_other_gids"} {
		if n, err := unix.SysctlUint32(name); err != nil || n != 1 {
			return false
		}
	}
	n, err := unix.SysctlUint32("security.mac.seeotheruids.enabled")
	return errors.Is(err, syscall.ENOENT) || err == nil && n == 0
}
