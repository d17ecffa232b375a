package pid1

import "syscall"

// writeStatus writes the status file: beside it, then in its place, so that a
// reader never sees half of it.
func (b *init_) writeStatus() {
	b.dirty, b.written = false, now()
	state := "running"
	switch b.phase {
	case phaseStart, phaseServe:
		state = "starting"
	case phaseWait:
		state = "waiting"
		if b.stopping {
			state = "stopping"
		}
	case phaseStop, phaseTurns, phaseService, phaseRest, phaseKill:
		state = "stopping"
	case phaseDone:
		state = "ended"
	}
	var t text
	t.add(`{"pid":`).num(b.pid).add(`,"state":"`).add(state).add(`","command":`).quoted(str(b.o.command.at(0)))
	t.add(`,"main":`).num(b.mainPID).add(`,"reaped":`).num(b.reaped).add(`,"orphans":`).num(b.orphans)
	b.addService(&t)
	if b.phase > phaseMain {
		t.add(`,"code":`).num(b.code)
		if b.cause != 0 {
			t.add(`,"signal":"`).sig(b.cause).add(`"`)
		}
		if b.oom {
			t.add(`,"oom":true`)
		}
	}
	t.add("}\n")
	var name text
	p := name.add(str(b.o.status)).add(".new").path()
	fd, e := open(p, syscall.O_WRONLY|syscall.O_CREAT|syscall.O_TRUNC|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0o644)
	if e == 0 {
		t.write(fd)
		closeFD(fd)
		_, e = sys4(syscall.SYS_RENAMEAT, atFDCWD, addr(p), atFDCWD, addr(b.o.status))
	}
	if e != 0 && !b.statusTold {
		b.statusTold = true
		b.say(1).add("write ").add(str(b.o.status)).add(": ")
		errText(&b.msg, e)
		b.end()
	}
}

// addService tells how the service is.
func (b *init_) addService(t *text) {
	s := b.srv
	if s == nil {
		return
	}
	state := "down"
	switch s.state {
	case serviceStarting:
		state = "starting"
	case serviceReady:
		state = "ready"
	}
	t.add(`,"service":"`).add(state).add(`","service_pid":`).num(s.pid).add(`,"restarts":`).num(s.restarts)
	if s.grade.n > 0 {
		t.add(`,"grade":`).quoted(str(s.grade.path()))
	}
}
