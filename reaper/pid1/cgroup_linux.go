package pid1

import "syscall"

// killOthers kills whoever else is in our cgroup, and everything in those below.
// It must be a container's: the root of a cgroup namespace, or PID 1's.
func (b *init_) killOthers() {
	var dir text
	if !b.ownCgroup(&dir) {
		b.say(1).add("--kill-cgroup: no cgroup v2 of a container here: left alone")
		b.end()
		return
	}
	b.killBelow(&dir)
	end := now() + killMost
	for {
		b.refused = 0
		n := b.killMembers(&dir)
		if b.srv != nil && b.srv.split {
			n += b.killMembers(&b.srv.initLeaf)
		}
		for {
			if pid, _ := b.reapOne(); pid <= 0 {
				break
			}
		}
		if n == 0 {
			return
		}
		if now() > end {
			b.tellLeft(n, " of the cgroup")
			return
		}
		_ = b.wait(killPause, 1<<(sigCHLD-1))
	}
}

// ownCgroup finds the directory: with --serve the one that we came from. The root
// of all has no cgroup.kill.
func (b *init_) ownCgroup(dir *text) bool {
	var own text
	switch s := b.srv; {
	case s != nil && s.split && (b.pid == 1 || s.alone):
		dir.n = 0
		dir.add(str(s.base.path()))
	case s != nil && s.split:
		return false
	case !b.cgroupPath(&own, "") || b.pid != 1 && own.n > 1: // somebody else's, perhaps
		return false
	case !b.cgroup2Dir(dir):
		return false
	}
	n := dir.n
	fd, e := open(dir.add("/cgroup.kill").path(), syscall.O_WRONLY|syscall.O_CLOEXEC, 0)
	if dir.n = n; e != 0 {
		return false
	}
	closeFD(fd)
	return true
}

// killBelow kills the cgroups below, each at one stroke.
func (b *init_) killBelow(dir *text) {
	fd, e := open(dir.path(), oRdonlyCloexec|syscall.O_DIRECTORY, 0)
	if e != 0 {
		return
	}
	for r := b.entries(fd); r > 0; r = b.entries(fd) {
		for at := 0; at+20 < r; {
			size, name := b.entry(at)
			if name != nil {
				n := dir.n
				dir.add("/").add(str(name))
				ours := b.srv != nil && b.srv.split && str(dir.path()) == str(b.srv.initLeaf.path())
				if p := dir.add("/cgroup.kill").path(); !ours {
					writeFile(p, "1")
				}
				dir.n = n
			}
			at += size
		}
	}
	closeFD(fd)
}

// subdir adds the name of the subdirectory at a place of the list.
func (b *init_) subdir(dir *text, place int) (found bool) {
	fd, e := open(dir.path(), oRdonlyCloexec|syscall.O_DIRECTORY, 0)
	if e != 0 {
		return false
	}
	for r := b.entries(fd); r > 0 && !found; r = b.entries(fd) {
		for at := 0; at+20 < r && !found; {
			size, name := b.entry(at)
			if name != nil {
				if found = place == 0; found {
					dir.add("/").add(str(name))
				}
				place--
			}
			at += size
		}
	}
	closeFD(fd)
	return found
}

// entries reads some entries of a directory into b.buf, and tells how many bytes
// they are.
func (b *init_) entries(fd int) int {
	r, e := sys(syscall.SYS_GETDENTS64, uintptr(fd), addr(&b.buf[0]), uintptr(len(b.buf)))
	if e != 0 {
		return 0
	}
	return min(int(r), len(b.buf))
}

// entry is the size of the one that is there, and the name of a directory, or nil:
// struct linux_dirent64 has ino 8, off 8, reclen 2, type 1, name.
func (b *init_) entry(at int) (size int, name *byte) {
	if at < 0 || at+20 > len(b.buf) {
		return len(b.buf), nil
	}
	size = int(b.buf[at+16]) | int(b.buf[at+17])<<8
	if b.buf[at+18] == syscall.DT_DIR && b.buf[at+19] != '.' {
		name = &b.buf[at+19]
	}
	return max(size, 20), name
}

// killMembers kills the others that are listed, and returns how many those were.
func (b *init_) killMembers(dir *text) (n int) {
	for skip := 0; ; skip++ {
		pid := b.member(dir, skip, 0)
		if pid < 0 {
			return n
		}
		if pid <= 1 || pid == b.pid {
			continue // 0 is of another PID namespace
		}
		n++
		fd, e := sys(sysPidfdOpen, uintptr(pid), 0, 0)
		if e != 0 {
			continue
		}
		// It is who the list means if it is there while we have a handle on it.
		if b.member(dir, 0, pid) == pid {
			if _, e = sys4(sysPidfdSend, fd, sigKILL, 0, 0); e == syscall.EPERM {
				b.refused++
			}
		}
		closeFD(int(fd))
	}
}

// member is the pid at a place of the list, or the one that is wanted; or -1.
func (b *init_) member(dir *text, place, want int) int {
	n := dir.n
	fd, e := open(dir.add("/cgroup.procs").path(), oRdonlyCloexec, 0)
	if dir.n = n; e != 0 {
		return -1
	}
	pid, found := 0, -1
	for found < 0 {
		got := read(fd, &b.buf[0], len(b.buf))
		for i := 0; i < got && i < len(b.buf) && found < 0; i++ {
			if c := b.buf[i]; c != '\n' {
				pid = pid*10 + int(c-'0')
				continue
			}
			if want != 0 && pid == want || want == 0 && place == 0 {
				found = pid
			}
			place--
			pid = 0
		}
		if got < len(b.buf) {
			break
		}
	}
	closeFD(fd)
	return found
}
