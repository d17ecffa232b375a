package pidfd

import (
	"bytes"
	"errors"
	"strconv"
	"syscall"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys"
)

// Here is where pids and start ticks have their meaning: this boot, our PID
// namespace and time namespace.
type Here = sys.Here

// ReadHere reads it. It does not change while the process lives, unless that
// enters another namespace.
func ReadHere() Here { return sys.ReadHere() }

// Identity reads what the process can be known again by. Each field is set only
// where it can be trusted: the start ticks and, before Linux 6.13, the cgroup
// only when /proc shows our own PID namespace and the process was still there
// after the reading.
func (h *Handle) Identity() (api.Identity, error) { return h.IdentityIn(ReadHere()) }

// IdentityIn is Identity for callers that have read Here already, which is
// three quarters of the cost.
func (h *Handle) IdentityIn(here Here) (api.Identity, error) {
	s, err := new(Locator).Look(h, here)
	return s.Identity, err
}

// Seen is what was read of a process at one time.
type Seen struct {
	api.Identity
	// Of /proc/pid/stat, or zero. Parent is also known from PIDFD_GET_INFO
	// (Linux 6.13).
	Comm                   string
	State                  byte
	Parent, Group, Session int
	Threads                int
}

// Look reads what the process can be known by, and whose child it is. What
// cannot be read, or trusted, is zero; of a process that has been reaped that
// is all but its inode.
func (l *Locator) Look(h *Handle, here Here) (Seen, error) {
	s := Seen{Identity: api.Identity{PID: h.pid, Boot: here.Boot, PIDNS: here.PIDNS, TimeNS: here.TimeNS}}
	if n := h.number(); n != 0 {
		s.PID = n
	}
	var in sys.PidfdInfo
	err := h.use(func(fd int) error {
		s.Ino, _ = sys.PidfsIno(fd)
		in, _ = sys.PidfdGetInfo(fd, sys.PidfdInfoPID|sys.PidfdInfoCgroupID)
		return nil
	})
	if err != nil {
		return Seen{}, err
	}
	if here.Proc {
		h.readStat(&s)
	}
	if in.Mask&sys.PidfdInfoPID != 0 && s.Parent == 0 {
		s.Parent = in.PPID
	}
	if s.CgroupID = in.CgroupID; in.Mask&sys.PidfdInfoCgroupID == 0 {
		s.CgroupID, _ = l.CgroupID(h)
	}
	return s, nil
}

// readStat reads /proc/pid/stat, and takes it only if the process was still
// there afterwards.
func (h *Handle) readStat(s *Seen) {
	n := h.number()
	b, err := sys.ProcFile(n, "stat")
	if n == 0 || err != nil || h.held() != nil {
		return
	}
	st, err := sys.ParseStat(b)
	if err != nil || st.PID != n {
		return
	}
	s.StartTicks, s.Comm, s.State = st.StartTicks, st.Comm, st.State
	s.Parent, s.Group, s.Session, s.Threads = st.PPID, st.Group, st.Session, st.Threads
}

// errNoNumber tells that the process has no number where we are.
var errNoNumber = errors.New("no pid here: reaped, or in another PID namespace")

// held tells whether the process still has its number, so that what was read
// from /proc under that number just before was its own. A zombie still has it,
// and EPERM means that it is there.
func (h *Handle) held() error {
	err := h.use(func(fd int) error { return sys.PidfdSendSignal(fd, 0, 0) })
	if errors.Is(err, syscall.EPERM) {
		return nil
	}
	return gone(err)
}

// readNumber asks the kernel for the number behind the descriptor. 0: it has
// none in our PID namespace, it has been reaped, or it cannot be told.
func (h *Handle) readNumber() int {
	n := 0
	_ = h.use(func(fd int) error {
		in, err := sys.PidfdGetInfo(fd, sys.PidfdInfoPID)
		switch {
		case err == nil && in.Mask&sys.PidfdInfoPID != 0:
			n = max(in.TGID, 0)
		case errors.Is(err, syscall.ESRCH):
		default:
			n = numberFromProc(fd)
		}
		return nil
	})
	return n
}

// numberFromProc reads the "Pid:" line of the pidfd's fdinfo (Linux 5.2), which
// means something to us only when /proc shows our own PID namespace.
func numberFromProc(fd int) int {
	b, err := sys.ProcFile(0, "fdinfo/"+strconv.Itoa(fd))
	if err != nil || !ReadHere().Proc {
		return 0
	}
	for line := range bytes.Lines(b) {
		if value, ok := bytes.CutPrefix(line, []byte("Pid:")); ok {
			n, err := strconv.Atoi(string(bytes.TrimSpace(value)))
			if err == nil && n > 0 {
				return n
			}
		}
	}
	return 0
}
