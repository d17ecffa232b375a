package pid1

// What comes when the command has ended: the turns, then the service, then
// whatever is left.

// endTurns has the service end every turn and job, within the grace.
func (b *init_) endTurns() {
	s := b.srv
	b.phase, b.dirty = phaseTurns, true
	b.stops = 0
	t := now()
	b.restEnd = t + int64(b.o.grace)
	b.deadline = b.restEnd + turnsMore
	if s.state != serviceReady {
		b.stopService()
		return
	}
	s.argsTell = true
	b.stopArgs()
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
	s := b.srv
	if !s.split {
		return
	}
	var t text
	t.add(str(s.runDir.path())).add("/instance")
	fd, e := open(t.path(), oRdonlyCloexec, 0)
	if e != 0 {
		return
	}
	n := min(read(fd, &b.buf[0], 64), 63)
	closeFD(fd)
	for i := range n {
		if c := b.buf[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return // the service writes no other
		}
	}
	if n != 8 {
		return
	}
	b.buf[n] = 0
	t.n = 0
	writeFile(t.add(str(s.base.path())).add("/pinfold-").add(str(&b.buf[0])).add("/cgroup.kill").path(), "1")
}

// leaveCgroup removes what we made, as far as it can be removed: a container's
// runtime does so anyway.
func (b *init_) leaveCgroup() {
	if b.srv == nil || !b.srv.split || b.pid == 1 {
		return
	}
	s := b.srv
	remove(s.leaf.path())
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
