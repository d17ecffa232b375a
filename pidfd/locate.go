package pidfd

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"pinfold.dev/internal/sys"
)

// CgroupID is the kernfs id of the process's cgroup v2: from PIDFD_GET_INFO
// (Linux 6.13), or else by way of CgroupPath. ErrGone: it has been reaped.
func (h *Handle) CgroupID() (uint64, error) { return new(Locator).CgroupID(h) }

// CgroupPath is the path on the 0:: line of /proc/pid/cgroup: relative to our
// own cgroup namespace, ending in " (deleted)" for a cgroup that was removed.
// ErrGone: the process has been reaped.
func (h *Handle) CgroupPath() (string, error) { return new(Locator).CgroupPath(h) }

// Locator finds the cgroups of many processes. It reads only once where /proc
// and cgroup v2 are mounted, and only if the kernel is so old that it has to.
// The zero value is ready; it is safe for concurrent use.
type Locator struct {
	procOnce, mountOnce sync.Once
	proc                bool
	mount               sys.MountEntry
	mountErr            error
}

// CgroupID is Handle.CgroupID.
func (l *Locator) CgroupID(h *Handle) (uint64, error) {
	id, err := h.infoCgroupID()
	if !errors.Is(err, errors.ErrUnsupported) {
		return id, err
	}
	path, err := l.CgroupPath(h)
	if err != nil {
		return 0, err
	}
	id, err = l.pathID(path)
	if err != nil {
		return 0, fmt.Errorf("find cgroup %s of process %d: %w", path, h.pid, err)
	}
	return id, nil
}

// pathID is the kernfs id of a cgroup given as on a 0:: line.
func (l *Locator) pathID(path string) (uint64, error) {
	l.mountOnce.Do(func() { l.mount, _, l.mountErr = sys.FindCgroup2() })
	if l.mountErr != nil {
		return 0, l.mountErr
	}
	dir, err := l.mount.Dir(path)
	if err != nil {
		return 0, err
	}
	return sys.InoAt(sys.AtFDCWD, dir)
}

// procIsOurs tells whether a number in /proc means what it means to us.
func (l *Locator) procIsOurs() bool {
	l.procOnce.Do(func() { l.proc = sys.ReadHere().Proc })
	return l.proc
}

// CgroupPath is Handle.CgroupPath.
func (l *Locator) CgroupPath(h *Handle) (string, error) {
	path, err := l.cgroupPath(h)
	if err != nil {
		return "", fmt.Errorf("find cgroup of process %d: %w", h.pid, err)
	}
	return path, nil
}

func (l *Locator) cgroupPath(h *Handle) (string, error) {
	n := h.number()
	if n == 0 {
		return "", errNoNumber
	}
	if !l.procIsOurs() {
		return "", errNoProc
	}
	b, err := sys.ProcFile(n, "cgroup")
	if e := h.held(); e != nil {
		return "", e
	}
	if err != nil {
		return "", err
	}
	return sys.ParseCgroup(b)
}

// errNoProc tells that a number means something else in /proc than to us.
var errNoProc = errors.New("/proc is absent, or of another PID namespace")

// infoCgroupID asks PIDFD_GET_INFO; errors.ErrUnsupported: it is not there.
func (h *Handle) infoCgroupID() (uint64, error) {
	var in sys.PidfdInfo
	err := h.use(func(fd int) (err error) {
		in, err = sys.PidfdGetInfo(fd, sys.PidfdInfoCgroupID)
		return
	})
	switch {
	case err == nil && in.Mask&sys.PidfdInfoCgroupID != 0:
		return in.CgroupID, nil
	case errors.Is(err, syscall.ESRCH):
		if err = h.held(); err == nil || !errors.Is(err, ErrGone) {
			err = errNoNumber // ESRCH also for one in a PID namespace beside ours
		}
		return 0, fmt.Errorf("find cgroup of process %d: %w", h.pid, err)
	case errors.Is(err, os.ErrClosed):
		return 0, err
	}
	return 0, errors.ErrUnsupported
}
