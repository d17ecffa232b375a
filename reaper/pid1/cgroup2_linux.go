package pid1

import (
	"syscall"
	"unsafe"
)

// cgroup2Dir finds our cgroup's directory, wherever cgroup v2 is mounted.
func (b *init_) cgroup2Dir(dir *text) bool {
	var own text
	if !b.cgroupPath(&own, "") {
		return false
	}
	var name text
	fd, e := open(name.add("/proc/self/mountinfo").path(), oRdonlyCloexec, 0)
	if e != 0 {
		return false
	}
	l := lines{fd: fd}
	found := false
	for !found {
		line, ok := b.next(&l)
		if !ok {
			break
		}
		found = mountOf(line, str(own.path()), dir) && access(dir.path(), 0)
	}
	closeFD(fd)
	return found
}

// mountOf reads a line of mountinfo, proc_pid_mountinfo(5), and tells where a
// cgroup is if that is a mount of cgroup v2 which shows it.
func mountOf(line, own string, dir *text) bool {
	field, from, root, point, kind := 0, 0, "", "", ""
	for i := 0; i <= len(line); i++ {
		if i < len(line) && line[i] != ' ' {
			continue
		}
		w := line[from:i]
		from = i + 1
		switch {
		case field == 3:
			root = w
		case field == 4:
			point = w
		case field == 99:
			kind = w
		}
		if field++; w == "-" && field > 6 {
			field = 99
		}
	}
	if kind != "cgroup2" || len(own) == 0 || own[0] != '/' {
		return false
	}
	for i := range len(point) {
		if point[i] == '\\' {
			return false // a name with a blank
		}
	}
	if root != "/" {
		if len(own) < len(root) || own[:len(root)] != root || len(own) > len(root) && own[len(root)] != '/' {
			return false
		}
		own = own[len(root):]
	}
	if own == "/" {
		own = ""
	}
	if len(own) >= 3 && own[:3] == "/.." {
		return false // outside of what our cgroup namespace shows
	}
	dir.n = 0
	dir.add(point).add(own)
	return true
}

// lines reads a file by lines through b.buf. What is too long for that is left out.
type lines struct{ fd, at, n int }

func (b *init_) next(l *lines) (line string, ok bool) {
	for {
		for i := l.at; i < l.n && i < len(b.buf); i++ {
			if b.buf[i] == '\n' {
				line = unsafe.String(&b.buf[l.at], i-l.at)
				l.at = i + 1
				return line, true
			}
		}
		rest := l.n - l.at
		for i := 0; i < rest && l.at > 0; i++ {
			b.buf[i] = b.buf[l.at+i]
		}
		if l.at, l.n = 0, rest; l.n == len(b.buf) {
			l.n = 0
		}
		r, e := sys(syscall.SYS_READ, uintptr(l.fd), addr(&b.buf[l.n]), uintptr(len(b.buf)-l.n))
		if e == syscall.EINTR {
			continue
		}
		if e != 0 || r == 0 {
			return "", false
		}
		l.n += int(r)
	}
}

// splitCgroup gives us and the command cgroups of our own below the one that we
// are in, so that turns can have theirs beside: only a cgroup without processes
// may hand controllers down, cgroups(7). Where that cannot be, it tells why, and
// turns are held otherwise.
func (b *init_) splitCgroup() {
	s := b.srv
	if b.named("PINFOLD_CGROUP_PARENT") != "" {
		return
	}
	if g := b.named("PINFOLD_GRADE"); g != "" && g != "auto" && g != "cgroup" {
		return
	}
	if !b.cgroup2Dir(&s.base) {
		s.why.add("no cgroup v2 is mounted that shows our own")
		return
	}
	e := b.leaf(&s.initLeaf, "pinfold-init.")
	if e == syscall.EROFS && b.o.cgroupRW {
		if e = b.cgroupWritable(); e == 0 {
			e = b.leaf(&s.initLeaf, "pinfold-init.")
		}
	}
	if e != 0 {
		errText(s.why.add("make ").add(str(s.initLeaf.path())).add(": "), e)
		return
	}
	if e = b.leaf(&s.leaf, "pinfold-command."); e == 0 {
		var t text
		e = writeFile(t.add(str(s.initLeaf.path())).add("/cgroup.procs").path(), "0")
	}
	if e != 0 {
		errText(s.why.add("move to ").add(str(s.initLeaf.path())).add(": "), e)
		remove(s.leaf.path())
		remove(s.initLeaf.path())
		return
	}
	var own text
	s.split, s.alone = true, b.cgroupPath(&own, "") && own.n == s.initLeaf.n-s.base.n
}

// leaf makes a cgroup below base. One that is there already was somebody else's,
// and if it was ever killed, what is born in it dies.
func (b *init_) leaf(t *text, name string) (e syscall.Errno) {
	for n := range 10 {
		t.n = 0
		t.add(str(b.srv.base.path())).add("/").add(name).num(b.pid)
		if n > 0 {
			t.add("-").num(n)
		}
		if _, e = sys(syscall.SYS_MKDIRAT, atFDCWD, addr(t.path()), 0o755); e != syscall.EEXIST {
			return e
		}
	}
	return e
}

// cgroupWritable remounts cgroup v2, as --cgroup-rw asks for.
func (b *init_) cgroupWritable() syscall.Errno {
	var at text
	at.add(str(b.srv.base.path()))
	const flags = syscall.MS_REMOUNT | syscall.MS_BIND | syscall.MS_NOSUID | syscall.MS_NODEV | syscall.MS_NOEXEC
	e := syscall.EINVAL
	for at.n > 1 { // the mount is here or above
		if _, _, e = syscall.RawSyscall6(syscall.SYS_MOUNT, 0, addr(at.path()), 0, flags, 0, 0); e == 0 {
			b.say(2).add("remounted ").add(str(at.path())).add(" writable")
			b.end()
			return 0
		}
		if e != syscall.EINVAL {
			return e
		}
		for at.n--; at.n > 0 && at.b[at.n&4095] != '/'; at.n-- {
		}
	}
	return e
}

// joinLeaf moves the clone that is to be the command into its cgroup.
func (b *init_) joinLeaf() {
	if b.srv == nil || !b.srv.split {
		return
	}
	var t text
	b.srv.moveErr = writeFile(t.add(str(b.srv.leaf.path())).add("/cgroup.procs").path(), "0")
}
