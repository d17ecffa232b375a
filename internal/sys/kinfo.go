package sys

import (
	"encoding/binary"
	"errors"
	"strings"
	"time"
)

// ProcEntry is what Pinfold uses of a row of a process table.
type ProcEntry struct {
	PID   int
	PPID  int
	Group int
	// StartUS is when it started, in microseconds since 1970 (macOS, ps) or since
	// the boot (FreeBSD).
	StartUS uint64
	Zombie  bool
}

// ErrNoEntry tells that a process table was read and has no such row.
var ErrNoEntry = errors.New("not in the process table")

// BootTimeID begins a boot id that is only the time of the boot: two that differ
// may be of one boot, in which the clock was set.
const BootTimeID = "boottime "

// The states of a process that has exited but was not waited for: p_stat and
// pbi_status of macOS, ki_stat of FreeBSD (sys/proc.h of either).
const sZomb = 5

// layout tells where the fields of a row are. Both systems have 64-bit
// pointers, little-endian, on amd64 and arm64 alike.
type layout struct {
	size                      int
	pid, ppid, group          int // int32
	state                     int // one byte
	startSec, startUsec, wide int // int64, and an integer of wide bytes
}

// macOS: struct kinfo_proc of sys/sysctl.h (648 bytes): an extern_proc of
// sys/proc.h, 296 bytes, then an eproc. internal/sys/table_darwin.go holds these
// numbers to x/sys's own declaration when it is compiled.
func darwinKinfo() layout {
	return layout{size: 648, pid: 40, ppid: 560, group: 564, state: 36, startSec: 0, startUsec: 8, wide: 4}
}

// macOS: struct proc_bsdinfo of sys/proc_info.h (136 bytes, PROC_PIDTBSDINFO).
func darwinBSDInfo() layout {
	return layout{size: 136, pid: 12, ppid: 16, group: 100, state: 4, startSec: 120, startUsec: 128, wide: 8}
}

// FreeBSD: struct kinfo_proc of sys/user.h, KINFO_PROC_SIZE 1088 on 64-bit
// machines since 8. It begins with its own size.
func freebsdKinfo() layout {
	return layout{size: 1088, pid: 72, ppid: 76, group: 80, state: 388, startSec: 336, startUsec: 344, wide: 8}
}

// ParseDarwinKinfo parses what sysctl kern.proc.pid of macOS returns. Nothing
// at all is ErrNoEntry: the call succeeds for a number that is free.
func ParseDarwinKinfo(b []byte) (ProcEntry, error) { return darwinKinfo().parse(b) }

// ParseDarwinBSDInfo parses what proc_info(PROC_PIDTBSDINFO) of macOS returns.
func ParseDarwinBSDInfo(b []byte) (ProcEntry, error) { return darwinBSDInfo().parse(b) }

// ParseFreeBSDKinfo parses what sysctl kern.proc.pid of FreeBSD returns.
func ParseFreeBSDKinfo(b []byte) (ProcEntry, error) {
	if len(b) >= 4 && binary.LittleEndian.Uint32(b) != uint32(freebsdKinfo().size) {
		return ProcEntry{}, ErrParse
	}
	return freebsdKinfo().parse(b)
}

func (l layout) parse(b []byte) (ProcEntry, error) {
	if len(b) == 0 {
		return ProcEntry{}, ErrNoEntry
	}
	if len(b) != l.size {
		return ProcEntry{}, ErrParse
	}
	number := func(at int) int { return int(int32(binary.LittleEndian.Uint32(b[at:]))) }
	e := ProcEntry{PID: number(l.pid), PPID: number(l.ppid), Group: number(l.group), Zombie: b[l.state] == sZomb}
	start, ok := timeval(b[l.startSec:], b[l.startUsec:], l.wide)
	if e.PID <= 0 || e.PPID < 0 || !ok {
		return ProcEntry{}, ErrParse
	}
	e.StartUS = start
	return e, nil
}

// timeval reads seconds of 8 bytes, and microseconds of 4 or 8; ok: it is a
// moment after 1970.
func timeval(sec, usec []byte, wide int) (us uint64, ok bool) {
	s := binary.LittleEndian.Uint64(sec)
	u := uint64(binary.LittleEndian.Uint32(usec))
	if wide == 8 {
		u = binary.LittleEndian.Uint64(usec)
	}
	const most = 1 << 40 // seconds: 36,000 years
	if s == 0 || s > most || u >= 1e6 {
		return 0, false
	}
	return s*1e6 + u, true
}

// ParseTimeval parses sysctl kern.boottime: a struct timeval, 16 bytes, whose
// microseconds are 4 bytes and padding on macOS and 8 on FreeBSD. It returns
// microseconds since 1970.
func ParseTimeval(b []byte, wide int) (uint64, error) {
	if len(b) != 16 {
		return 0, ErrParse
	}
	us, ok := timeval(b, b[8:], wide)
	if !ok {
		return 0, ErrParse
	}
	return us, nil
}

// SinceBoot turns a start time of FreeBSD into microseconds since the boot. Its
// kernel keeps that, and adds the time of the boot when asked (fill_kinfo_proc
// of kern_proc.c): when the clock is set, both move by the same.
func SinceBoot(start, boot uint64) (uint64, error) {
	if boot == 0 || start <= boot {
		return 0, ErrParse
	}
	return start - boot, nil
}

// PSColumns are the columns that ParsePS wants of ps(1), in the C locale and
// with TZ=UTC0: POSIX has all but lstart, which macOS and the BSDs have, and
// Linux.
const PSColumns = "pid= ppid= pgid= stat= lstart="

// ParsePS parses the row of one process that ps(1) prints for PSColumns. The
// start is a whole second. No row is ErrNoEntry, and several are ErrParse.
func ParsePS(b []byte) (ProcEntry, error) {
	f := strings.Fields(string(b))
	if len(f) == 0 {
		return ProcEntry{}, ErrNoEntry
	}
	if len(f) != 9 || strings.Count(strings.TrimSpace(string(b)), "\n") != 0 {
		return ProcEntry{}, ErrParse
	}
	var e ProcEntry
	for i, to := range []*int{&e.PID, &e.PPID, &e.Group} {
		n, err := parseUint31(f[i])
		if err != nil {
			return ProcEntry{}, err
		}
		*to = n
	}
	at, err := time.Parse("Mon Jan 2 15:04:05 2006", strings.Join(f[4:], " "))
	if err != nil || at.Unix() <= 0 || e.PID == 0 || !day(f[4], at) {
		return ProcEntry{}, ErrParse
	}
	e.StartUS, e.Zombie = uint64(at.Unix())*1e6, f[3][0] == 'Z'
	return e, nil
}

// day tells whether a date has the day of the week that was printed with it,
// which time.Parse does not look at.
func day(name string, at time.Time) bool { return at.Weekday().String()[:3] == name }

func parseUint31(s string) (int, error) {
	n := 0
	for _, c := range []byte(s) {
		if c < '0' || c > '9' || n > 1<<31/10 {
			return 0, ErrParse
		}
		n = n*10 + int(c-'0')
	}
	return n, nil
}
