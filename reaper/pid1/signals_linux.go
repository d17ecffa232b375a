package pid1

import "syscall"

// wait waits for one of a set of signals, at most ms (-1: for ever), and takes it.
// 0 means that there was none in time.
func (b *init_) wait(ms int64, set uint64) (sig int) {
	sig, _ = b.waitInfo(ms, set, &siginfo{})
	return sig
}

func (b *init_) waitInfo(ms int64, set uint64, info *siginfo) (sig int, e syscall.Errno) {
	for b.sigfd < 0 {
		var t timespec
		var limit *timespec
		if ms >= 0 {
			t = timespec{ms / 1000, ms % 1000 * 1e6}
			limit = &t
		}
		r, e := sys4(syscall.SYS_RT_SIGTIMEDWAIT, addr(&set), addr(info), addr(limit), 8)
		switch e {
		case 0:
			return int(r), 0
		case syscall.EINTR:
			if ms < 0 {
				continue
			}
			return 0, 0
		case syscall.EAGAIN:
			return 0, 0
		}
		// A filter forbids it: signalfd does as well.
		all := everySig
		fd, e2 := sys4(sysSignalfd4, ^uintptr(0), addr(&all), 8, syscall.O_CLOEXEC|syscall.O_NONBLOCK)
		if e2 != 0 {
			return b.noSignals(e)
		}
		if b.sigfd = above(int(fd)); b.sigfd < 0 {
			return b.noSignals(e)
		}
	}
	return b.readSignal(ms, set, info)
}

// readSignal is waitInfo with signalfd. A set that leaves signals out cannot be
// had there but by telling it so first.
func (b *init_) readSignal(ms int64, set uint64, info *siginfo) (int, syscall.Errno) {
	_, _ = sys4(sysSignalfd4, uintptr(b.sigfd), addr(&set), 8, 0)
	p := struct {
		fd              int32
		events, revents int16
	}{int32(b.sigfd), 1, 0}
	var t timespec
	var limit *timespec
	if ms >= 0 {
		t = timespec{ms / 1000, ms % 1000 * 1e6}
		limit = &t
	}
	_, _, _ = syscall.RawSyscall6(sysPpoll, addr(&p), 1, addr(limit), 0, 0, 0)
	var s struct {
		signo       uint32
		errno, code int32
		pid, uid    uint32
		_           [108]byte
	}
	if n, e := sys(syscall.SYS_READ, uintptr(b.sigfd), addr(&s), 128); e != 0 || n != 128 {
		return 0, 0
	}
	*info = siginfo{signo: int32(s.signo), code: s.code, pid: int32(s.pid)}
	if s.code == siQueue {
		info.code = siUser // its value is not passed on from here
	}
	return int(s.signo), 0
}

// noSignals is the last resort where neither call is to be had: signals cannot be
// passed on, but children are still waited for.
func (b *init_) noSignals(e syscall.Errno) (int, syscall.Errno) {
	if b.swallow>>63 == 0 {
		b.swallow |= 1 << 63
		b.say(0).add("rt_sigtimedwait and signalfd: ")
		errText(&b.msg, e).add(": signals will not be passed on")
		b.end()
	}
	t := timespec{0, 20e6}
	_, _ = sys(syscall.SYS_NANOSLEEP, addr(&t), 0, 0)
	return sigCHLD, 0
}

// isStop tells signals that ask to end.
func (b *init_) isStop(sig int) bool {
	return sig == sigTERM || sig == sigINT || sig == sigQUIT || sig == b.o.stopSignal
}

// passOn handles a signal that is not SIGCHLD.
func (b *init_) passOn(sig int, info *siginfo) {
	if sig < 1 || sig > sigMax {
		return
	}
	if b.swallow>>(sig&63)&1 != 0 && (sig == sigHUP || sig == sigCONT) {
		b.swallow &^= 1 << (sig & 63)
		b.say(3).add("Ignoring tty hand-off signal ").num(sig).add(".")
		b.end()
		return
	}
	if (sig == sigTTIN || sig == sigTTOU) && info.code == siKernel && !b.o.session {
		return // our own: we are in the background
	}
	if b.o.as == asTini && (b.isFault(sig) || sig == sigTTIN || sig == sigTTOU) {
		return
	}
	if b.o.as == asCatatonit && (b.isFault(sig) || sig >= sigTSTP && sig <= sigTTOU) {
		return
	}
	if b.isStop(sig) {
		b.stopAsked()
	}
	to := int(b.o.rewrite[uint(sig)%(sigMax+1)])
	switch {
	case to == 0:
		b.say(3).add("dropped ").sig(sig)
		b.end()
	case b.child > 0 && b.phase != phaseTurns:
		b.send(sig, to, info)
	case b.phase == phaseWait && b.isStop(sig) && !b.serving():
		b.signalChildren(to)
	}
	if b.o.as == asDumb && sig >= sigTSTP && sig <= sigTTOU {
		b.say(3).add("Suspending self due to TTY signal.")
		b.end()
		_ = kill(b.pid, sigSTOP)
	}
}

// isFault tells the signals that tell of a fault; kill(2) sends them as well.
func (b *init_) isFault(sig int) bool {
	const faults = 1<<4 | 1<<5 | 1<<6 | 1<<7 | 1<<8 | 1<<11 | 1<<31
	return sig < 32 && faults>>sig&1 != 0
}

// send sends a signal to what runs. It is in its group or session since before it
// could be seen (see spawn), but may have left that.
func (b *init_) send(sig, to int, info *siginfo) {
	e := syscall.ESRCH
	if b.o.group && !b.o.noGroup || b.phase != phaseMain {
		e = kill(-b.child, to)
	}
	if e != 0 {
		e = b.sendOne(sig, to, info)
	}
	b.logSent(sig, to, e)
}

// sendOne keeps the value of sigqueue(3).
func (b *init_) sendOne(sig, to int, info *siginfo) syscall.Errno {
	if info.code == siQueue {
		info.signo = int32(to)
		if _, e := sys(syscall.SYS_RT_SIGQUEUEINFO, uintptr(b.child), uintptr(to), addr(info)); e == 0 {
			return 0
		}
	}
	return kill(b.child, to)
}

func (b *init_) logSent(sig, to int, e syscall.Errno) {
	switch {
	case b.o.as == asDumb:
		b.say(3).add("Received signal ").num(sig).add(".")
		b.end()
		if to != sig {
			b.say(3).add("Translating signal ").num(sig).add(" to ").num(to).add(".")
			b.end()
		}
		b.say(3).add("Forwarded signal ").num(to).add(" to children.")
	case e != 0:
		b.say(1).add("pass on ").sig(to).add(": ")
		errText(&b.msg, e)
	default:
		b.say(3).add("passed on ").sig(sig)
		if to != sig {
			b.msg.add(" as ").sig(to)
		}
	}
	b.end()
}
