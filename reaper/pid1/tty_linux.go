package pid1

import "syscall"

// terminal opens the controlling terminal, or has descriptor 0 try. Nothing that
// is done with it is worth an error: there may be none, or no permission.
func terminal() (fd int, own bool) {
	path := [...]byte{'/', 'd', 'e', 'v', '/', 't', 't', 'y', 0}
	if fd, e := open(&path[0], syscall.O_RDWR|syscall.O_NOCTTY|syscall.O_CLOEXEC, 0); e == 0 {
		return fd, true
	}
	return 0, false
}

// foreground is the terminal's process group, or -1.
func foreground() int {
	fd, own := terminal()
	var pgrp int32
	_, e := sys(syscall.SYS_IOCTL, uintptr(fd), tiocgpgrp, addr(&pgrp))
	if own {
		closeFD(fd)
	}
	if e != 0 {
		return -1
	}
	return int(pgrp)
}

// openTerminal finds out whether there is a terminal, and whether we are to hand
// it over: one that somebody else works at is left alone.
func (b *init_) openTerminal() {
	fg := foreground()
	b.tty = fg >= 0
	b.given = b.tty && fg == b.pgrp && !b.o.noGroup && !b.o.session
}

// giveTerminal makes a process group the one that the terminal's keys reach. All
// signals are blocked, so the kernel asks no questions (SIGTTOU).
func (b *init_) giveTerminal(pgrp int) {
	fd, own := terminal()
	p := int32(pgrp)
	_, _ = sys(syscall.SYS_IOCTL, uintptr(fd), syscall.TIOCSPGRP, addr(&p))
	if own {
		closeFD(fd)
	}
}

// takeTerminal takes it back, unless another group has it by now.
func (b *init_) takeTerminal() {
	if !b.given {
		return
	}
	if fg := foreground(); fg == b.mainPID || fg > 0 && kill(-fg, 0) == syscall.ESRCH {
		b.giveTerminal(b.pgrp)
	}
}

// detachTerminal gives up the terminal for the session that the command gets. As
// its leader we are sent HUP and CONT for that, which are nobody else's business.
func (b *init_) detachTerminal() {
	if !b.o.session {
		return
	}
	leader := getsid(0) == b.pid || b.pid == 1
	if _, e := sys(syscall.SYS_IOCTL, 0, syscall.TIOCNOTTY, 0); e == 0 && leader {
		b.swallow = 1<<sigHUP | 1<<sigCONT
	}
}

// nobodyContinues tells whether whoever stops us would wait for ever: there is no
// shell with job control above.
func (b *init_) nobodyContinues() bool {
	parent, sid := getppid(), getsid(0)
	return b.pid == 1 || parent == 0 || b.pgrp == sid || getsid(parent) != sid
}

// mainStopped is called when the command was stopped by sig. With a terminal that
// is ^Z, or the like, and meant for the group that we took it from: that stops as
// well, so that the shell above goes on; and with it, later, the command.
func (b *init_) mainStopped(sig int) {
	if b.o.session || b.o.noGroup || !b.tty || sig < sigTSTP || sig > sigTTOU {
		return
	}
	if b.nobodyContinues() {
		if sig == sigTSTP {
			_ = kill(-b.child, sigCONT)
		}
		return
	}
	if b.given && sig == sigTSTP {
		b.takeTerminal()
		_ = kill(0, sigTSTP) // ours is blocked, and gone with the CONT that wakes us
	}
	_ = kill(b.pid, sigSTOP)
	cont := uint64(1) << (sigCONT - 1)
	_ = b.wait(0, cont) // it has the group, not only the command
	if foreground() == b.pgrp {
		b.given = true
		b.giveTerminal(b.child)
	}
	_ = kill(-b.child, sigCONT)
}
