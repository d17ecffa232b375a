package sys

import (
	"bytes"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// ProcFile reads /proc/pid/name, or /proc/self/name for pid 0.
func ProcFile(pid int, name string) ([]byte, error) {
	who := "self"
	if pid != 0 {
		who = strconv.Itoa(pid)
	}
	return ReadFileAt(unix.AT_FDCWD, "/proc/"+who+"/"+name)
}

// OwnCgroup is our own cgroup: the path on the 0:: line.
func OwnCgroup() (string, error) {
	b, err := ProcFile(0, "cgroup")
	if err != nil {
		return "", err
	}
	return ParseCgroup(b)
}

// FindCgroup2 finds the mount of cgroup v2 that shows our own cgroup best, and
// makes sure that it is what can be seen at its path. Unified is false on
// hybrid hosts.
func FindCgroup2() (m MountEntry, unified bool, err error) {
	b, err := ProcFile(0, "mountinfo")
	if err != nil {
		return m, false, err
	}
	mounts, err := ParseMountinfo(b)
	if err != nil {
		return m, false, err
	}
	own, err := OwnCgroup()
	if err != nil {
		return m, false, err
	}
	list, unified := Cgroup2Candidates(mounts, own)
	for _, m := range list {
		if visible(m) {
			return m, unified, nil
		}
	}
	return m, unified, ErrNoCgroup2
}

// visible tells whether the mount is what its path leads to.
func visible(m MountEntry) bool {
	var sfs unix.Statfs_t
	var st unix.Stat_t
	return unix.Statfs(m.Path, &sfs) == nil && int64(sfs.Type) == Cgroup2Magic &&
		unix.Stat(m.Path, &st) == nil && st.Dev == unix.Mkdev(m.Major, m.Minor)
}

// Here is where the numbers that this process reads have their meaning.
type Here struct {
	Boot   string // boot id
	PIDNS  uint64 // inode of our PID namespace
	TimeNS uint64 // inode of our time namespace; 0 before Linux 5.6
	// Proc tells that /proc shows our own PID namespace, so that a pid means
	// the same in both.
	Proc bool
}

// ReadHere reads it. What cannot be read is left zero.
func ReadHere() Here {
	var h Here
	if b, err := ReadFileAt(unix.AT_FDCWD, "/proc/sys/kernel/random/boot_id"); err == nil {
		h.Boot = string(bytes.TrimSpace(b))
	}
	h.PIDNS, _ = InoAt(unix.AT_FDCWD, "/proc/self/ns/pid")
	h.TimeNS, _ = InoAt(unix.AT_FDCWD, "/proc/self/ns/time")
	b, err := ProcFile(0, "status")
	if err != nil {
		return h
	}
	s, err := ParseStatus(b)
	h.Proc = err == nil && len(s.NSPIDs) == 1 && s.NSPIDs[0] == os.Getpid()
	return h
}
