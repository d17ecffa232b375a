package sys

import (
	"bytes"
	"errors"
	"strconv"
)

// TicksPerSecond is USER_HZ: the unit of times in /proc on every architecture
// that Go supports.
const TicksPerSecond = 100

// ErrParse is returned for a file of /proc that is not as proc(5) describes it,
// or was read short.
var ErrParse = errors.New("malformed")

// Stat is what Pinfold uses of /proc/pid/stat.
type Stat struct {
	PID        int
	Comm       string // may hold any byte but 0
	State      byte   // R S D Z T t X I
	PPID       int
	Group      int
	Session    int
	Threads    int    // a zombie's own counts: 1 once all have ended
	StartTicks uint64 // field 22, after boot, in the reader's time namespace
	RSSPages   int64
}

// ParseStat parses /proc/pid/stat. The command name may hold spaces,
// parentheses and newlines, so it ends at the last ")" of the whole file.
func ParseStat(b []byte) (Stat, error) {
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 2 || end < open {
		return Stat{}, ErrParse
	}
	s := Stat{Comm: string(b[open+1 : end])}
	var err error
	if s.PID, err = strconv.Atoi(string(b[:open-1])); err != nil || b[open-1] != ' ' {
		return Stat{}, ErrParse
	}
	f := bytes.Fields(b[end+1:]) // f[0] is field 3, the state
	if len(f) < 22 || len(f[0]) != 1 {
		return Stat{}, ErrParse
	}
	s.State = f[0][0]
	for _, n := range []struct {
		field int
		to    *int
	}{{4, &s.PPID}, {5, &s.Group}, {6, &s.Session}, {20, &s.Threads}} {
		if *n.to, err = strconv.Atoi(string(f[n.field-3])); err != nil {
			return Stat{}, ErrParse
		}
	}
	if s.StartTicks, err = strconv.ParseUint(string(f[22-3]), 10, 64); err != nil {
		return Stat{}, ErrParse
	}
	if s.RSSPages, err = strconv.ParseInt(string(f[24-3]), 10, 64); err != nil {
		return Stat{}, ErrParse
	}
	return s, nil
}

// Status is what Pinfold uses of /proc/pid/status.
type Status struct {
	TGID   int
	UID    uint32 // real
	EUID   uint32
	NSPIDs []int // its number in each PID namespace, from the procfs's inwards
}

// ParseStatus parses /proc/pid/status, or a task's. The name line escapes
// newlines, so it can be read by line.
func ParseStatus(b []byte) (Status, error) {
	s := Status{TGID: -1}
	const tgid, uid = 1, 2
	seen := 0
	for line := range bytes.Lines(b) {
		key, value, _ := bytes.Cut(line, []byte(":"))
		f := bytes.Fields(value)
		switch string(key) {
		case "Tgid":
			n, err := atoi(f, 0)
			if err != nil {
				return Status{}, err
			}
			s.TGID = n
			seen |= tgid
		case "Uid":
			ruid, err := atoi(f, 0)
			euid, err2 := atoi(f, 1)
			if err != nil || err2 != nil {
				return Status{}, ErrParse
			}
			s.UID, s.EUID = uint32(ruid), uint32(euid)
			seen |= uid
		case "NSpid":
			for i := range f {
				n, err := atoi(f, i)
				if err != nil {
					return Status{}, err
				}
				s.NSPIDs = append(s.NSPIDs, n)
			}
		}
	}
	if seen != tgid|uid {
		return Status{}, ErrParse
	}
	return s, nil
}

// atoi parses f[i] as a number of 0 to 2^32-1.
func atoi(f [][]byte, i int) (int, error) {
	if i >= len(f) {
		return 0, ErrParse
	}
	n, err := strconv.ParseUint(string(f[i]), 10, 32)
	if err != nil {
		return 0, ErrParse
	}
	return int(n), nil
}

// ParseCgroup returns the path on the "0::" line of /proc/pid/cgroup: relative
// to the reader's cgroup namespace, so it may begin with "/..". The path of a
// removed cgroup ends in " (deleted)". The kernel allows no newline in a path.
func ParseCgroup(b []byte) (string, error) {
	for line := range bytes.Lines(b) {
		path, ok := bytes.CutPrefix(line, []byte("0::"))
		if !ok {
			continue
		}
		path, whole := bytes.CutSuffix(path, []byte("\n"))
		if !whole || len(path) == 0 || path[0] != '/' {
			return "", ErrParse
		}
		return string(path), nil
	}
	return "", ErrNoCgroup2
}

// ErrNoCgroup2 tells that there is no cgroup v2 here.
var ErrNoCgroup2 = errors.New("no cgroup v2 here (requires >= 4.5, and a mount of type cgroup2)")

// ParseNumbers parses a list of non-negative numbers, one on each line, as in
// cgroup.procs, cgroup.threads and children (there between spaces).
func ParseNumbers(b []byte) ([]int, error) {
	out := make([]int, 0, len(b)/5+1)
	n, in := 0, false
	for _, c := range b {
		switch {
		case c >= '0' && c <= '9':
			if n = n*10 + int(c-'0'); n > 1<<31 {
				return out, ErrParse
			}
			in = true
		case c == '\n' || c == ' ':
			if in {
				out = append(out, n)
			}
			n, in = 0, false
		default:
			return out, ErrParse
		}
	}
	if in {
		out = append(out, n)
	}
	return out, nil
}

// ParseKV returns the number after a key in a flat keyed file: "populated" of
// cgroup.events, "usage_usec" of cpu.stat.
func ParseKV(b []byte, key string) (int64, bool) {
	for line := range bytes.Lines(b) {
		k, v, ok := bytes.Cut(line, []byte(" "))
		if ok && string(k) == key {
			n, err := strconv.ParseInt(string(bytes.TrimSpace(v)), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}
