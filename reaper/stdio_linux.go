package reaper

import (
	"os"
	"syscall"

	"pinfold.dev/internal/fault"
	"pinfold.dev/internal/spool"
	"pinfold.dev/internal/sys"
	"pinfold.dev/internal/wire"
	"pinfold.dev/reaper/spawn"
)

// stdio is what the keeper has to do with a process's streams.
type stdio struct {
	outs  []*stream // what goes into spools; a terminal is among them
	tty   *stream
	in    *input // nil: nothing that we write
	given []int  // descriptors that were made for the child
}

// admitStdio refuses streams that contradict each other.
func (k *keeper) admitStdio(l *wire.Launch) *wire.Error {
	why := ""
	pty := l.PTY != nil
	switch out := l.SpoolOut != 0; {
	case l.SpoolOut < 0 || l.SpoolErr < 0:
		why = "a spool of negative size"
	case (out || l.SpoolErr != 0) && k.spools == "":
		why = "a spool, but no directory for it"
	case !pty && (l.TTYIn || l.TTYOut || l.TTYErr):
		why = "a stream is a terminal that there is none of"
	case pty && !out:
		why = "a terminal without a spool"
	case pty && !(validSize(l.PTY.Rows) && validSize(l.PTY.Cols)):
		why = "bad size of a terminal"
	case count(l.Stdin >= 0, l.StdinPipe, l.TTYIn) > 1:
		why = "stdin is two things"
	case count(l.Stdout >= 0, l.TTYOut, out && !pty) > 1:
		why = "stdout is two things"
	case count(l.Stderr >= 0, l.TTYErr, l.SpoolErr != 0, l.ErrToOut) > 1:
		why = "stderr is two things"
	default:
		return nil
	}
	return refusal(wire.ErrProtocol, "launch: "+why)
}

func validSize(n int) bool { return n >= 0 && n < 1<<16 }

func count(conditions ...bool) (n int) {
	for _, c := range conditions {
		if c {
			n++
		}
	}
	return n
}

// openStdio makes the streams and names them to the spec. What it has made when
// it fails is closed by discard.
func (k *keeper) openStdio(p *process, l *wire.Launch, fds []int, s *spawn.Spec) *wire.Error {
	for i, fd := range [...]int{l.Stdin, l.Stdout, l.Stderr} {
		s.Stdio[i] = k.null
		if fd >= 0 {
			s.Stdio[i] = fds[fd]
		}
	}
	var err *wire.Error
	if l.PTY != nil {
		err = k.openTerminal(p, l, s)
	}
	if err == nil && l.StdinPipe {
		s.Stdio[0], err = k.openInput(p, l)
	}
	if err == nil && l.SpoolOut != 0 && l.PTY == nil {
		s.Stdio[1], err = k.openOutput(p, l, ".stdout", l.SpoolOut)
	}
	if err == nil && l.SpoolErr != 0 {
		s.Stdio[2], err = k.openOutput(p, l, ".stderr", l.SpoolErr)
	}
	if l.ErrToOut {
		s.Stdio[2] = s.Stdio[1]
	}
	return err
}

// openTerminal makes a terminal, which is the child's controlling one.
func (k *keeper) openTerminal(p *process, l *wire.Launch, s *spawn.Spec) *wire.Error {
	master, slave, err := sys.OpenTerminal()
	if err != nil {
		return refusalOf(wire.ErrStdio, "make a terminal", "/dev/ptmx", err)
	}
	p.io.given = append(p.io.given, slave)
	out := &stream{p: p, fd: master, tty: true}
	p.io.tty, p.io.outs = out, append(p.io.outs, out)
	if l.TTYIn {
		p.io.in = &input{fd: master, tty: out}
		out.in = p.io.in
	}
	if err = sys.SetWinSize(master, l.PTY.Rows, l.PTY.Cols); err == nil {
		err = k.give(l, slave)
	}
	if err == nil && k.owns(l) {
		err = syscall.Fchmod(slave, 0o620) // as login(1) and grantpt(3) have it
	}
	if err != nil {
		return refusalOf(wire.ErrStdio, "prepare the terminal", "", err)
	}
	s.TTY = slave
	for i, is := range [...]bool{l.TTYIn, l.TTYOut, l.TTYErr} {
		if is {
			s.Stdio[i] = slave
		}
	}
	return k.openSpool(out, p, ".stdout", l.SpoolOut)
}

// openInput makes the pipe that the keeper writes to, and returns the end that
// the child reads.
func (k *keeper) openInput(p *process, l *wire.Launch) (int, *wire.Error) {
	r, w, err := k.pipe(l, 1)
	if err != nil {
		return -1, refusalOf(wire.ErrStdio, "make a pipe for stdin", "", err)
	}
	p.io.given = append(p.io.given, r)
	p.io.in = &input{fd: w}
	return r, nil
}

// openOutput makes a pipe that goes into a spool, and returns the end that the
// child writes.
func (k *keeper) openOutput(p *process, l *wire.Launch, suffix string, most int64) (int, *wire.Error) {
	r, w, err := k.pipe(l, 0)
	if err != nil {
		return -1, refusalOf(wire.ErrStdio, "make a pipe for "+suffix[1:], "", err)
	}
	p.io.given = append(p.io.given, w)
	out := &stream{p: p, fd: r}
	p.io.outs = append(p.io.outs, out)
	return w, k.openSpool(out, p, suffix, most)
}

func (k *keeper) openSpool(s *stream, p *process, suffix string, most int64) *wire.Error {
	path := k.spools + "/" + p.started.Process + suffix
	w, err := spool.Create(path, most)
	if err != nil {
		return refusalOf(wire.ErrStdio, "make a spool", path, err)
	}
	fault.Point("spool.made")
	s.w, s.path = w, path
	return nil
}

// pipe makes a pipe whose end number ours does not block. It is the child's
// user's, who could otherwise not open /dev/stdin and its like.
func (k *keeper) pipe(l *wire.Launch, ours int) (r, w int, err error) {
	var ends [2]int
	if err := syscall.Pipe2(ends[:], syscall.O_CLOEXEC); err != nil {
		return -1, -1, os.NewSyscallError("pipe2", err)
	}
	err = syscall.SetNonblock(ends[ours], true)
	if err == nil {
		err = k.give(l, ends[0])
	}
	if err != nil {
		_ = syscall.Close(ends[0])
		_ = syscall.Close(ends[1])
	}
	return ends[0], ends[1], err
}

// owns tells whether what is made for a launch must be given to its user.
func (k *keeper) owns(l *wire.Launch) bool { return k.uid == 0 && l.SetUser && l.UID != 0 }

// give makes the launch's user the owner of an open file. A terminal keeps the
// group that it was mounted with.
func (k *keeper) give(l *wire.Launch, fd int) error {
	if !k.owns(l) {
		return nil
	}
	return os.NewSyscallError("fchown", syscall.Fchown(fd, int(l.UID), -1))
}

// handOver closes the child's descriptors, which it has by now, or will never
// need.
func (s *stdio) handOver() {
	for _, fd := range s.given {
		_ = syscall.Close(fd)
	}
	s.given = nil
}

// discard leaves nothing of the streams of a launch that did not start.
func (s *stdio) discard() {
	s.handOver()
	if s.in != nil && s.in.tty == nil {
		_ = syscall.Close(s.in.fd)
	}
	for _, out := range s.outs {
		_ = syscall.Close(out.fd)
		if out.w != nil {
			_ = out.w.Close(false)
			_ = syscall.Unlink(out.path)
		}
	}
	*s = stdio{}
}

// watchStdio has the loop serve the streams of a process that has started.
func (k *keeper) watchStdio(p *process) {
	for _, out := range p.io.outs {
		k.watch(p, out.fd, syscall.EPOLLIN, out)
	}
	if in := p.io.in; in != nil && in.tty == nil {
		k.watch(p, in.fd, 0, in) // the end of all readers is told unasked
	}
}

func (k *keeper) watch(p *process, fd int, events uint32, s source) {
	if err := k.poll.add(fd, events, s); err != nil {
		logLine("streams of ", p.started.Process, ": ", err.Error()) // what is there is taken at its end
	}
}

// settleStdio takes what a process has said before its end is announced. What
// others still have open goes on.
func (k *keeper) settleStdio(p *process) {
	for _, out := range p.io.outs {
		k.drain(out)
	}
	p.io.tidy()
}

// tidy forgets streams that are all closed.
func (s *stdio) tidy() {
	if !s.busy() {
		*s = stdio{}
	}
}

// busy tells whether one of the streams is open.
func (s *stdio) busy() bool {
	if s.in != nil && s.in.fd >= 0 {
		return true
	}
	for _, out := range s.outs {
		if out.fd >= 0 {
			return true
		}
	}
	return false
}

// closeStdio takes what there is, and closes all streams of the turn.
func (k *keeper) closeStdio() {
	var outs []*stream
	var ins []*input
	for _, s := range k.poll.what {
		switch s := s.(type) {
		case *stream:
			outs = append(outs, s)
		case *input:
			ins = append(ins, s)
		}
	}
	for _, s := range outs {
		k.drain(s)
		k.closeStream(s, false)
	}
	for _, in := range ins {
		k.closeInput(in)
	}
}
