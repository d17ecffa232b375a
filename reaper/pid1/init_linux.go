package pid1

import (
	"syscall"
	"unsafe"
)

// The signals that the init itself has to do with.
const (
	sigHUP  = 1
	sigINT  = 2
	sigQUIT = 3
	sigKILL = 9
	sigTERM = 15
	sigCHLD = 17
	sigCONT = 18
	sigSTOP = 19
	sigTSTP = 20
	sigTTIN = 21
	sigTTOU = 22
)

// The exit codes of our own. tini, dumb-init and catatonit have theirs.
const (
	codeUsage     = 125
	codeNoExec    = 126
	codeNoCommand = 127
	codeSignalled = 128 // + signal
)

// phase is how far a life has come.
type phase uint8

const (
	phaseStart phase = iota // --on-start runs
	phaseServe              // the service is not ready yet
	phaseMain
	phaseWait    // the command has ended; orphans may take their time
	phaseStop    // --on-stop runs
	phaseTurns   // the service ends what it holds
	phaseService // and is ended itself
	phaseRest    // what is left is being stopped
	phaseKill    // and killed
	phaseDone
)

// init_ is everything there is to know. It lives on boot's stack.
type init_ struct {
	o          options
	argv, envp list
	plain      bool   // the runtime runs: dispositions are not what they were
	mask       uint64 // what was blocked
	ignored    uint64 // what was ignored, and is not any more
	pid        int
	pgrp       int
	sigfd      int // signalfd, where rt_sigtimedwait is refused; or -1
	cwd        int // the directory that we came from, or -1

	phase      phase
	child      int // that runs: a hook or the command; 0 none
	code       int // to exit with
	cause      int // signal that ended the command, or 0
	oom        bool
	oomKills   int // the cgroup's counter when we began, or -1
	deadline   int64
	stops      int  // stop signals received in this phase
	stopping   bool // there was one
	waited     bool // for orphans
	given      bool // the terminal was handed over
	tty        bool // there is one
	swallow    uint64
	dirty      bool // the status file is not up to date
	written    int64
	statusTold bool        // that it cannot be written
	told       [512]uint64 // by pid, whoever was asked to end
	refused    int         // of those that were killed last, who may not be
	reaped     int
	orphans    int
	mainPID    int
	restAt     int64
	restEnd    int64    // when the grace of --serve is over, or 0
	srv        *service // nil without --serve

	childErr  syscall.Errno // set by childMain
	childKind kind
	childArgs list
	hookWords [4]*byte
	childTry  text // the path that is tried
	listen    text // the command's LISTEN_PID
	msg       text
	buf       [4096]byte
}

// boot is the whole life. sp is the stack as the kernel made it, mask what was
// blocked. It returns when this is nothing for an init.
func boot(sp unsafe.Pointer, mask uint64) {
	var b init_
	argc := *(*int)(sp)
	b.argv = list{(**byte)(unsafe.Add(sp, 8))}
	b.envp = b.argv.from(argc + 1)
	b.mask = mask
	if v, _, _ := parse(&b.o, b.argv, b.envp); v != verdictRun {
		return
	}
	b.live()
}

// plainArgs is what Run hands over.
type plainArgs struct {
	argv, envp list
	mask       uint64
}

// bootPlain is boot for a program that the runtime has started.
func bootPlain(arg unsafe.Pointer) {
	var b init_
	a := (*plainArgs)(arg)
	b.argv, b.envp, b.mask, b.plain = a.argv, a.envp, a.mask, true
	if v, _, _ := parse(&b.o, b.argv, b.envp); v != verdictRun {
		exit(codeUsage)
	}
	tid, _ := sys(syscall.SYS_GETTID, 0, 0, 0)
	setOwner(tid)
	entry, restorer := handler()
	for s := 1; s <= sigMax; s++ {
		var old action
		// SA_RESTART|SA_ONSTACK|SA_RESTORER|SA_SIGINFO; with everything blocked meanwhile.
		// Without SA_SIGINFO the kernel fills in no si_code for redirect to look at.
		set := action{handler: entry, flags: 0x1c000004, restorer: restorer, mask: everySig}
		if sigaction(s, nil, &old) == 0 && old.handler == 1 {
			b.ignored |= 1 << (s - 1)
		}
		_ = sigaction(s, &set, nil)
	}
	b.live()
}

func (b *init_) live() {
	b.settle()
	if b.o.pause {
		b.pauseForEver()
	}
	b.oomKills = b.countOOM()
	if b.o.onStart != nil {
		b.startHook(b.o.onStart)
	} else {
		b.startNext()
	}
	for b.phase != phaseDone {
		b.step()
	}
	b.leave()
}

// settle makes the process an init.
func (b *init_) settle() {
	b.sigfd, b.cwd = -1, -1
	b.pid, b.pgrp = getpid(), getpgrp()
	var old action
	dfl := action{}
	if !b.plain && sigaction(sigCHLD, &dfl, &old) == 0 && old.handler == 1 {
		b.ignored |= 1 << (sigCHLD - 1) // nothing would be left to wait for
	}
	if b.plain {
		_ = sigaction(sigCHLD, nil, &old)
		old.flags &^= 0x2 // SA_NOCLDWAIT
		_ = sigaction(sigCHLD, &old, nil)
	}
	if b.o.pdeath != 0 {
		b.dieWithParent()
	}
	b.adopt()
	dot := [2]byte{'.'}
	if fd, e := open(&dot[0], oPath|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0); e == 0 {
		b.cwd = above(fd)
		root := [2]byte{'/'}
		_, _ = sys(syscall.SYS_CHDIR, addr(&root[0]), 0, 0)
	}
	b.openTerminal()
}

// dieWithParent has the signal sent to us when our parent ends. One that ended
// just before is made up for: the signal is there then, and goes the usual way.
func (b *init_) dieWithParent() {
	parent := getppid()
	if e := prctl(prSetPdeathsig, uintptr(b.o.pdeath)); e != 0 {
		b.say(1).add("parent-death signal: ").add("prctl: ")
		errText(&b.msg, e)
		b.end()
	}
	if getppid() != parent {
		_ = kill(b.pid, b.o.pdeath)
	}
}

// adopt makes us the parent of orphans where the kernel did not.
func (b *init_) adopt() {
	if b.pid == 1 {
		return
	}
	var is int32
	if prctl(prGetSubreaper, addr(&is)) == 0 && is != 0 {
		return
	}
	if b.o.as == asTini && !b.o.subreaper {
		b.say(1).add("Tini is not running as PID 1 and isn't registered as a child subreaper: zombie reaping won't work (try -s)")
		b.end()
		return
	}
	if b.o.as == asDumb {
		return
	}
	if e := prctl(prSetSubreaper, 1); e != 0 {
		b.say(1).add("not PID 1, and cannot become a subreaper (prctl: ")
		errText(&b.msg, e).add("): orphans will not be reaped")
		b.end()
	} else if b.o.as == asSelf && !b.o.subreaper {
		b.say(1).add("not PID 1: now a subreaper, orphans below are reaped")
		b.end()
	}
}

// pauseForEver reaps until it is told to end.
func (b *init_) pauseForEver() {
	closeFrom(3)
	for {
		switch b.wait(-1, everySig) {
		case sigTERM, sigINT:
			exit(0)
		case sigCHLD:
			for {
				if pid, _ := b.reapOne(); pid <= 0 {
					break
				}
			}
		}
	}
}

// say begins a line for the log if the verbosity is that high; end ends it.
func (b *init_) say(level int) *text {
	b.msg.n = 0
	if b.o.verbosity < level {
		b.msg.n = -1
		return b.discard()
	}
	switch b.o.as {
	case asDumb:
		return b.msg.add("[dumb-init] ")
	case asTini:
		switch level {
		case 0:
			b.msg.add("[FATAL tini (")
		case 1:
			b.msg.add("[WARN  tini (")
		case 2:
			b.msg.add("[INFO  tini (")
		default:
			b.msg.add("[DEBUG tini (")
		}
		return b.msg.num(b.pid).add(")] ")
	case asCatatonit:
		return b.msg.add("catatonit: ")
	}
	return b.msg.add("pinfold-init: ")
}

// discard makes the line one that end drops.
func (b *init_) discard() *text {
	b.msg.n = len(b.msg.b)
	return &b.msg
}

func (b *init_) end() {
	if b.msg.n < len(b.msg.b) {
		b.msg.add("\n").write(2)
	}
}
