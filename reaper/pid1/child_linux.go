package pid1

import (
	"syscall"
	"unsafe"
)

// kind is what a child is to be.
type kind uint8

const (
	kindMain kind = iota
	kindHook
	kindService
)

var (
	shell     = [...]byte{'/', 'b', 'i', 'n', '/', 's', 'h', 0}
	shellFlag = [...]byte{'-', 'c', 0}
)

// spawn starts the program of args as b.child. It returns when that executes.
func (b *init_) spawn(args list, k kind) syscall.Errno {
	b.childArgs, b.childErr, b.childKind = args, 0, k
	pid := int(vfork(unsafe.Pointer(b)))
	if pid < 0 && pid > -4096 {
		return syscall.Errno(-pid)
	}
	if b.childErr != 0 {
		var status int32
		_, _ = sys4(syscall.SYS_WAIT4, uintptr(pid), addr(&status), wAll, 0)
		return b.childErr
	}
	b.child = pid
	return 0
}

// childMain runs in the clone, which shares our memory until it executes, with
// all signals blocked. None of its refusals is fatal but the last.
func childMain(arg unsafe.Pointer) {
	b := (*init_)(arg)
	if b.childKind == kindService {
		b.becomeService()
		b.childErr = b.execute(b.childArgs, b.srv.env)
		exit(codeNoCommand)
	}
	hook := b.childKind == kindHook
	if !hook {
		b.joinLeaf()
	}
	b.isolate(hook)
	if b.o.pdeath != 0 && !hook {
		_ = prctl(prSetPdeathsig, uintptr(b.o.pdeath))
		if getppid() != b.pid && b.pid != 1 {
			_ = kill(getpid(), b.o.pdeath)
		}
	}
	if b.cwd >= 0 {
		_, _ = sys(syscall.SYS_FCHDIR, uintptr(b.cwd), 0, 0)
	}
	if !hook {
		b.rewriteListenPID()
	}
	b.restoreSignals()
	b.childErr = b.execute(b.childArgs, b.envp)
	exit(codeNoCommand)
}

// isolate makes a group or session, and takes the terminal.
func (b *init_) isolate(hook bool) {
	switch {
	case b.o.noGroup && !hook:
	case b.o.session && !hook:
		_, _ = sys(syscall.SYS_SETSID, 0, 0, 0)
		_, _ = sys(syscall.SYS_IOCTL, 0, tioctty, 0)
	default:
		_, _ = sys(syscall.SYS_SETPGID, 0, 0, 0)
		if !hook && b.given {
			b.giveTerminal(getpid())
		}
	}
}

// restoreSignals gives mask and dispositions back as they were inherited.
func (b *init_) restoreSignals() {
	ign, dfl := action{handler: 1}, action{}
	for s := 1; s <= sigMax; s++ {
		if b.ignored>>(s-1)&1 != 0 {
			_ = sigaction(s, &ign, nil)
		} else if b.plain {
			_ = sigaction(s, &dfl, nil)
		}
	}
	sigmask(sigSet, &b.mask)
}

// execute tries the places of PATH, as execvp(3) does.
func (b *init_) execute(args, env list) syscall.Errno {
	name := str(args.at(0))
	for i := 0; i < len(name); i++ {
		if name[i] == '/' {
			return b.executeOne("", name, args, env)
		}
	}
	if name == "" {
		return syscall.ENOENT
	}
	path, ok := b.envp.env("PATH")
	if !ok {
		path = "/usr/local/bin:/usr/bin:/bin"
	}
	last := syscall.ENOENT
	for from, i := 0, 0; i <= len(path); i++ {
		if i < len(path) && path[i] != ':' {
			continue
		}
		e := b.executeOne(path[from:i], name, args, env)
		from = i + 1
		switch e {
		case syscall.EACCES:
			last = e
		case syscall.ENOENT, syscall.ENOTDIR, syscall.ELOOP, syscall.ENAMETOOLONG, syscall.ESTALE, syscall.ENODEV, syscall.ETIMEDOUT:
		default:
			return e
		}
	}
	return last
}

// executeOne executes dir/name. A script without an interpreter is the shell's.
func (b *init_) executeOne(dir, name string, args, env list) syscall.Errno {
	t := &b.childTry
	t.n = 0
	if len(dir)+len(name)+2 > len(t.b) {
		return syscall.ENAMETOOLONG
	}
	if t.add(dir); dir != "" {
		t.add("/")
	}
	p := t.add(name).path()
	_, e := sys(syscall.SYS_EXECVE, addr(p), uintptr(unsafe.Pointer(args.p)), uintptr(unsafe.Pointer(env.p)))
	if e != syscall.ENOEXEC {
		return e
	}
	var words [512]*byte
	words[0], words[1] = &shell[0], p
	for i := 1; args.at(i) != nil; i++ {
		if i+2 >= len(words) {
			return syscall.E2BIG
		}
		words[i+1] = args.at(i)
	}
	_, e = sys(syscall.SYS_EXECVE, addr(&shell[0]), addr(&words[0]), uintptr(unsafe.Pointer(env.p)))
	return e
}

// startNext starts what comes after --on-start.
func (b *init_) startNext() {
	if b.o.serve {
		b.beginService()
	} else {
		b.startMain()
	}
}

// startMain starts the command, or ends everything.
func (b *init_) startMain() {
	b.detachTerminal()
	if b.srv != nil {
		b.oomKills = b.countOOM() // in its cgroup
	}
	e := b.spawn(b.o.command, kindMain)
	if e != 0 {
		b.noCommand(e)
		return
	}
	b.letGo()
	b.mainPID, b.phase, b.dirty = b.child, phaseMain, true
	switch b.o.as {
	case asDumb:
		if b.o.session {
			b.say(3).add("setsid complete.")
			b.end()
		}
		b.say(3).add("Child spawned with PID ").num(b.child).add(".")
	case asTini:
		b.say(2).add("Spawned child process '").add(str(b.o.command.at(0))).add("' with pid '").num(b.child).add("'")
	default:
		b.say(3).add("started ").add(str(b.o.command.at(0))).add(" as ").num(b.child)
	}
	b.end()
	if b.srv != nil && b.srv.moveErr != 0 {
		b.say(1).add("move the command to ").add(str(b.srv.leaf.path())).add(": ")
		errText(&b.msg, b.srv.moveErr)
		b.end()
	}
}

// letGo closes what we hold open and others could wait for: all but standard
// input and output, the directory for --on-stop, and what the service says.
func (b *init_) letGo() {
	b.sigfd = -1
	if b.o.onStop == nil {
		b.cwd = -1
	}
	said := -1
	if b.srv != nil {
		said = b.srv.said
	}
	from := 3
	for _, keep := range [...]int{min(b.cwd, said), max(b.cwd, said)} {
		if keep < from {
			continue
		}
		if keep > from {
			closeRange(from, keep-1)
		}
		from = keep + 1
	}
	closeFrom(from)
}

// noCommand says that the command does not start, and with which code that ends.
func (b *init_) noCommand(e syscall.Errno) {
	name := str(b.o.command.at(0))
	b.phase = phaseDone
	switch b.o.as {
	case asDumb:
		b.code = 2
		b.o.verbosity = max(b.o.verbosity, 1)
		b.say(0).add(name).add(": ")
	case asCatatonit:
		b.code = 1
		b.say(0).add("failed to exec pid1: ")
	case asTini:
		b.code = 1
		b.say(0).add("exec ").add(name).add(" failed: ")
	default:
		b.code = codeUsage
		b.say(0).add("start ").add(name).add(": ")
	}
	errText(&b.msg, e)
	b.end()
	switch {
	case b.o.as == asDumb || b.o.as == asCatatonit:
	case e == syscall.ENOENT || e == syscall.ENOTDIR:
		b.code = codeNoCommand
	case e == syscall.EACCES || e == syscall.ENOEXEC || e == syscall.EPERM || e == syscall.ELOOP || e == syscall.EISDIR:
		b.code = codeNoExec
	}
	if b.srv != nil {
		b.stopService()
	}
}

// startHook starts a line of shell, to be waited for before anything else.
func (b *init_) startHook(line *byte) {
	b.hookWords = [...]*byte{&shell[0], &shellFlag[0], line, nil}
	if e := b.spawn(list{hide(&b.hookWords[0])}, kindHook); e != 0 {
		b.say(0).add("start /bin/sh for ").add(str(line)).add(": ")
		errText(&b.msg, e)
		b.end()
		b.hookEnded(codeNoCommand)
	}
}

// rewriteListenPID makes socket activation work for the command: the PID that it
// is to find there has been ours.
func (b *init_) rewriteListenPID() {
	const name = "LISTEN_PID="
	for i := 0; b.envp.at(i) != nil; i++ {
		s := str(b.envp.at(i))
		if len(s) <= len(name) || s[:len(name)] != name {
			continue
		}
		if n, ok := number(s[len(name):], 1<<30); ok && n == b.pid {
			*(**byte)(unsafe.Add(unsafe.Pointer(b.envp.p), uintptr(i)*unsafe.Sizeof(b.envp.p))) = hide(b.listen.add(name).num(getpid()).path())
		}
		return
	}
}
