package pid1

import "syscall"

// text is a line that is put together, cut where it does not fit.
type text struct {
	n int
	b [4096]byte
}

func (t *text) add(s string) *text {
	for i := 0; i < len(s) && t.n < len(t.b); i++ {
		t.b[t.n] = s[i]
		t.n++
	}
	return t
}

func (t *text) num(n int) *text {
	var d [20]byte
	if n < 0 {
		t.add("-")
		n = -n
	}
	i := len(d)
	for {
		i--
		d[i&31%20] = byte('0' + n%10)
		if n /= 10; n == 0 || i == 0 {
			break
		}
	}
	for ; i < len(d); i++ {
		if t.n < len(t.b) {
			t.b[t.n] = d[i]
			t.n++
		}
	}
	return t
}

// quoted adds a JSON string.
func (t *text) quoted(s string) *text {
	const hex = "0123456789abcdef"
	t.add(`"`)
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			t.add(`\`).add(s[i : i+1])
		case c < ' ' || c >= 0x7f: // bytes, not runes: a path may be no text at all
			t.add(`\u00`).add(hex[c>>4 : c>>4+1]).add(hex[c&15 : c&15+1])
		default:
			t.add(s[i : i+1])
		}
	}
	return t.add(`"`)
}

// path makes it a path for the kernel.
func (t *text) path() *byte {
	t.b[min(t.n, len(t.b)-1)] = 0
	return &t.b[0]
}

// write writes it to a descriptor in one call; what a pipe does not take is lost.
func (t *text) write(fd int) {
	_, _ = sys(syscall.SYS_WRITE, uintptr(fd), addr(&t.b[0]), uintptr(t.n))
}

// number parses a decimal number that is not above most.
func number(s string, most int) (n int, ok bool) {
	for i := 0; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
		if n = n*10 + int(s[i]-'0'); n > most {
			return 0, false
		}
	}
	return n, len(s) > 0
}

// duration parses 5, 5s, 500ms or 2m; in ms. At most a day.
func duration(s string) (ms int, ok bool) {
	unit, end := 1000, len(s)
	switch {
	case end > 2 && s[end-2:] == "ms":
		unit, end = 1, end-2
	case end > 1 && s[end-1] == 's':
		end--
	case end > 1 && s[end-1] == 'm':
		unit, end = 60_000, end-1
	}
	n, ok := number(s[:end], 86_400_000/unit)
	return n * unit, ok
}

// sigNames are the signals' names without SIG, by number.
var sigNames = [...]string{"", "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV",
	"USR2", "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ",
	"VTALRM", "PROF", "WINCH", "POLL", "PWR", "SYS"}

const rtMin, rtMax = 34, 64

// sig adds a signal's name.
func (t *text) sig(n int) *text {
	switch {
	case n > 0 && n < len(sigNames):
		return t.add("SIG").add(sigNames[n])
	case n == rtMin:
		return t.add("SIGRTMIN")
	case n > rtMin && n <= rtMax:
		return t.add("SIGRTMIN+").num(n - rtMin)
	}
	return t.add("signal ").num(n)
}

// signalOf parses 15, TERM, SIGTERM, RTMIN+3, RTMAX-1.
func signalOf(s string) (n int, ok bool) {
	if n, ok := number(s, sigMax); ok {
		return n, true
	}
	if len(s) > 3 && s[:3] == "SIG" {
		s = s[3:]
	}
	if len(s) >= 5 && (s[:5] == "RTMIN" || s[:5] == "RTMAX") {
		base, sign := rtMin, byte('+')
		if s[:5] == "RTMAX" {
			base, sign = rtMax, '-'
		}
		if len(s) == 5 {
			return base, true
		}
		d, ok := number(s[6:], rtMax-rtMin)
		if sign == '-' {
			return base - d, ok && s[5] == sign
		}
		return base + d, ok && s[5] == sign
	}
	for i := 1; i < len(sigNames); i++ {
		if sigNames[i] == s {
			return i, true
		}
	}
	switch s {
	case "IO":
		return 29, true
	case "IOT":
		return 6, true
	case "CLD":
		return 17, true
	}
	return 0, false
}

// errText is what an error number means, of those that starting a program has.
func errText(t *text, e syscall.Errno) *text {
	switch e {
	case syscall.ENOENT:
		return t.add("No such file or directory")
	case syscall.EACCES:
		return t.add("Permission denied")
	case syscall.EPERM:
		return t.add("Operation not permitted")
	case syscall.ENOTDIR:
		return t.add("Not a directory")
	case syscall.ENOEXEC:
		return t.add("Exec format error")
	case syscall.ELOOP:
		return t.add("Too many levels of symbolic links")
	case syscall.E2BIG:
		return t.add("Argument list too long")
	case syscall.ENOMEM:
		return t.add("Cannot allocate memory")
	case syscall.EAGAIN:
		return t.add("Resource temporarily unavailable")
	case syscall.ETXTBSY:
		return t.add("Text file busy")
	case syscall.ENAMETOOLONG:
		return t.add("File name too long")
	case syscall.EINVAL:
		return t.add("Invalid argument")
	case syscall.ENOSYS:
		return t.add("Function not implemented")
	case syscall.EROFS:
		return t.add("Read-only file system")
	case syscall.EBUSY:
		return t.add("Device or resource busy")
	case syscall.ENOSPC:
		return t.add("No space left on device")
	case syscall.EOPNOTSUPP:
		return t.add("Operation not supported")
	case syscall.EMFILE:
		return t.add("Too many open files")
	case syscall.EIO:
		return t.add("Input/output error")
	}
	return t.add("error ").num(int(e))
}
