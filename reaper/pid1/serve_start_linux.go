package pid1

import (
	"syscall"
	"unsafe"
)

// findProgram finds pinfold: what --serve= names, or beside us, or where it is
// installed, or (by execute) in PATH.
func (b *init_) findProgram() {
	s := b.srv
	link := [...]byte{'/', 'p', 'r', 'o', 'c', '/', 's', 'e', 'l', 'f', '/', 'e', 'x', 'e', 0}
	n, e := sys4(syscall.SYS_READLINKAT, atFDCWD, addr(&link[0]), addr(&s.self.b[0]), uintptr(len(s.self.b)-1))
	if e == 0 {
		s.self.n = int(n)
	} else if name := str(b.argv.at(0)); len(name) > 0 && name[0] == '/' {
		s.self.add(name)
	}
	if name := str(b.o.serveProgram); name != "" {
		for i := range len(name) {
			if name[i] == '/' {
				b.absolute(&s.program, name)
				return
			}
		}
		s.program.add(name)
		return
	}
	self := str(s.self.path())
	end := 0
	for i := range len(self) {
		if self[i] == '/' {
			end = i + 1
		}
	}
	const usual = 3
	places := [usual]string{self[:end], self[:end], "/usr/bin/"}
	names := [usual]string{"pinfold", "../../bin/pinfold", "pinfold"}
	for i := 0; i < usual && end > 0; i++ {
		s.program.n = 0
		if access(s.program.add(places[i]).add(names[i]).path(), 1) {
			return
		}
	}
	s.program.n = 0
	s.program.add("pinfold")
}

// openSaid makes the pipe that is to be the service's standard output.
func (b *init_) openSaid() syscall.Errno {
	s := b.srv
	var p [2]int32
	if _, e := sys(syscall.SYS_PIPE2, addr(&p), syscall.O_CLOEXEC, 0); e != 0 {
		return e
	}
	s.said, s.sayTo = above(int(p[0])), above(int(p[1]))
	if s.said < 0 || s.sayTo < 0 {
		return syscall.EMFILE
	}
	_, e := sys(syscall.SYS_FCNTL, uintptr(s.said), syscall.F_SETFL, syscall.O_NONBLOCK)
	return e
}

func (b *init_) closeSaid() {
	if b.srv.said >= 0 {
		closeFD(b.srv.said)
	}
	b.srv.said = -1
}

// serviceSaid reads what it has said, and tells whether that is that it is ready.
func (b *init_) serviceSaid() bool {
	s := b.srv
	for s.said >= 0 && s.line.n < len(s.line.b)-1 {
		r, e := sys(syscall.SYS_READ, uintptr(s.said), addr(&s.line.b[s.line.n]), 1)
		if e != 0 || r == 0 {
			return false
		}
		if s.line.b[s.line.n] != '\n' {
			s.line.n++
			continue
		}
		if socket, _ := b.readLine(); socket != "" {
			return true
		}
		s.line.n = 0
	}
	return false
}

// readLine takes grade and socket from "...: ready on SOCKET, ... at grade GRADE".
func (b *init_) readLine() (socket, grade string) {
	s := b.srv
	line := str(s.line.path())
	const on = ": ready on "
	from, to, word := 0, len(line), 0
	for i := range len(line) {
		switch {
		case i >= len(on) && from == 0 && line[i-len(on):i] == on:
			from = i
		case line[i] == ',' && to == len(line):
			to = i
		case line[i] == ' ':
			word = i + 1
		}
	}
	if from == 0 {
		return "", ""
	}
	return line[from:max(from, to)], line[word:]
}

// serviceArgs is `pinfold serve`, told what the environment does not say.
func (b *init_) serviceArgs() {
	s := b.srv
	s.argsTell = false
	n := b.arg(0, s.program.path(), "serve")
	n = b.argText(n, "--runtime-dir", &s.runDir)
	n = b.argText(n, "--state-dir", &s.stateDir)
	if b.named("PINFOLD_INIT") == "" && s.self.n > 0 {
		n = b.argText(n, "--init", &s.self)
	}
	if s.split {
		n = b.argText(n, "--cgroup-parent", &s.base)
	}
	s.args[n&15] = nil
}

// stopArgs is `pinfold stop --turns`, with a grace in ms.
func (b *init_) stopArgs(grace int) {
	s := b.srv
	n := b.arg(0, s.program.path(), "stop")
	s.number.n = 0
	n = b.argText(n, "--grace", s.number.num(grace).add("ms"))
	s.args[n&15] = word("--turns")
	s.args[(n+1)&15] = nil
}

// arg begins the arguments with a program and what it is to do.
func (b *init_) arg(n int, program *byte, verb string) int {
	s := b.srv
	s.args[n&15] = hide(program)
	s.args[(n+1)&15] = word(verb)
	return n + 2
}

func (b *init_) argText(n int, name string, value *text) int {
	s := b.srv
	s.args[n&15] = word(name)
	s.args[(n+1)&15] = hide(value.path())
	return n + 2
}

// word has a constant with the zero byte that the kernel wants.
func word(s string) *byte {
	for i := range serviceWords {
		if w := serviceWords[i]; w[:len(w)-1] == s {
			return hide(unsafe.StringData(w))
		}
	}
	return nil
}

var serviceWords = [...]string{"serve\x00", "stop\x00", "--runtime-dir\x00", "--state-dir\x00", "--init\x00",
	"--cgroup-parent\x00", "--grace\x00", "--turns\x00"}

// serviceEnv makes the environments: the command's with the socket, the service's
// without what a service manager has told us.
func (b *init_) serviceEnv() bool {
	s := b.srv
	n := 0
	for b.envp.at(n) != nil {
		n++
	}
	size := uintptr(n+2) * unsafe.Sizeof(b.envp.p)
	p := mapPages(2 * size)
	if p == nil {
		return false
	}
	ours, its := list{(**byte)(p)}, list{(**byte)(unsafe.Add(p, size))}
	s.socket.add(socketVariable)
	if v := b.named("PINFOLD_SOCKET"); v != "" {
		b.absolute(&s.socket, v)
	} else {
		s.socket.add(str(s.runDir.path())).add("/pinfold.sock")
	}
	j, k := 0, 0
	for i := range n {
		w := b.envp.at(i)
		if begins(str(w), socketVariable) {
			continue
		}
		ours.set(j, w)
		j++
		if !isManagers(str(w)) {
			its.set(k, w)
			k++
		}
	}
	ours.set(j, s.socket.path())
	its.set(k, s.socket.path())
	b.envp, s.env = ours, its
	return true
}

// isManagers tells what is said to the command alone.
func isManagers(s string) bool {
	for i := range managers {
		if begins(s, managers[i]) {
			return true
		}
	}
	return false
}

func begins(s, with string) bool { return len(s) >= len(with) && s[:len(with)] == with }

const socketVariable = "PINFOLD_SOCKET="

var managers = [...]string{"NOTIFY_SOCKET=", "WATCHDOG_", "LISTEN_", "FDSTORE=", "INVOCATION_ID=", "JOURNAL_STREAM="}

// set sets a place of a list that is ours.
func (l list) set(i int, p *byte) {
	*(**byte)(unsafe.Add(unsafe.Pointer(l.p), uintptr(i)*unsafe.Sizeof(l.p))) = hide(p)
}

// becomeService makes the clone what the service, or `pinfold stop`, is to be: a
// session of its own, nothing of the command's, no signal ignored or blocked.
func (b *init_) becomeService() {
	s := b.srv
	_, _ = sys(syscall.SYS_SETSID, 0, 0, 0)
	null := [...]byte{'/', 'd', 'e', 'v', '/', 'n', 'u', 'l', 'l', 0}
	fd, e := open(&null[0], syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if fd = above(fd); e == 0 && fd >= 0 {
		_, _ = sys(syscall.SYS_DUP3, uintptr(fd), 0, 0)
		_, _ = sys(syscall.SYS_DUP3, uintptr(fd), 1, 0)
	}
	if !s.argsTell {
		_, _ = sys(syscall.SYS_DUP3, uintptr(s.sayTo), 1, 0)
	}
	closeFrom(3)
	dfl, none := action{}, uint64(0)
	for n := 1; n <= sigMax; n++ {
		_ = sigaction(n, &dfl, nil)
	}
	sigmask(sigSet, &none)
}
