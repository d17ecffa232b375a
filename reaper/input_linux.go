package reaper

import (
	"slices"
	"syscall"

	"pinfold.dev/internal/sys"
	"pinfold.dev/internal/wire"
)

const (
	inputMost   = 64 << 10 // bytes that are kept for a process that does not read
	inputAsking = maxConns // inputs that may wait for room: one a connection
)

// input is what the keeper writes into a process: a pipe, or the keyboard of a
// terminal.
type input struct {
	fd      int     // -1 once it is closed
	tty     *stream // whose keyboard it is, and whose descriptor
	pending []byte  // taken, but not written yet
	eof     bool    // nothing follows what is pending
	armed   bool    // epoll tells when there is room
	waiting []typed
}

// typed is an input that waits for room.
type typed struct {
	question
	data []byte
	eof  bool
}

// input takes bytes for a process, and answers when it has.
func (k *keeper) input(q question, m *wire.Input) *wire.Error {
	p := k.procs[m.Process]
	if p == nil || p.deciding() {
		return refusal(wire.ErrNotFound, "no such process: "+m.Process)
	}
	in := p.io.in
	if in != nil { // who asked and has gone does not know that it was taken, so it is not
		in.waiting = slices.DeleteFunc(in.waiting, func(t typed) bool { return t.c.closed })
	}
	switch {
	case len(m.Data) > inputMost:
		return refusal(wire.ErrProtocol, "more than "+itoa(inputMost)+" bytes of input")
	case in == nil:
		return refusal(wire.ErrClosed, "stdin of "+m.Process+" is not the keeper's to write")
	case in.fd < 0 || in.eof:
		return closedInput()
	case len(in.waiting) == inputAsking:
		return refusal(wire.ErrProtocol, "too many inputs wait already")
	}
	in.waiting = append(in.waiting, typed{q, m.Data, m.EOF})
	k.feed(in)
	return nil
}

func closedInput() *wire.Error {
	return refusal(wire.ErrClosed, "nobody reads that stdin any more")
}

// ready is called when a pipe has room, or no reader.
func (in *input) ready(k *keeper, events uint32) {
	if events&syscall.EPOLLERR != 0 {
		k.closeInput(in)
		return
	}
	k.feed(in)
}

// feed writes what is pending and takes what waits, as far as there is room.
func (k *keeper) feed(in *input) {
	for in.fd >= 0 {
		k.write(in)
		if in.fd < 0 || !k.takeTyped(in) {
			break
		}
	}
	if in.fd < 0 || in.armed == (len(in.pending) > 0) {
		return
	}
	switch in.armed = !in.armed; {
	case in.tty != nil:
		k.rearm(in.tty)
	case in.armed:
		k.poll.change(in.fd, syscall.EPOLLOUT)
	default:
		k.poll.change(in.fd, 0)
	}
}

// write writes what is pending until there is no room, or no reader.
func (k *keeper) write(in *input) {
	for len(in.pending) > 0 {
		n, err := syscall.Write(in.fd, in.pending)
		switch {
		case n > 0:
			in.pending = in.pending[n:]
		case err == syscall.EINTR:
		case err == syscall.EAGAIN || err == nil:
			return
		default:
			k.closeInput(in)
			return
		}
	}
	in.pending = nil
	if in.eof {
		k.closeInput(in)
	}
}

// takeTyped takes the first input that waits, if there is room for it.
func (k *keeper) takeTyped(in *input) bool {
	if len(in.waiting) == 0 || len(in.pending) > 0 && len(in.pending)+len(in.waiting[0].data) > inputMost {
		return false
	}
	t := in.waiting[0]
	if in.waiting = in.waiting[1:]; len(in.waiting) == 0 {
		in.waiting = nil
	}
	switch {
	case t.c.closed:
		return true // as in input
	case in.eof:
		k.refuse(t.c, t.id, closedInput())
		return true
	case len(in.pending) == 0:
		in.pending = t.data
	default:
		in.pending = append(in.pending, t.data...)
	}
	if t.eof {
		in.end()
	}
	k.send(t.c, wire.Message{ID: t.id}, nil)
	return true
}

// end closes a pipe after what is pending. On a terminal it types what ends the
// input.
func (in *input) end() {
	if in.tty == nil {
		in.eof = true
		return
	}
	if c, err := sys.EOFCharacter(in.fd); err == nil {
		in.pending = append(in.pending, c)
	}
}

// closeInput closes a pipe, or forgets a keyboard, and tells who waits.
func (k *keeper) closeInput(in *input) {
	if in.fd < 0 {
		return
	}
	if in.tty == nil {
		k.poll.remove(in.fd)
		_ = syscall.Close(in.fd)
	}
	in.fd, in.pending = -1, nil
	waiting := in.waiting
	in.waiting = nil
	for _, t := range waiting {
		k.refuse(t.c, t.id, closedInput())
	}
}

// resize changes the size of a process's terminal.
func (k *keeper) resize(r *wire.Resize) *wire.Error {
	tty, err := k.terminal(r.Process)
	switch {
	case err != nil:
		return err
	case !validSize(r.Size.Rows) || !validSize(r.Size.Cols):
		return refusal(wire.ErrProtocol, "bad size of a terminal")
	}
	if err := sys.SetWinSize(tty.fd, r.Size.Rows, r.Size.Cols); err != nil {
		return refusalOf(wire.ErrInternal, "resize the terminal of "+r.Process, "", err)
	}
	return nil
}

// hangUp closes a process's terminal.
func (k *keeper) hangUp(i *wire.Input) *wire.Error {
	tty, err := k.terminal(i.Process)
	if err != nil {
		return err
	}
	k.drain(tty)
	k.closeStream(tty, false)
	return nil
}

// signalForeground sends a signal to the foreground group of its terminal.
func (k *keeper) signalForeground(s *wire.Signal) *wire.Error {
	tty, refused := k.terminal(s.Process)
	if refused != nil {
		return refused
	}
	if err := sys.SignalForeground(tty.fd, syscall.Signal(s.Number)); err != nil {
		return refusalOf(wire.ErrProtocol, "signal "+itoa(s.Number)+" to a foreground group", "", err)
	}
	return nil
}

// terminal is the open terminal of a process.
func (k *keeper) terminal(process string) (*stream, *wire.Error) {
	p := k.procs[process]
	switch {
	case p == nil || p.deciding():
		return nil, refusal(wire.ErrNotFound, "no such process: "+process)
	case p.io.tty == nil || p.io.tty.fd < 0:
		return nil, refusal(wire.ErrNotTerminal, "no terminal, or a closed one: "+process)
	}
	return p.io.tty, nil
}
