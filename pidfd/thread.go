package pidfd

import (
	"errors"
	"fmt"
	"strconv"
	"syscall"

	"pinfold.dev/internal/sys"
)

// OpenThread opens a handle on the process that thread tid belongs to, and
// returns the kernfs id of the cgroup that the thread itself is in. It is for
// processes that no list of processes shows: one whose main thread has exited
// and whose other threads were moved to another cgroup. ErrGone: there is no
// such thread.
func (l *Locator) OpenThread(tid int) (h *Handle, cgroup uint64, err error) {
	if tid <= 1 {
		return nil, 0, RefusePID(tid, 0)
	}
	h, cgroup, err = openThreadInfo(tid)
	if errors.Is(err, errors.ErrUnsupported) {
		h, cgroup, err = l.openThreadProc(tid)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("open process of thread %d: %w", tid, gone(err))
	}
	return h, cgroup, nil
}

// openThreadInfo asks a pidfd of the thread (6.9) with PIDFD_GET_INFO (6.13).
// It asks again after the process was opened: then the thread was still that
// process's, so the number that was opened meant it.
func openThreadInfo(tid int) (*Handle, uint64, error) {
	fd, err := sys.PidfdOpen(tid, sys.PidfdThread)
	if errors.Is(err, syscall.EINVAL) {
		return nil, 0, errors.ErrUnsupported
	}
	if err != nil {
		return nil, 0, err
	}
	defer sys.Close(fd)
	const want = sys.PidfdInfoPID | sys.PidfdInfoCgroupID
	in, err := sys.PidfdGetInfo(fd, want)
	if errors.Is(err, syscall.ESRCH) {
		return nil, 0, err
	}
	if err != nil || in.Mask&want != want {
		return nil, 0, errors.ErrUnsupported
	}
	h, err := Open(in.TGID)
	if err != nil {
		return nil, 0, err
	}
	again, err := sys.PidfdGetInfo(fd, want)
	if err == nil && again.TGID != in.TGID {
		err = ErrGone
	}
	if err == nil {
		err = h.held()
	}
	if err != nil {
		_ = h.Close()
		return nil, 0, err
	}
	return h, again.CgroupID, nil
}

// openThreadProc does the same with /proc/tid, whose open directory means one
// thread for good.
func (l *Locator) openThreadProc(tid int) (*Handle, uint64, error) {
	if !l.procIsOurs() {
		return nil, 0, errNoProc
	}
	dir, err := sys.Openat(sys.AtFDCWD, "/proc/"+strconv.Itoa(tid), sys.ODirectory)
	if err != nil {
		return nil, 0, absent(tid, err)
	}
	defer sys.Close(dir)
	tgid, err := threadGroup(dir)
	if err != nil {
		return nil, 0, err
	}
	h, err := Open(tgid)
	if err != nil {
		return nil, 0, err
	}
	again, err := threadGroup(dir)
	if err == nil && again != tgid {
		err = ErrGone
	}
	var cgroup uint64
	if err == nil {
		cgroup, err = l.CgroupIDAt(dir)
	}
	if err == nil {
		err = h.held()
	}
	if err != nil {
		_ = h.Close()
		return nil, 0, err
	}
	return h, cgroup, nil
}

// absent asks the kernel whether a number that /proc does not show is free: a
// hidden process is not gone.
func absent(pid int, err error) error {
	fd, e := sys.PidfdOpen(pid, 0)
	if e == nil {
		_ = sys.Close(fd)
	}
	if errors.Is(e, syscall.ESRCH) {
		return ErrGone
	}
	return err
}

// threadGroup reads the Tgid line of an open /proc/tid.
func threadGroup(dir int) (int, error) {
	b, err := sys.ReadFileAt(dir, "status")
	if err != nil {
		return 0, err
	}
	s, err := sys.ParseStatus(b)
	return s.TGID, err
}

// CgroupIDAt is the kernfs id of the cgroup that an open /proc/pid names.
func (l *Locator) CgroupIDAt(dir int) (uint64, error) {
	b, err := sys.ReadFileAt(dir, "cgroup")
	if err != nil {
		return 0, err
	}
	path, err := sys.ParseCgroup(b)
	if err != nil {
		return 0, err
	}
	return l.pathID(path)
}
