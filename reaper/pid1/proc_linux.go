package pid1

import "syscall"

// signalChildren signals all our children but the service: TERM each one once. It
// returns how many there are, -1 if that is not known. Without procfs there is no list; as PID 1 we then have the kernel
// take everybody in our PID namespace.
func (b *init_) signalChildren(sig int) (n int) {
	var path text
	fd, e := open(path.add("/proc/self/task/").num(b.pid).add("/children").path(), oRdonlyCloexec, 0)
	if e != 0 {
		return b.signalBlindly(sig)
	}
	pid := 0
	for {
		got := read(fd, &b.buf[0], len(b.buf))
		for i := 0; i < got && i < len(b.buf); i++ {
			if c := b.buf[i]; c >= '0' && c <= '9' {
				pid = pid*10 + int(c-'0')
				continue
			}
			if pid > 1 && !b.isService(pid) {
				b.signalChild(pid, sig)
				n++
			}
			pid = 0
		}
		if got < len(b.buf) {
			break
		}
	}
	closeFD(fd)
	return n
}

// orphansLeft tells whether there are children besides the service. Without procfs
// nobody can tell.
func (b *init_) orphansLeft() bool {
	var path text
	if !access(path.add("/proc/self/task/").num(b.pid).add("/children").path(), 0) {
		return false
	}
	return b.signalChildren(0) > 0
}

// signalChild signals a child that we have not waited for: the pid is its own.
func (b *init_) signalChild(pid, sig int) {
	if bit := uint64(1) << (pid & 63); sig == sigTERM {
		if b.told[pid>>6&511]&bit != 0 {
			return
		}
		b.told[pid>>6&511] |= bit
	}
	if kill(pid, sig) == syscall.EPERM {
		b.refused++
	}
	if sig == sigTERM {
		_ = kill(pid, sigCONT)
	}
}

func (b *init_) signalBlindly(sig int) int {
	if b.pid != 1 {
		b.say(1).add("no /proc: what is left cannot be found, and stays")
		b.end()
		b.phase = phaseDone
		return 0
	}
	if sig != sigTERM || b.told[0]&1 == 0 {
		_ = kill(-1, sig)
		b.told[0] |= 1
	}
	return -1
}

// cgroupPath appends our cgroup's path to t: of cgroup v2, or of a controller of
// v1, as "/proc/self/cgroup" has it.
func (b *init_) cgroupPath(t *text, controller string) bool {
	name := [...]byte{'/', 'p', 'r', 'o', 'c', '/', 's', 'e', 'l', 'f', '/', 'c', 'g', 'r', 'o', 'u', 'p', 0}
	fd, e := open(&name[0], oRdonlyCloexec, 0)
	if e != 0 {
		return false
	}
	n := min(read(fd, &b.buf[0], len(b.buf)), len(b.buf))
	closeFD(fd)
	for from, i := 0, 0; i < n; i++ {
		if b.buf[i] != '\n' {
			continue
		}
		if start := b.cgroupLine(from, i, controller); start > 0 {
			for ; start < i && t.n < len(t.b); start++ {
				t.b[t.n] = b.buf[start]
				t.n++
			}
			return true
		}
		from = i + 1
	}
	return false
}

// cgroupLine finds where the path begins in a line of the controller: ID:LIST:PATH.
func (b *init_) cgroupLine(from, to int, controller string) (start int) {
	colons, match := 0, 0
	for i := from; i < to && i < len(b.buf); i++ {
		if b.buf[i] != ':' {
			if colons == 1 && match >= 0 && match < len(controller) && controller[match] == b.buf[i] {
				match++
			} else if colons == 1 {
				match = -1
			}
			continue
		}
		if colons++; colons == 2 {
			if match != len(controller) {
				return 0
			}
			return i + 1
		}
	}
	return 0
}

// countOOM reads how many processes of our cgroup the kernel has killed for want
// of memory, or -1.
func (b *init_) countOOM() int {
	if s := b.srv; s != nil && s.split {
		var t text
		if v := b.oomIn(t.add(str(s.leaf.path())).add("/memory.events").path()); v >= 0 {
			return v
		}
	}
	for i := range cgroupDirs {
		d := &cgroupDirs[i]
		var t text
		t.add(d.mount)
		if !b.cgroupPath(&t, d.controller) {
			continue
		}
		if v := b.oomIn(t.add("/").add(d.file).path()); v >= 0 {
			return v
		}
		t.n = len(d.mount) // a namespace of its own, but the path of another
		if v := b.oomIn(t.add("/").add(d.file).path()); v >= 0 {
			return v
		}
	}
	return -1
}

// cgroupDir is where a hierarchy may be mounted.
type cgroupDir struct{ mount, controller, file string }

var cgroupDirs = [...]cgroupDir{
	{"/sys/fs/cgroup", "", "memory.events"},
	{"/sys/fs/cgroup/memory", "memory", "memory.oom_control"},
}

// oomIn finds "oom_kill N" in a file.
func (b *init_) oomIn(path *byte) int {
	const key = "oom_kill "
	fd, e := open(path, oRdonlyCloexec, 0)
	if e != 0 {
		return -1
	}
	n := min(read(fd, &b.buf[0], len(b.buf)), len(b.buf))
	closeFD(fd)
	for from, i := 0, 0; i < n; i++ {
		if b.buf[i] != '\n' {
			continue
		}
		v, digits, j := 0, 0, 0
		for ; j < len(key) && from+j < i && b.buf[from+j] == key[j]; j++ {
		}
		for k := from + j; j == len(key) && k < i && b.buf[k] >= '0' && b.buf[k] <= '9'; k++ {
			v, digits = v*10+int(b.buf[k]-'0'), digits+1
		}
		if digits > 0 {
			return v
		}
		from = i + 1
	}
	return -1
}
