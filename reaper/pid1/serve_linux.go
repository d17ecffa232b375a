package pid1

import (
	"syscall"
	"unsafe"
)

// serviceState is how far the service has come.
type serviceState uint8

const (
	serviceDown serviceState = iota
	serviceStarting
	serviceReady
)

// How long things of the service may take, in ms.
const (
	serviceBound  = 30_000 // until it is ready, unless --serve-timeout says otherwise
	serviceGrace  = 1000   // from TERM to KILL, when its turns are over
	turnsMore     = 1000   // than the grace, for the turns to be seen ended
	restartFirst  = 100    // between its end and a new one; doubled each time,
	restartMost   = 10_000 // up to here;
	restartForget = 60_000 // one that lived so long begins anew
	lookSoon      = 2      // between two looks for its word, in the first
	lookSoonFor   = 300
	lookLater     = 20
)

// service is `pinfold serve` beside the command. It lives in pages of its own, so
// that an init without --serve does not pay for it.
type service struct {
	pid      int // 0: it does not run
	said     int // the pipe in which it tells that it is ready, or -1
	sayTo    int // its other end, while it is started
	state    serviceState
	at       int64 // when it is to be looked after next
	began    int64
	pause    int64 // before the next one is started, ms
	restarts int
	over     bool // no new one is started
	split    bool // we and the command have cgroups of our own
	alone    bool // base is the root of a cgroup namespace
	argsTell bool // the child is `pinfold stop`, not the service
	moveErr  syscall.Errno

	program  text // absolute, or a name for PATH
	self     text // us
	runDir   text
	stateDir text
	base     text // the cgroup that we were in
	initLeaf text
	leaf     text // the command's
	why      text // there are no sub-cgroups
	socket   text // PINFOLD_SOCKET=..., for the command
	line     text // what it has said
	grade    text
	number   text // a time for an argument
	args     [16]*byte
	env      list // the service's
}

// beginService starts what comes before the command.
func (b *init_) beginService() {
	b.phase, b.dirty = phaseServe, true
	p := mapPages(unsafe.Sizeof(service{}))
	if p == nil {
		b.noService(syscall.ENOMEM)
		return
	}
	s := (*service)(p)
	b.srv = s
	s.said, s.sayTo, s.pause = -1, -1, restartFirst
	b.findProgram()
	if !b.serviceDirs() || !b.serviceEnv() {
		b.say(0).add("--serve: no directory for the service: none of /run/pinfold, $XDG_RUNTIME_DIR/pinfold, /tmp and /dev/shm can be had; set PINFOLD_RUNTIME_DIR")
		b.end()
		b.withoutService()
		return
	}
	b.splitCgroup()
	b.startService()
}

// serving tells whether the service is to run.
func (b *init_) serving() bool { return b.srv != nil && !b.srv.over }

// serviceAt is when the service wants to be looked after, or -1.
func (b *init_) serviceAt() int64 {
	if !b.serving() || b.srv.state == serviceReady {
		return -1
	}
	return b.srv.at
}

// serviceDue looks whether it is ready, or starts it again.
func (b *init_) serviceDue(t int64) {
	s := b.srv
	if at := b.serviceAt(); at < 0 || t < at {
		return
	}
	switch {
	case s.state == serviceDown:
		b.startService()
	case b.serviceSaid():
		b.serviceIsReady()
	case t-s.began > int64(b.o.serveBound):
		b.serviceLate()
	case t-s.began < lookSoonFor:
		s.at = t + lookSoon
	default:
		s.at = t + lookLater
	}
}

// startService starts it; it is ready only later.
func (b *init_) startService() {
	s := b.srv
	s.began, s.line.n, s.state = now(), 0, serviceStarting
	s.at = s.began + lookSoon
	e := b.openSaid()
	if e == 0 {
		b.serviceArgs()
		was := b.child
		e = b.spawn(list{hide(&s.args[0])}, kindService)
		s.pid, b.child = b.child, was
		closeFD(s.sayTo)
	}
	if e == 0 {
		b.say(3).add("started ").add(str(s.args[0])).add(" as ").num(s.pid)
		b.end()
		return
	}
	s.pid, s.state = 0, serviceDown
	b.closeSaid()
	b.serviceFailed()
	if errText(b.sayService(), e); e == syscall.ENOENT {
		b.msg.add(" (--serve=PATH tells where it is)")
	}
	b.end()
	b.serviceAgain()
}

// sayService begins a line that tells why the service does not run.
func (b *init_) sayService() *text {
	level := 1
	if b.phase == phaseServe && !b.o.serveOptional {
		level = 0
	}
	return b.say(level).add("start ").add(str(b.srv.program.path())).add(" serve: ")
}

// serviceFailed counts one that has come to nothing.
func (b *init_) serviceFailed() {
	s := b.srv
	t := now()
	if t-s.began > restartForget {
		s.pause = restartFirst
	}
	s.at = t + s.pause
	b.dirty = true
}

// serviceAgain goes on after it: another is started later, if one is wanted.
func (b *init_) serviceAgain() {
	s := b.srv
	s.restarts++
	s.pause = min(s.pause*2, restartMost)
	if b.phase != phaseServe {
		return
	}
	if b.o.serveOptional {
		b.startMain()
		return
	}
	b.code = codeUsage
	b.stopService()
}

// noService is when it cannot even be tried.
func (b *init_) noService(e syscall.Errno) {
	b.say(0).add("--serve: ")
	errText(&b.msg, e)
	b.end()
	b.withoutService()
}

// withoutService goes on where no service can ever run.
func (b *init_) withoutService() {
	if b.srv != nil {
		b.srv.over = true
	}
	switch {
	case b.o.serveOptional:
		b.startMain()
	case b.srv != nil:
		b.code = codeUsage
		b.afterService()
	default:
		b.code, b.phase = codeUsage, phaseDone
	}
}

// serviceEnded is when it has been reaped.
func (b *init_) serviceEnded(status int32) {
	s := b.srv
	if stopped(status) {
		return
	}
	b.closeSaid()
	s.pid, s.state = 0, serviceDown
	if s.over {
		b.afterService()
		return
	}
	b.serviceFailed()
	code, sig := endOf(status)
	if t := b.sayService(); sig != 0 {
		t.add("killed by ").sig(sig)
	} else {
		t.add("ended with ").num(code)
	}
	if b.phase != phaseServe || b.o.serveOptional {
		b.msg.add("; turns go on, another is started in ").num(int(s.pause)).add(" ms")
	} else {
		b.msg.add(" before it was ready; the command is not started (--serve-optional: is)")
	}
	b.end()
	b.serviceAgain()
}

// serviceLate is when it has not said in time that it is ready.
func (b *init_) serviceLate() {
	s := b.srv
	b.sayService().add("not ready after ").num(b.o.serveBound).add(" ms")
	b.end()
	switch {
	case b.phase == phaseServe && b.o.serveOptional: // it may take its time
		b.startMain()
	case b.phase == phaseServe:
		b.code = codeUsage
		b.stopService()
		return
	}
	s.began, s.at = now(), now()+lookLater
}

// serviceIsReady tells at which grade turns are held, and lets the command start.
func (b *init_) serviceIsReady() {
	s := b.srv
	s.state, b.dirty = serviceReady, true
	b.closeSaid()
	socket, grade := b.readLine()
	s.grade.n = 0
	s.grade.add(grade)
	again := ""
	if s.restarts > 0 {
		again = "again "
	}
	b.say(1).add("turns are held at grade ").add(str(s.grade.path()))
	if s.why.n > 0 && str(s.grade.path()) != "cgroup" {
		b.msg.add(" (").add(str(s.why.path())).add(")")
	}
	b.msg.add(": the service is ").add(again).add("ready on ").add(socket)
	b.end()
	if b.phase == phaseServe {
		b.startMain()
	}
}
