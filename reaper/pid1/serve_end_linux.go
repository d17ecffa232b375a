package pid1

import "syscall"

// What comes when the command has ended: the turns, then the service, then
// whatever is left.

// askOrphans is for a stop signal while orphans are waited for, of which one may be
// the gateway: they are asked, and turns are ended when they are gone, or have had
// their time. At the second signal all is killed.
func (b *init_) askOrphans() {
	t := now()
	if b.stops > 1 {
		b.restEnd = t
		b.waitOver()
		b.stops, b.deadline = 1, t
		return
	}
	b.dirty = true
	if b.o.stopGrace > 0 {
		b.deadline = t + int64(b.o.stopGrace)
	} else {
		b.restEnd = t + int64(b.o.grace) // for the turns as well
		b.deadline = t + int64(b.o.grace)/2
	}
	b.askRest()
}

// endTurns has the service end every turn and job, within the grace.
func (b *init_) endTurns() {
	s := b.srv
	b.phase, b.dirty = phaseTurns, true
	b.stops = 0
	t := now()
	if b.restEnd == 0 {
		b.restEnd = t + int64(b.o.grace)
	}
	b.deadline = max(t, b.restEnd) + turnsMore
	if s.state != serviceReady {
		b.stopService()
		return
	}
	s.argsTell = true
	b.stopArgs(int(max(0, b.restEnd-t)))
	if e := b.spawn(list{hide(&s.args[0])}, kindService); e != 0 {
		b.say(1).add("start ").add(str(s.args[0])).add(" stop: ")
		errText(&b.msg, e)
		b.end()
		b.stopService()
	}
}

// turnsEnded goes on after `pinfold stop`.
func (b *init_) turnsEnded(code int) {
	if code != 0 {
		b.say(1).add("pinfold stop --turns ended with ").num(code)
		b.end()
	}
	b.stopService()
}

// turnsLate is when the grace is over: the kernel ends the turns.
func (b *init_) turnsLate() {
	if b.stops > 0 {
		b.say(1).add("a stop signal: turns are killed at once")
	} else {
		b.say(1).add("turns have not ended in time: killed")
	}
	b.end()
	b.killTurns()
	if b.child > 0 {
		_ = kill(-b.child, sigKILL)
		b.child = 0 // whatever it ended with
	}
	b.stopService()
}

// stopService ends the service itself: nothing is begun any more.
func (b *init_) stopService() {
	s := b.srv
	b.phase, b.dirty, s.over = phaseService, true, true
	if s.pid == 0 {
		b.afterService()
		return
	}
	_ = kill(s.pid, sigTERM)
	b.deadline = now() + serviceGrace
}

// afterService is when it is gone: what it has left running goes, too.
func (b *init_) afterService() {
	b.srv.over = true
	b.killTurns()
	if b.restEnd == 0 {
		b.restEnd = now() + int64(b.o.grace)
	}
	b.afterStop()
}

// killTurns kills the turns' cgroup at one stroke. It needs nothing but the kernel.
func (b *init_) killTurns() {
	var t text
	if b.turnsDir(&t) {
		writeFile(t.add("/cgroup.kill").path(), "1")
	}
}

// turnsDir is the cgroup that this service's turns are in: no other's.
func (b *init_) turnsDir(t *text) bool {
	s := b.srv
	if !s.split {
		return false
	}
	t.n = 0
	t.add(str(s.runDir.path())).add("/instance")
	fd, e := open(t.path(), oRdonlyCloexec, 0)
	if e != 0 {
		return false
	}
	n := min(read(fd, &b.buf[0], 64), 63)
	closeFD(fd)
	for i := range n {
		if c := b.buf[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false // the service writes no other
		}
	}
	if n != 8 {
		return false
	}
	b.buf[n] = 0
	t.n = 0
	t.add(str(s.base.path())).add("/pinfold-").add(str(&b.buf[0]))
	return true
}

// How long, in ms, and how deep turns' cgroups are removed. A program may have made
// some below its own.
const (
	removeMost = 500
	removeDeep = 32
)

// removeTurns removes the turns' cgroups where the service did not: the empty ones,
// as the kernel removes no other. Who was killed may take a moment to be gone.
func (b *init_) removeTurns() {
	var t text
	if !b.turnsDir(&t) || !access(t.path(), 0) {
		return
	}
	for until := now() + removeMost; !b.removeTree(&t, removeDeep, until); {
		if now() > until {
			b.say(1).add("remove ").add(str(t.path())).add(": not gone after ").num(removeMost).add(" ms")
			b.end()
			return
		}
		p := timespec{0, killPause * 1e6}
		_, _ = sys(syscall.SYS_NANOSLEEP, addr(&p), 0, 0)
	}
}

// removeTree removes a cgroup and those below, and tells whether they are gone.
func (b *init_) removeTree(dir *text, deep int, until int64) bool {
	n := dir.n
	for skip := 0; deep > 0 && now() <= until && b.subdir(dir, skip); {
		if !b.removeTree(dir, deep-1, until) {
			skip++
		}
		dir.n = n
	}
	dir.n = n
	remove(dir.path())
	return !access(dir.path(), 0)
}

// leaveCgroup removes what we made, as far as it can be removed: a container's
// runtime does so anyway.
func (b *init_) leaveCgroup() {
	if b.srv == nil || !b.srv.split || b.pid == 1 {
		return
	}
	s := b.srv
	remove(s.leaf.path())
	b.removeTurns()
	var t text
	if !b.atRoot() {
		const most = 4
		names := [most]string{"-cpu", "-io", "-memory", "-pids"}
		for i := range names {
			t.n = 0
			writeFile(t.add(str(s.base.path())).add("/cgroup.subtree_control").path(), names[i])
		}
	}
	t.n = 0
	writeFile(t.add(str(s.base.path())).add("/cgroup.procs").path(), "0")
	remove(s.initLeaf.path())
}

// atRoot tells whether the cgroup that we came from is the root of all.
func (b *init_) atRoot() bool {
	var t text
	fd, e := open(t.add(str(b.srv.base.path())).add("/cgroup.events").path(), oRdonlyCloexec, 0)
	if e == 0 {
		closeFD(fd)
	}
	return e != 0
}
