package reaper

import (
	"errors"
	"slices"
	"syscall"
	"time"

	"pinfold.dev/internal/fault"
	"pinfold.dev/internal/sys"
	"pinfold.dev/internal/wire"
	"pinfold.dev/reaper/spawn"
)

// Bounds of what is remembered of launches.
const (
	endedKept = 512 << 10 // bytes of ended launches that are listed in hello
	argvKept  = 4 << 10   // bytes of a launch's argv that are remembered and journalled

	recordMost = wire.MaxLine - 64<<10 // bytes of a launch's other words, as they are journalled
)

// process is a launch: first undecided (child is set), then started.
type process struct {
	started wire.Started
	exit    *wire.Exit
	pidfd   int // -1 once it has ended
	child   *spawn.Child
	ended   *sys.Child // reaped before it was decided
	owed    bool       // the journal has not its exit
	io      stdio
	asked   question
	key     string     // of the launch, or empty
	also    []question // the same launch asked for again, meanwhile
}

func (p *process) deciding() bool { return p.child != nil }

// size is about how many bytes it takes, remembered or written.
func (p *process) size() int {
	n := 512 + len(p.started.Cwd) + len(p.started.Leaf) + len(p.started.Meta)
	for _, a := range p.started.Argv {
		n += len(a) + 4
	}
	return n
}

// launch makes the leaf, journals the intent and clones the child. With no
// error the answer follows when the child has executed, or could not.
func (k *keeper) launch(q question, l *wire.Launch, fds []int) *wire.Error {
	if p := k.keys[l.Key]; p != nil && !k.fenced {
		k.again(q, p)
		return nil
	}
	if err := k.admit(l, len(fds)); err != nil {
		return err
	}
	fault.Point("launch.read")
	leaf, id, err := k.work.makeLeaf(l.Process)
	if err != nil {
		return refusalOf(wire.ErrCgroup, "make cgroup "+l.Process, k.work.leafPath(l.Process), err)
	}
	fault.Point("leaf.made")
	if leaf >= 0 {
		defer func() { _ = sys.Close(leaf) }()
	}
	p := &process{asked: q, key: l.Key, pidfd: -1, started: wire.Started{
		Process: l.Process, Argv: cut(l.Argv), UID: k.uid, Cwd: l.Cwd, CgroupID: id,
		Leaf: k.work.leafPath(l.Process), StartedNS: time.Now().UnixNano(), Meta: l.Meta,
	}}
	if l.SetUser {
		p.started.UID = l.UID
	}
	if !k.journal.write(wire.Entry{Fact: wire.FactIntent, Process: l.Process, Started: &p.started}) {
		k.dropLeaf(l.Process)
		return refusalOf(wire.ErrJournal, "journal the launch", "", k.journal.err)
	}
	fault.Point("intent.written")
	if err := k.start(p, l, fds, leaf); err != nil {
		k.notStarted(p, err)
		return err
	}
	k.track(p)
	return nil
}

// admit refuses what cannot be launched.
func (k *keeper) admit(l *wire.Launch, fds int) *wire.Error {
	switch {
	case k.fenced:
		return refusal(wire.ErrFenced, "the turn is ending")
	case k.work == nil:
		return refusal(wire.ErrProtocol, "launch before hold")
	case !validName(l.Process):
		return refusal(wire.ErrProtocol, "bad process id")
	case k.procs[l.Process] != nil:
		return refusal(wire.ErrUsed, "process id is used already: "+l.Process)
	case len(l.Argv) == 0:
		return refusal(wire.ErrProtocol, "empty argv")
	case recordSize(l) > recordMost:
		return refusal(wire.ErrProtocol, "more than "+itoa(recordMost)+" bytes are to be recorded of the launch (labels, cwd)")
	}
	for _, fd := range []int{l.Stdin, l.Stdout, l.Stderr} {
		if fd < -1 || fd >= fds {
			return refusal(wire.ErrProtocol, "stdio names descriptor "+itoa(fd)+" of "+itoa(fds))
		}
	}
	if err := k.admitStdio(l); err != nil {
		return err
	}
	if err := admitAttributes(l, fds); err != nil {
		return err
	}
	if k.work.frozen() {
		return refusal(wire.ErrFrozen, "the turn's cgroup is frozen")
	}
	return nil
}

// recordSize is about how long a launch's lines in the journal are, but for what is
// bounded anyway.
func recordSize(l *wire.Launch) int {
	if len(l.Meta)+len(l.Cwd) < recordMost/8 { // a byte is six at most
		return 0
	}
	e := wire.Entry{Started: &wire.Started{Cwd: l.Cwd, Meta: l.Meta}}
	return len(e.Append(nil))
}

// validName tells whether an id may be a leaf's name: no cgroup file has a name
// without a dot.
func validName(s string) bool {
	for _, c := range []byte(s) {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_') {
			return false
		}
	}
	return s != "" && len(s) <= 64
}

// start clones the child into its leaf, or moves it there at the gate.
func (k *keeper) start(p *process, l *wire.Launch, fds []int, leaf int) *wire.Error {
	s := spawn.Spec{Argv: l.Argv, Env: l.Env, Dir: l.Cwd, Cgroup: leaf}
	defer p.io.handOver()
	if err := k.openStdio(p, l, fds, &s); err != nil {
		return err
	}
	fault.Point("streams.made")
	k.addAttributes(&s, l, fds)
	if leaf < 0 {
		return k.startBare(p, s)
	}
	if !k.gate {
		c, err := k.spawner.Start(&s)
		if err == nil {
			fault.Point("child.cloned")
			p.started.Placement = "clone"
			p.child = c
			return nil
		}
		if !gateHelps(err) {
			return k.explain(p, err)
		}
		// A sandbox or an old kernel will not change its mind.
		k.gate = errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.EPERM)
	}
	return k.startGated(p, s, leaf)
}

func (k *keeper) startGated(p *process, s spawn.Spec, leaf int) *wire.Error {
	s.Cgroup, s.Gate = -1, true
	c, err := k.spawner.Start(&s)
	if err != nil {
		return k.explain(p, err)
	}
	fault.Point("gate.cloned")
	if err = moveInto(leaf, c.PID); err == nil {
		fault.Point("gate.moved")
		err = c.Open()
	}
	if err != nil {
		k.abort(c)
		return refusalOf(wire.ErrCgroup, "move into "+p.started.Leaf, p.started.Leaf, err)
	}
	fault.Point("gate.opened")
	p.started.Placement = "gate"
	p.child = c
	return nil
}

// startBare has the child wait until the journal has its number: without a cgroup
// nothing else finds it, should keeper and service both die. It exits if we do.
func (k *keeper) startBare(p *process, s spawn.Spec) *wire.Error {
	s.Cgroup, s.Gate = -1, true
	c, err := k.spawner.Start(&s)
	if err != nil {
		return k.explain(p, err)
	}
	fault.Point("bare.cloned")
	p.started.Placement = "child"
	k.identify(p, c)
	if !k.journal.write(wire.Entry{Fact: wire.FactStarted, Process: p.started.Process, Started: &p.started}) {
		k.abort(c)
		return refusalOf(wire.ErrJournal, "journal the launch", "", k.journal.err)
	}
	fault.Point("bare.written")
	if err := c.Open(); err != nil {
		k.abort(c)
		return refusalOf(wire.ErrInternal, "let the child go on", "", err)
	}
	fault.Point("bare.opened")
	p.child = c
	return nil
}

// abort ends a child that waits at its gate.
func (k *keeper) abort(c *spawn.Child) {
	c.Kill()
	_, _ = sys.Waitid(sys.PPid, c.PID, sys.WExited|sys.WAll)
	k.reaped++
	_, _ = c.Confirm()
	_ = sys.Close(c.Status)
	_ = sys.Close(c.PIDFD)
}

// gateHelps tells whether a refused clone may go another way. E2BIG and EINVAL are the
// answers of kernels before Linux 5.7, which have clone3 and cannot clone into a cgroup.
func gateHelps(err error) bool {
	var e *spawn.Error
	if !errors.As(err, &e) || e.Step != spawn.StepClone {
		return false
	}
	switch e.Errno {
	case syscall.ENOSYS, syscall.EPERM, syscall.EBUSY, syscall.EACCES, syscall.EOPNOTSUPP, syscall.EBADF,
		syscall.E2BIG, syscall.EINVAL:
		return true
	}
	return false
}

// explain makes the answer's error of a start's.
func (k *keeper) explain(p *process, err error) *wire.Error {
	var e *spawn.Error
	if !errors.As(err, &e) { // a NUL in a string
		return refusalOf(wire.ErrProtocol, "launch", "", err)
	}
	kind, path := wire.ErrInternal, e.Path
	switch e.Step {
	case spawn.StepClone:
		kind = wire.ErrFork
		if e.Errno == syscall.ENOENT || e.Errno == syscall.ENODEV || gateHelps(err) {
			kind, path = wire.ErrCgroup, p.started.Leaf
		}
	case spawn.StepUser:
		kind = wire.ErrUser
	case spawn.StepStdio, spawn.StepTerminal:
		kind = wire.ErrStdio
	case spawn.StepRlimit, spawn.StepNice, spawn.StepOOM, spawn.StepNoNewPrivs:
		return refusalOf(wire.ErrAttribute, e.Step.Do(e.Path), attributeOf(e), e.Errno)
	case spawn.StepCwd:
		kind, path = wire.ErrCwd, p.started.Cwd
	case spawn.StepExec:
		kind = wire.ErrExec
	}
	return refusalOf(kind, e.Step.Do(path), path, e.Errno)
}

// track registers an undecided launch. Its identity is read while the child is
// still executing.
func (k *keeper) track(p *process) {
	p.pidfd = p.child.PIDFD
	k.identify(p, p.child)
	k.procs[p.started.Process], k.byPID[p.started.PID] = p, p
	if p.key != "" {
		k.keys[p.key] = p
	}
	k.inflight++
	if err := k.poll.add(p.child.Status, syscall.EPOLLIN, p); err != nil {
		logLine("launch ", p.started.Process, ": ", err.Error()) // decided when it has ended
	}
}

// identify notes who a child is.
func (k *keeper) identify(p *process, c *spawn.Child) {
	if p.started.PID != 0 {
		return // it was noted before
	}
	p.started.PID = c.PID
	p.started.Ino, _ = sys.PidfsIno(c.PIDFD)
	p.started.StartTicks = k.startTicks(c.PID)
}

// startTicks is when a child was made, or 0 where /proc does not tell.
func (k *keeper) startTicks(pid int) uint64 {
	if !k.proc {
		return 0
	}
	fd, err := sys.Openat(sys.AtFDCWD, "/proc/"+itoa(pid)+"/stat", sys.ORdonly)
	if err != nil {
		return 0
	}
	n, _ := sys.Pread(fd, k.stat[:], 0)
	_ = sys.Close(fd)
	return statField(k.stat[:n], 22)
}

// ready is called when the child has executed, or could not.
func (p *process) ready(k *keeper, _ uint32) { k.decide(p) }

// decide finishes a launch if its child has executed, failed or died.
func (k *keeper) decide(p *process) {
	decided, err := p.child.Confirm()
	if !decided {
		return
	}
	fault.Point("exec.decided")
	k.poll.remove(p.child.Status)
	_ = sys.Close(p.child.Status)
	if p.started.Cwd != "" {
		p.started.Cwd = p.child.Dir
	}
	p.child = nil
	_ = sys.SetDumpable(false) // setuid in our memory sets it to what sysctl fs.suid_dumpable says
	if err != nil {
		k.failed(p, err)
	} else {
		k.succeeded(p)
	}
	k.inflight--
	k.answerFences()
}

// failed cleans up after a child that could not execute. It is exiting, so
// waiting for it is short.
func (k *keeper) failed(p *process, err error) {
	if p.ended == nil {
		if _, werr := sys.Waitid(sys.PPid, p.started.PID, sys.WExited|sys.WAll); werr == nil {
			k.reaped++
		}
	}
	fault.Point("failed.reaped")
	delete(k.byPID, p.started.PID)
	delete(k.procs, p.started.Process)
	delete(k.keys, p.key)
	_ = sys.Close(p.pidfd)
	e := k.explain(p, err)
	k.notStarted(p, e)
	k.refuse(p.asked.c, p.asked.id, e)
	for _, q := range p.also {
		k.refuse(q.c, q.id, e)
	}
}

// notStarted leaves nothing of a launch but a line in the journal.
func (k *keeper) notStarted(p *process, err *wire.Error) {
	p.io.discard()
	k.dropLeaf(p.started.Process)
	k.journal.write(wire.Entry{Fact: wire.FactNotStarted, Process: p.started.Process, Error: err})
	fault.Point("notstarted.written")
}

func (k *keeper) succeeded(p *process) {
	k.launched++
	k.order = append(k.order, p)
	k.watchStdio(p)
	k.journal.write(wire.Entry{Fact: wire.FactStarted, Process: p.started.Process, Started: &p.started})
	fault.Point("started.written")
	k.send(p.asked.c, wire.Message{ID: p.asked.id, Started: &p.started}, []int{p.pidfd})
	fault.Point("started.told")
	k.announce(wire.Message{Event: wire.EventStarted, Started: &p.started}, p.pidfd, p.asked.c)
	for _, q := range p.also {
		k.again(q, p)
	}
	p.also = nil
	if p.ended != nil {
		k.end(p, p.ended)
	}
}

// again answers a launch whose key is known with the first one, once that is
// decided.
func (k *keeper) again(q question, p *process) {
	if p.deciding() {
		p.also = append(p.also, q)
		return
	}
	var fds []int
	if p.pidfd >= 0 {
		fds = []int{p.pidfd}
	}
	k.send(q.c, wire.Message{ID: q.id, Started: &p.started}, fds)
}

// end records and announces the end of a launch, in this order.
func (k *keeper) end(p *process, c *sys.Child) {
	fault.Point("exit.reaped")
	p.exit = &wire.Exit{Process: p.started.Process, PID: p.started.PID, EndedNS: time.Now().UnixNano()}
	switch c.Code {
	case sys.CldExited:
		p.exit.Code = c.Status
	default:
		p.exit.Signal, p.exit.Core = c.Status, c.Code == sys.CldDumped
		if c.Status == int(syscall.SIGKILL) {
			p.exit.OOMKills = k.work.oomKills(p.started.Process)
		}
	}
	k.settleStdio(p)
	fault.Point("streams.settled")
	k.writeExit(p)
	fault.Point("exit.written")
	k.announce(wire.Message{Event: wire.EventExit, Exit: p.exit}, -1, nil)
	fault.Point("exit.told")
	_ = sys.Close(p.pidfd)
	p.pidfd, p.ended = -1, nil
	if !k.work.bare {
		k.emptied = append(k.emptied, p.started.Process)
	}
	k.ended += p.size()
	k.forget()
}

// announce sends to every connection that said hello, but not to except.
func (k *keeper) announce(m wire.Message, fd int, except *conn) {
	var fds []int
	if fd >= 0 {
		fds = []int{fd}
	}
	for _, c := range slices.Clone(k.conns) { // send may close one
		if c.greeted && c != except {
			k.send(c, m, fds)
		}
	}
}

// writeExit tells whether the journal has it now.
func (k *keeper) writeExit(p *process) bool {
	p.owed = !k.journal.write(wire.Entry{Fact: wire.FactExit, Process: p.started.Process, Exit: p.exit})
	return !p.owed
}

// forget drops the oldest ended launches when too many are remembered: a
// quarter of them, so that it is seldom done. An exit that the journal has not is
// tried again first; on a full disk nothing is launched, so those are not many.
func (k *keeper) forget() {
	if k.ended <= endedKept {
		return
	}
	full := false
	k.order = slices.DeleteFunc(k.order, func(p *process) bool {
		if p.exit == nil || p.io.busy() || k.ended <= endedKept*3/4 || p.owed && full {
			return false
		}
		if p.owed && !k.writeExit(p) {
			full = true
			return false
		}
		k.ended -= p.size()
		k.dropped++
		delete(k.procs, p.started.Process)
		delete(k.keys, p.key)
		return true
	})
}

// cut keeps the first bytes of a command line.
func cut(argv []string) []string {
	left, kept := argvKept, make([]string, 0, len(argv))
	for _, a := range argv {
		if len(a) > left {
			return append(kept, a[:left]+"…")
		}
		left -= len(a)
		kept = append(kept, a)
	}
	return kept
}
