package wire

import (
	"encoding/binary"
	"errors"
	"io"
	"strconv"
	"syscall"
)

const (
	readAhead = 4 << 10  // of a frame, and of those behind it, at first
	readChunk = 64 << 10 // then; so a length alone costs the receiver nothing
)

// input takes a stream apart into frames. Descriptors are dealt out in the
// order in which they came: each frame says how many are its own.
type input struct {
	buf  []byte // received and not yet returned
	off  int    // where the next frame begins in buf
	fds  []int
	done bool // no more: what came was refused, or the stream has ended
}

// ready tells whether a whole frame is there, or one that will be refused.
func (in *input) ready() bool {
	size, err := in.size()
	return err != nil || (size > 0 && len(in.buf)-in.off >= 4+size)
}

// size is the length that the next frame announces, or 0 if that has not come.
func (in *input) size() (int, error) {
	if len(in.buf)-in.off < 4 {
		return 0, nil
	}
	size := binary.BigEndian.Uint32(in.buf[in.off:])
	if size == 0 || size > MaxFrame {
		return 0, badFrame("length " + strconv.FormatUint(uint64(size), 10))
	}
	return int(size), nil
}

// recv returns the next frame, reading as often as it takes.
func (in *input) recv(rw MsgReadWriter) (Message, []int, error) {
	for !in.ready() {
		if err := in.fill(rw); err != nil {
			if !temporary(err) {
				in.drop()
			}
			return Message{}, nil, err
		}
	}
	m, fds, err := in.next()
	if err != nil {
		in.drop()
	}
	return m, fds, err
}

// next takes the frame that is ready.
func (in *input) next() (m Message, fds []int, err error) {
	size, err := in.size()
	if err != nil {
		return m, nil, err
	}
	body := in.buf[in.off+4 : in.off+4+size]
	if err := decode(body, &m); err != nil {
		return Message{}, nil, badFrame(err.Error())
	}
	in.off += 4 + size
	rest := len(in.buf) - in.off
	if m.FDs < 0 || m.FDs > len(in.fds) || (rest == 0 && m.FDs != len(in.fds)) {
		return Message{}, nil, badFrame(strconv.Itoa(m.FDs) + " descriptors announced, " + strconv.Itoa(len(in.fds)) + " came")
	}
	if m.FDs > 0 {
		fds = append(fds, in.fds[:m.FDs]...)
		in.fds = in.fds[m.FDs:]
	}
	switch {
	case rest > 0:
	case cap(in.buf) > readChunk:
		in.buf, in.off = nil, 0 // a large frame's; idle connections are small
	default:
		in.buf, in.off = in.buf[:0], 0
	}
	return m, fds, nil
}

// fill reads once.
func (in *input) fill(rw MsgReadWriter) error {
	if in.done {
		return io.EOF
	}
	n, fds, err := rw.ReadMsg(in.room())
	in.fds = append(in.fds, fds...)
	in.buf = in.buf[:len(in.buf)+max(n, 0)]
	switch {
	case err == io.EOF && len(in.buf) > in.off:
		return io.ErrUnexpectedEOF
	case err != nil:
		return err
	case len(in.fds) > 2*MaxFDs || (len(in.fds) > 0 && n <= 0):
		return badFrame(strconv.Itoa(len(in.fds)) + " descriptors without a frame")
	}
	return nil
}

// room is where the next bytes go: at least some, and not much more than what
// is known to come.
func (in *input) room() []byte {
	if in.off > 0 {
		in.buf = in.buf[:copy(in.buf, in.buf[in.off:])]
		in.off = 0
	}
	if len(in.buf) == cap(in.buf) {
		want := readAhead
		if size, _ := in.size(); size > 0 {
			missing := 4 + size - len(in.buf)
			want = min(missing, max(readChunk, len(in.buf)))
		}
		grown := make([]byte, len(in.buf), len(in.buf)+want)
		copy(grown, in.buf)
		in.buf = grown
	}
	return in.buf[len(in.buf):cap(in.buf)]
}

// drop gives up the stream, and closes the descriptors that nobody took.
func (in *input) drop() {
	for _, fd := range in.fds {
		_ = syscall.Close(fd)
	}
	*in = input{done: true}
}

// temporary tells whether a Recv may be called again: EAGAIN, a deadline.
func temporary(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}
