package reaper

import (
	"io"
	"syscall"

	"pinfold.dev/internal/spool"
	"pinfold.dev/internal/wire"
)

const (
	readMost  = 64 << 10 // bytes that one stream brings before the loop looks at what else there is
	drainMost = 1 << 20  // bytes that are taken before an end is announced; a pipe seldom holds more
)

// stream is an output stream that the keeper reads into a spool.
type stream struct {
	p    *process
	fd   int // -1 once it is closed
	w    *spool.Writer
	path string

	tty   bool
	alone bool   // a terminal that nobody has open at present
	in    *input // a terminal's keyboard
}

func (s *stream) ready(k *keeper, events uint32) {
	if events&syscall.EPOLLOUT != 0 && s.in != nil {
		k.feed(s.in)
	}
	if events&^syscall.EPOLLOUT != 0 && s.fd >= 0 {
		k.pump(s)
	}
}

// pump takes what one read brings, and tells how much that was: 0 when nothing
// is there now, or never will be.
func (k *keeper) pump(s *stream) int {
	n, err := k.take(s)
	switch {
	case err == nil:
		if s.alone { // somebody has opened it again
			s.alone = false
			k.rearm(s)
		}
		return n
	case err == syscall.EAGAIN:
	case err == syscall.EIO && s.tty && s.p.exit == nil:
		// Nobody has it open. A live process can open its terminal again, so
		// it stays, but epoll must not go on telling that.
		if !s.alone {
			s.alone = true
			k.rearm(s)
		}
	default:
		k.closeStream(s, err == io.EOF || s.tty && err == syscall.EIO)
	}
	return 0
}

// take reads once. What is beyond the bound of the turn's output is dropped.
func (k *keeper) take(s *stream) (n int, err error) {
	if k.buf == nil {
		k.buf = make([]byte, readMost)
		k.garbage.did(readMost)
	}
	buf := k.buf
	if k.outputMax > 0 {
		if k.output >= k.outputMax {
			return s.w.DropFrom(s.fd, buf)
		}
		buf = buf[:min(readMost, k.outputMax-k.output)]
	}
	n, err = s.w.WriteFrom(s.fd, buf)
	k.output += int64(n)
	k.checkOutput()
	return n, err
}

// checkOutput announces, once, that the turn's output has come to its bound.
func (k *keeper) checkOutput() {
	if k.outputMax > 0 && k.output >= k.outputMax && !k.outputMaxed {
		k.outputMaxed = true
		k.announce(wire.Message{Event: wire.EventOutputMax}, -1, nil)
	}
}

// drain takes what is there now.
func (k *keeper) drain(s *stream) {
	for done := 0; s.fd >= 0 && done < drainMost; {
		n := k.pump(s)
		if n == 0 {
			return
		}
		done += n
	}
}

// closeStream ends a stream. Closing a terminal hangs it up; nothing waits for
// who has it open.
func (k *keeper) closeStream(s *stream, eof bool) {
	if s.fd < 0 {
		return
	}
	k.poll.remove(s.fd)
	if s.in != nil {
		k.closeInput(s.in)
	}
	_ = syscall.Close(s.fd)
	s.fd = -1
	if err := s.w.Close(eof); err != nil {
		logLine("close ", s.path, ": ", err.Error())
	}
	s.w = nil // which is large
	if s.p.exit != nil {
		s.p.io.tidy()
	}
}

// rearm tells epoll what to wait for.
func (k *keeper) rearm(s *stream) {
	events := uint32(syscall.EPOLLIN)
	if s.in != nil && len(s.in.pending) > 0 {
		events |= syscall.EPOLLOUT
	}
	if s.alone {
		events |= edge
	}
	k.poll.change(s.fd, events)
}

// edge is EPOLLET, which package syscall has with the wrong sign.
const edge = 1 << 31
