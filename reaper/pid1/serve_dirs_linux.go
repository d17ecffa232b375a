package pid1

import "syscall"

// serviceDirs chooses where the service keeps what it has: the directories that
// its clients look into by themselves, unless the environment names others.
func (b *init_) serviceDirs() bool {
	s := b.srv
	uid, _ := sys(syscall.SYS_GETEUID, 0, 0, 0)
	if v := b.named("PINFOLD_RUNTIME_DIR"); v != "" {
		b.absolute(&s.runDir, v)
	} else {
		xdg := b.xdg("XDG_RUNTIME_DIR")
		ok := b.dir(&s.runDir, "/run", "/pinfold", -1, 0o755) || xdg != "" && b.dir(&s.runDir, xdg, "/pinfold", -1, 0o755) ||
			b.dir(&s.runDir, "/tmp", "/pinfold-", int(uid), 0o755) || b.dir(&s.runDir, "/dev/shm", "/pinfold-", int(uid), 0o755)
		if !ok {
			return false
		}
	}
	if v := b.named("PINFOLD_STATE_DIR"); v != "" {
		b.absolute(&s.stateDir, v)
		return true
	}
	home := b.xdg("XDG_STATE_HOME")
	if b.dir(&s.stateDir, "/var/lib", "/pinfold", -1, 0o700) || home != "" && b.dir(&s.stateDir, home, "/pinfold", -1, 0o700) {
		return true
	}
	s.stateDir.n = 0 // the service makes it, and says it if it cannot
	s.stateDir.add(str(s.runDir.path())).add("/state")
	return true
}

// named is what a variable says. An empty one says nothing, as for pinfold.
func (b *init_) named(variable string) string {
	v, _ := b.envp.env(variable)
	return v
}

// xdg is what a variable says if that is an absolute path, as its specification
// has it: others are to be ignored.
func (b *init_) xdg(variable string) string {
	if v := b.named(variable); v != "" && v[0] == '/' {
		return v
	}
	return ""
}

// absolute adds a path as it is for the command, from the directory that we came
// from: the service is in another, and its clients may be anywhere.
func (b *init_) absolute(t *text, path string) {
	if path != "" && path[0] != '/' && t.n < len(t.b) {
		if b.cwd >= 0 {
			_, _ = sys(syscall.SYS_FCHDIR, uintptr(b.cwd), 0, 0)
		}
		n, e := sys(syscall.SYS_GETCWD, addr(&t.b[t.n]), uintptr(len(t.b)-t.n), 0)
		if e == 0 && n > 1 {
			if t.n += int(n) - 1; t.b[(t.n-1)&4095] != '/' {
				t.add("/")
			}
		}
		if b.cwd >= 0 {
			root := [2]byte{'/'}
			_, _ = sys(syscall.SYS_CHDIR, addr(&root[0]), 0, 0)
		}
	}
	t.add(path)
}

// dir makes a directory that nobody else may write, or finds it. With uid that is
// part of its name. The mode is root's: others come in to the socket.
func (b *init_) dir(t *text, above, name string, uid int, mode uintptr) bool {
	t.n = 0
	if t.add(above).add(name); uid >= 0 {
		t.num(uid)
	}
	euid, _ := sys(syscall.SYS_GETEUID, 0, 0, 0)
	if euid != 0 {
		mode = 0o700
	}
	p := t.path()
	if _, e := sys(syscall.SYS_MKDIRAT, atFDCWD, addr(p), mode); e == 0 {
		return true
	}
	var st syscall.Stat_t
	if _, e := sys4(sysFstatat, atFDCWD, addr(p), addr(&st), atNoFollow); e != 0 {
		return false
	}
	return st.Mode&syscall.S_IFMT == syscall.S_IFDIR && uintptr(st.Uid) == euid && st.Mode&0o022 == 0 && access(p, 2)
}

// access tells whether a path may be executed (1), written (2) or is there (0).
func access(p *byte, mode uintptr) bool {
	_, e := sys(syscall.SYS_FACCESSAT, atFDCWD, addr(p), mode)
	return e == 0
}

// writeFile writes a word to a file of the kernel's.
func writeFile(path *byte, s string) syscall.Errno {
	fd, e := open(path, syscall.O_WRONLY|syscall.O_CLOEXEC, 0)
	if e != 0 {
		return e
	}
	var t text
	_, e = sys(syscall.SYS_WRITE, uintptr(fd), addr(t.add(s).path()), uintptr(len(s)))
	closeFD(fd)
	return e
}

// remove removes an empty directory.
func remove(p *byte) { _, _ = sys(syscall.SYS_UNLINKAT, atFDCWD, addr(p), atRemoveDir) }
