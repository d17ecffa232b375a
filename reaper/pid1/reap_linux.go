package pid1

import "syscall"

// reapBatch is how many children are reaped before signals have their turn.
const reapBatch = 128

// others are all signals but SIGCHLD.
const others = everySig &^ (1 << (sigCHLD - 1))

// step waits for something to happen and does what is due.
func (b *init_) step() {
	if b.phase == phaseRest || b.phase == phaseKill {
		if b.reap(); b.phase == phaseDone { // there is nobody any more
			return
		}
	}
	var info siginfo
	switch sig, _ := b.waitInfo(b.timeout(), b.heeded(), &info); sig {
	case 0:
	case sigCHLD:
		b.say(3).add("Received SIGCHLD")
		if b.o.as == asDumb {
			b.msg.n = 0
			b.say(3).add("Received signal ").num(sigCHLD).add(".")
		}
		b.end()
		b.reap()
	default:
		b.passOn(sig, &info)
	}
	b.due()
}

// heeded are the signals that are taken now. What comes for the command before it
// is there waits, and is passed on then.
func (b *init_) heeded() uint64 {
	if b.phase != phaseServe {
		return everySig
	}
	set := uint64(1)<<(sigCHLD-1) | 1<<(sigTERM-1) | 1<<(sigINT-1) | 1<<(sigQUIT-1)
	if b.o.stopSignal > 0 {
		set |= 1 << ((b.o.stopSignal - 1) & 63)
	}
	return set
}

// reap reaps all that have ended. A signal that comes meanwhile need not wait for
// a storm of them to be over.
func (b *init_) reap() {
	for n := 1; b.phase != phaseDone; n++ {
		pid, status := b.reapOne()
		switch {
		case pid < 0:
			b.noChildren()
			return
		case pid == 0:
			switch {
			case b.phase == phaseRest:
				b.askRest() // those whose parent has ended
			case b.phase == phaseWait && b.serving() && !b.orphansLeft():
				b.waitOver()
			case b.phase == phaseWait && b.serving() && b.stops > 0:
				b.askRest()
			}
			return
		case pid == b.child:
			b.childChanged(status)
		case b.isService(pid):
			b.serviceEnded(status)
		}
		if n%reapBatch != 0 {
			continue
		}
		var info siginfo
		set := others & b.heeded()
		for sig, _ := b.waitInfo(0, set, &info); sig > 0 && sig != sigCHLD; sig, _ = b.waitInfo(0, set, &info) {
			b.passOn(sig, &info)
		}
		b.due()
	}
}

// reapOne takes the status of a child: 0 if none has changed, -1 if there is none.
func (b *init_) reapOne() (pid int, status int32) {
	for {
		r, e := sys4(syscall.SYS_WAIT4, ^uintptr(0), addr(&status), wNoHang|wUntraced|wAll, 0)
		switch {
		case e == syscall.EINTR:
			continue
		case e != 0:
			return -1, 0
		case r == 0:
			return 0, 0
		}
		pid = int(r)
		if stopped(status) {
			return pid, status
		}
		b.reaped++
		b.told[pid>>6&511] &^= 1 << (pid & 63)
		b.dirty = true
		if pid != b.child && !b.isService(pid) {
			b.orphans++
			if b.o.tellReaps {
				b.say(1).add("Reaped zombie process with pid=").num(pid)
				b.end()
			}
		}
		return pid, status
	}
}

func (b *init_) isService(pid int) bool { return b.srv != nil && pid == b.srv.pid }

func stopped(status int32) bool { return status&0xff == 0x7f }

// endOf is the code of a status, and the signal.
func endOf(status int32) (code, sig int) {
	if sig = int(status & 0x7f); sig != 0 {
		return codeSignalled + sig, sig
	}
	return int(status >> 8 & 0xff), 0
}

// childChanged is for what we started ourselves.
func (b *init_) childChanged(status int32) {
	if stopped(status) {
		if b.phase == phaseMain {
			b.mainStopped(int(status >> 8 & 0xff))
		}
		return
	}
	code, sig := endOf(status)
	if b.phase == phaseMain {
		b.mainEnded(code, sig)
		return
	}
	b.child = 0
	if b.phase == phaseTurns {
		b.turnsEnded(code)
		return
	}
	b.hookEnded(code)
}

// mainEnded settles the exit code, and what comes next.
func (b *init_) mainEnded(code, sig int) {
	b.takeTerminal()
	pid := b.child
	b.child, b.code, b.cause, b.dirty = 0, code, sig, true
	b.deadline = 0 // --stop-timeout was for it alone
	if b.o.ok[code>>6&3]>>(code&63)&1 != 0 {
		b.code = 0
	}
	b.oom = b.oomKills >= 0 && sig == sigKILL && b.countOOM() > b.oomKills
	b.tellEnd(pid, code, sig)
	switch {
	case b.o.as == asDumb:
		if b.o.session {
			_ = kill(-pid, sigTERM)
		}
		b.phase = phaseDone
	case b.o.onStop != nil:
		b.phase, b.stops = phaseStop, 0
		b.startHook(b.o.onStop)
	default:
		b.afterStop()
	}
}

// tellEnd is the line that says why we will be gone.
func (b *init_) tellEnd(pid, code, sig int) {
	switch {
	case b.o.as == asDumb && sig == 0:
		b.say(3).add("A child with PID ").num(pid).add(" exited with exit status ").num(code).add(".")
		b.end()
		b.say(3).add("Forwarded signal 15 to children.")
		b.end()
		b.say(3).add("Child exited with status ").num(code).add(". Goodbye.")
	case b.o.as == asDumb:
		b.say(3).add("A child with PID ").num(pid).add(" was terminated by signal ").num(sig).add(".")
		b.end()
		b.say(3).add("Forwarded signal 15 to children.")
		b.end()
		b.say(3).add("Child exited with status ").num(code).add(". Goodbye.")
	case sig == 0:
		b.say(2).add("Main child exited normally (with status '").num(code).add("')")
	default:
		level := 1
		if b.stopping && !b.oom {
			level = 2 // as it was asked to
		}
		if b.o.as == asTini {
			level = 2
		}
		b.say(level).add("Main child exited with signal (with signal '").sig(sig).add("')")
		if b.oom {
			b.msg.add(": out of memory")
		}
	}
	b.end()
}

// hookEnded goes on after --on-start or --on-stop.
func (b *init_) hookEnded(code int) {
	if b.phase == phaseStop {
		if code != 0 {
			b.say(1).add("--on-stop ended with ").num(code)
			b.end()
		}
		b.afterStop()
		return
	}
	switch {
	case code != 0:
		b.say(0).add("--on-start ended with ").num(code).add(": the command is not started")
		b.end()
		b.code = code
	case b.stopping:
		b.code = codeSignalled + sigTERM
	default:
		b.startNext()
		return
	}
	b.phase = phaseStop
	b.afterStop()
}
