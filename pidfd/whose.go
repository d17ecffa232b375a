package pidfd

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys"
)

// ErrNotPidfd tells that a descriptor is none of a process.
var ErrNotPidfd = errors.New("not a pidfd")

// ThreadError tells that a number, or a pidfd (PIDFD_THREAD, Linux 6.9), is that of
// a thread which is not its process's first.
type ThreadError struct{ TID, PID int }

func (e *ThreadError) Error() string {
	return fmt.Sprintf("%d is a thread of process %d", e.TID, e.PID)
}

// FromStranger opens the process of a pidfd that somebody else has sent, who may
// have sent anything: a descriptor whose file system would not answer is told
// from a pidfd before anything is asked of it. It stays the sender's; the handle
// is opened anew, by the number that the kernel has for it, and seen to be the
// same process. ErrGone: it has been reaped.
func FromStranger(fd int) (*Handle, error) {
	err := sys.PidfdSendSignal(fd, 0, 0) // looks at nothing but whether it is one
	switch {
	case errors.Is(err, syscall.ESRCH):
		return nil, ErrGone
	case err != nil && !errors.Is(err, syscall.EPERM):
		return nil, fmt.Errorf("%w (%w)", ErrNotPidfd, err)
	}
	n, err := numberOf(fd)
	if err != nil {
		return nil, err
	}
	h, err := Open(n)
	if err != nil {
		return nil, err
	}
	theirs, known := sys.PidfsIno(fd)
	err = h.use(func(own int) error {
		if ours, ok := sys.PidfsIno(own); known && ok && ours != theirs {
			return ErrGone
		}
		return nil
	})
	if err == nil && errors.Is(sys.PidfdSendSignal(fd, 0, 0), syscall.ESRCH) {
		err = ErrGone // so the number may have been another's by then
	}
	if err != nil {
		_ = h.Close()
		return nil, err
	}
	return h, nil
}

// numberOf is the number of the process of a pidfd that need not be ours.
func numberOf(fd int) (int, error) {
	in, err := sys.PidfdGetInfo(fd, sys.PidfdInfoPID)
	switch {
	case err == nil && in.Mask&sys.PidfdInfoPID != 0 && in.TGID > 0 && in.PID != in.TGID:
		return 0, &ThreadError{TID: in.PID, PID: in.TGID}
	case err == nil && in.Mask&sys.PidfdInfoPID != 0 && in.TGID > 0:
		return in.TGID, nil
	case err == nil, errors.Is(err, syscall.ESRCH):
		return 0, errNoNumber
	}
	if n := numberFromProc(fd); n > 0 { // a thread's is refused when it is opened
		return n, nil
	}
	return 0, errNoNumber
}

// OpenNumber is Open, and says of a thread's number what it is.
func OpenNumber(pid int) (*Handle, error) {
	h, err := Open(pid)
	if !errors.Is(err, ErrGone) || !ReadHere().Proc {
		return h, err
	}
	if b, serr := sys.ProcFile(pid, "status"); serr == nil {
		if s, perr := sys.ParseStatus(b); perr == nil && s.TGID != pid {
			return nil, &ThreadError{TID: pid, PID: s.TGID}
		}
	}
	return nil, err
}

// UIDs are the process's real, effective, saved and file system user ids, from
// PIDFD_GET_INFO (Linux 6.13), or else from /proc.
func (h *Handle) UIDs() (ids [4]uint32, err error) {
	var in sys.PidfdInfo
	err = h.use(func(fd int) (err error) { in, err = sys.PidfdGetInfo(fd, sys.PidfdInfoCreds); return })
	if err == nil && in.Mask&sys.PidfdInfoCreds != 0 {
		return [4]uint32{in.RUID, in.EUID, in.SUID, in.FSUID}, nil
	}
	b, err := h.ownFile("status")
	if err != nil {
		return ids, fmt.Errorf("read user ids of process %d: %w", h.pid, err)
	}
	_, rest, ok := bytes.Cut(b, []byte("\nUid:"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	f := bytes.Fields(line)
	if !ok || len(f) != len(ids) {
		return ids, fmt.Errorf("read user ids of process %d: %w", h.pid, sys.ErrParse)
	}
	for i, w := range f {
		n, err := strconv.ParseUint(string(w), 10, 32)
		if err != nil {
			return ids, fmt.Errorf("read user ids of process %d: %w", h.pid, sys.ErrParse)
		}
		ids[i] = uint32(n)
	}
	return ids, nil
}

// KernelThread tells whether it is one of the kernel's own: flag PF_KTHREAD of
// field 9 of /proc/pid/stat.
func (h *Handle) KernelThread() (bool, error) { return h.flagged(0x00200000) }

// Exiting tells whether its main thread is on its way out, flag PF_EXITING of field 9
// of /proc/pid/stat: it does nothing more, and the kernel moves it to no other cgroup,
// without saying so. On a busy machine it may be long in coming to its end.
func (h *Handle) Exiting() (bool, error) { return h.flagged(0x00000004) }

func (h *Handle) flagged(flag uint64) (bool, error) {
	b, err := h.ownFile("stat")
	if err != nil {
		return false, fmt.Errorf("read flags of process %d: %w", h.pid, err)
	}
	const first, flags = 3, 9
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) <= flags-first {
		return false, fmt.Errorf("read flags of process %d: %w", h.pid, sys.ErrParse)
	}
	n, err := strconv.ParseUint(string(f[flags-first]), 10, 64)
	return n&flag != 0, err
}

// Lives tells by the handle whether the process can still act: not one that is a
// zombie.
func (h *Handle) Lives() (bool, error) {
	over, err := h.Exited()
	return err == nil && !over, err
}

// Parent opens the process's parent. Nil: it has none that is seen here, or init
// has it. The process was its child when both were open.
func (h *Handle) Parent() (*Handle, error) {
	n, err := h.parentNumber()
	if err != nil || n <= 1 {
		return nil, err
	}
	p, err := Open(n)
	if err != nil {
		return nil, err
	}
	again, err := h.parentNumber()
	if err == nil && again != n {
		err = ErrGone // of the parent: somebody else has it now
	}
	if err != nil {
		_ = p.Close()
		return nil, err
	}
	return p, nil
}

func (h *Handle) parentNumber() (int, error) {
	var in sys.PidfdInfo
	err := h.use(func(fd int) (err error) { in, err = sys.PidfdGetInfo(fd, sys.PidfdInfoPID); return })
	switch {
	case err == nil && in.Mask&sys.PidfdInfoPID != 0:
		return in.PPID, nil
	case errors.Is(err, syscall.ESRCH):
		return 0, ErrGone
	}
	b, err := h.ownFile("stat")
	if err != nil {
		return 0, err
	}
	s, err := sys.ParseStat(b)
	return s.PPID, err
}

// ownFile reads a file of /proc/pid, if it was the process's.
func (h *Handle) ownFile(name string) ([]byte, error) {
	n := h.number()
	switch {
	case n == 0:
		return nil, errNoNumber
	case !ReadHere().Proc:
		return nil, errNoProc
	}
	b, err := sys.ProcFile(n, name)
	if e := h.held(); e != nil {
		return nil, e
	}
	return b, err
}

// Children lists the numbers of the process's children, those of all its threads
// (/proc/pid/task/tid/children, or where the kernel has no such file, every
// process that says so). A child that comes, goes or changes its parent meanwhile
// may be missing.
func (h *Handle) Children() ([]int, error) {
	n := h.number()
	switch {
	case n == 0:
		return nil, errNoNumber
	case !ReadHere().Proc:
		return nil, errNoProc
	}
	dir := "/proc/" + strconv.Itoa(n) + "/task"
	tasks, err := os.ReadDir(dir)
	var out []int
	for _, e := range tasks {
		b, rerr := os.ReadFile(dir + "/" + e.Name() + "/children")
		if errors.Is(rerr, os.ErrNotExist) && !hasChildren() {
			return childrenOf(n)
		}
		if rerr != nil {
			continue // the thread has ended
		}
		pids, perr := sys.ParseNumbers(b)
		if perr != nil {
			return nil, fmt.Errorf("list children of process %d: %w", n, perr)
		}
		out = append(out, pids...)
	}
	if e := h.held(); e != nil {
		return nil, e
	}
	return out, err
}

func hasChildren() bool {
	self := strconv.Itoa(os.Getpid())
	_, err := os.Stat("/proc/self/task/" + self + "/children")
	return err == nil
}

// childrenOf looks at every process.
func childrenOf(pid int) ([]int, error) {
	all, err := os.ReadDir("/proc")
	var out []int
	for _, e := range all {
		n, nerr := strconv.Atoi(e.Name())
		if nerr != nil {
			continue
		}
		if b, rerr := sys.ProcFile(n, "stat"); rerr == nil {
			if s, perr := sys.ParseStat(b); perr == nil && s.PPID == pid {
				out = append(out, n)
			}
		}
	}
	return out, err
}

// Claim compares what somebody says of the process with what it is: nil means
// that it is that one. A zero field says nothing. The pidfs inode, where both have
// it, settles it, as it does for Compare; a cgroup may have changed since.
func Claim(said, is api.Identity) error {
	if said.Boot != "" && said.Boot != is.Boot {
		return errors.New("it is of another boot")
	}
	if said.Ino != 0 && said.Ino == is.Ino {
		return nil
	}
	for _, c := range []struct {
		what     string
		said, is uint64
	}{
		{"pidfs inode", said.Ino, is.Ino}, {"PID namespace", said.PIDNS, is.PIDNS}, {"pid", uint64(max(said.PID, 0)), uint64(is.PID)},
		{"time namespace", said.TimeNS, is.TimeNS}, {"start tick", said.StartTicks, is.StartTicks},
	} {
		if c.said != 0 && c.said != c.is {
			return fmt.Errorf("its %s is %d, not %d", c.what, c.is, c.said)
		}
	}
	return nil
}
