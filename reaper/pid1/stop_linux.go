package pid1

import "syscall"

// killRounds is how often, in ms, what does not end is killed again, and for how
// long: a process in uninterruptible sleep may never end.
const (
	killPause = 20
	killMost  = 3000
)

// statusPause is the least time between two versions of the status file, in ms.
const statusPause = 500

// timeout is how long nothing is due, in ms.
func (b *init_) timeout() int64 {
	at := int64(-1)
	if b.deadline != 0 {
		at = b.deadline
	}
	if b.dirty && b.o.status != nil {
		if w := b.written + statusPause; at < 0 || w < at {
			at = w
		}
	}
	if s := b.serviceAt(); s >= 0 && (at < 0 || s < at) {
		at = s
	}
	if at < 0 {
		return -1
	}
	return max(0, at-now())
}

// due does what the time has come for.
func (b *init_) due() {
	if b.phase == phaseDone || b.deadline == 0 && !b.dirty && b.srv == nil {
		return
	}
	t := now()
	b.serviceDue(t)
	if b.dirty && b.o.status != nil && t >= b.written+statusPause {
		b.writeStatus()
	}
	if b.o.status == nil {
		b.dirty = false
	}
	if b.deadline == 0 || t < b.deadline {
		return
	}
	b.deadline = 0
	switch b.phase {
	case phaseMain:
		if b.stops > 1 {
			b.say(1).add("a second stop signal: the command is killed")
		} else {
			b.say(1).add("not ended ").num(b.o.stopGrace).add(" ms after the stop signal: killed")
		}
		b.end()
		if kill(-b.child, sigKILL) != 0 || b.o.noGroup {
			_ = kill(b.child, sigKILL)
		}
	case phaseTurns:
		b.turnsLate()
	case phaseService:
		_ = kill(b.srv.pid, sigKILL)
	case phaseWait:
		if b.stops > 0 {
			b.say(1).add("orphans have not ended after the stop signal")
		} else {
			b.say(1).add("orphans are left after ").num(b.o.waitMost).add(" ms")
		}
		b.end()
		b.waitOver()
	case phaseRest, phaseKill:
		b.killRest(t)
	}
}

// stopAsked starts clocks when a stop signal comes; a second one lets them run out.
func (b *init_) stopAsked() {
	b.stops++
	b.stopping = true
	switch b.phase {
	case phaseMain:
		switch {
		case b.o.stopGrace == 0:
		case b.stops > 1:
			b.deadline = now()
		default:
			b.deadline = now() + int64(b.o.stopGrace)
		}
	case phaseStop, phaseStart:
		if b.stops > 1 {
			_ = kill(-b.child, sigKILL)
		}
	case phaseServe:
		b.code = codeSignalled + sigTERM
		b.stopService()
	case phaseTurns, phaseService:
		b.restEnd = now() // for all that is still to come
		b.deadline = b.restEnd
	case phaseRest:
		b.deadline = now()
	case phaseWait:
		if b.serving() {
			b.askOrphans()
		} else if b.o.killRest {
			b.waitOver()
		} else if b.stops > 1 {
			b.phase = phaseDone
		}
	}
}

// afterStop is when nothing that we started runs any more.
func (b *init_) afterStop() {
	b.child, b.deadline = 0, 0
	switch {
	case b.o.waitOrphans && !b.stopping && !b.waited && (!b.serving() || b.orphansLeft()):
		b.phase, b.waited = phaseWait, true
		if b.o.waitMost > 0 {
			b.deadline = now() + int64(b.o.waitMost)
		}
	default:
		b.waitOver()
	}
}

// waitOver is when nobody is waited for: the service, which orphans may want, is
// there until now.
func (b *init_) waitOver() {
	if b.serving() {
		b.endTurns()
	} else {
		b.stopRest()
	}
}

// noChildren is when the last one is gone.
func (b *init_) noChildren() {
	switch {
	case b.phase == phaseWait && b.serving(): // which is being started again
		b.waitOver()
	case b.phase >= phaseWait && b.phase != phaseStop:
		b.phase = phaseDone
	}
}

// stopRest asks what is left to end. Each process is asked once; what it leaves
// behind becomes our child, and is asked then.
func (b *init_) stopRest() {
	if !b.o.killRest {
		b.phase = phaseDone
		return
	}
	b.phase, b.restAt = phaseRest, now()
	b.deadline = b.restAt + int64(b.o.grace)
	if b.restEnd != 0 {
		b.deadline = max(b.restAt, b.restEnd)
	}
	b.askRest()
}

func (b *init_) askRest() { b.signalChildren(sigTERM) }

// killRest kills what is left, again and again: each one that ends may leave us
// its children.
func (b *init_) killRest(t int64) {
	if b.phase == phaseRest {
		b.phase, b.restAt = phaseKill, t
	}
	b.refused = 0
	n := b.signalChildren(sigKILL)
	if t-b.restAt > killMost {
		b.tellLeft(n, "")
		b.phase = phaseDone
		return
	}
	b.deadline = t + killPause
}

// tellLeft says who stays, of n that were to be killed; fewer than 0: not all can
// be counted.
func (b *init_) tellLeft(n int, where string) {
	if r := b.refused; r > 0 {
		b.say(1)
		uid, _ := sys(syscall.SYS_GETEUID, 0, 0, 0)
		b.countText(r, where)
		b.msg.add(" may not be killed by user ").num(int(uid)).add(": ")
		errText(&b.msg, syscall.EPERM)
		b.end()
		n -= r
	}
	if n == 0 {
		return
	}
	b.say(1)
	b.countText(n, where)
	if n == 1 {
		b.msg.add(" has")
	} else {
		b.msg.add(" have")
	}
	b.msg.add(" not ended though killed for ").num(killMost).add(" ms")
	b.end()
}

// countText adds "1 process", "2 processes".
func (b *init_) countText(n int, where string) {
	switch {
	case n == 1:
		b.msg.add("1 process")
	case n < 0:
		b.msg.add("processes")
	default:
		b.msg.num(n).add(" processes")
	}
	b.msg.add(where)
}

// leave is the end.
func (b *init_) leave() {
	if b.o.killCgroup {
		b.killOthers()
	}
	if b.o.status != nil {
		b.writeStatus()
	}
	b.leaveCgroup()
	exit(b.code)
}
