//go:build unix

package spool

import (
	"io"
	"os"
	"syscall"
	"time"
)

// retryAfter is how long no write is tried after one went wrong: a file system
// that is full takes its time to say so, and the stream must not wait for it.
const retryAfter = 100 * time.Millisecond

// Writer writes a spool. It is for one thread. A disk that refuses bytes never
// makes it fail: the bytes count as lost, and it tries again a little later. It
// does wait as long as pwrite(2) does, so also when the kernel holds back a
// writer because of too many dirty pages.
type Writer struct {
	fd     int
	l      layout
	s      state
	retry  time.Time // no write before
	slot   [slotSize]byte
	pwrite func(fd int, p []byte, off int64) (int, error)
}

// Create makes a spool that keeps max bytes (MinMax to MaxMax; 0: DefaultMax).
// The file must not exist; it is made with mode 0600, and removed again when
// its header cannot be written. It takes room on the disk only as it fills.
func Create(path string, max int64) (*Writer, error) {
	if max == 0 {
		max = DefaultMax
	}
	if max < MinMax || max > MaxMax {
		return nil, &os.PathError{Op: "create spool", Path: path, Err: syscall.EINVAL}
	}
	const flags = syscall.O_WRONLY | syscall.O_CREAT | syscall.O_EXCL | syscall.O_NOFOLLOW | syscall.O_CLOEXEC
	w := &Writer{l: layout{max, max / 4}, pwrite: syscall.Pwrite}
	err := ignoringEINTR(func() (err error) { w.fd, err = syscall.Open(path, flags, 0o600); return })
	if err != nil {
		return nil, &os.PathError{Op: "create spool", Path: path, Err: err}
	}
	var page [headerSize]byte
	w.l.encode(page[:])
	w.s.encode(page[slotsAt:])
	w.s.seq = 1
	w.s.encode(page[slotsAt+slotSize:])
	if w.store(page[:], 0) < headerSize {
		_ = syscall.Close(w.fd)
		_ = syscall.Unlink(path)
		return nil, &os.PathError{Op: "write header of spool", Path: path, Err: syscall.Errno(w.s.errno)}
	}
	return w, nil
}

// Status is how far the stream is.
func (w *Writer) Status() Status { return w.s.status(w.l) }

// Write takes all of p, whatever becomes of it on the disk. os.ErrClosed: after
// Close.
func (w *Writer) Write(p []byte) (int, error) {
	if w.fd < 0 {
		return 0, os.ErrClosed
	}
	taken := len(p)
	if taken == 0 {
		return 0, nil
	}
	if s := &w.s; s.total < w.l.head {
		n := int(min(int64(len(p)), w.l.head-s.total))
		w.fillHead(p[:n])
		p = p[n:]
	}
	if len(p) > 0 {
		w.fillRing(p)
	}
	w.publish()
	return taken, nil
}

// WriteFrom reads once from fd into buf and writes what was there. The error
// is that of read(2), as the bare number (EAGAIN: nothing is there now; EIO
// from a terminal: nobody has its other side open), or io.EOF.
func (w *Writer) WriteFrom(fd int, buf []byte) (int, error) {
	n, err := readOnce(fd, buf)
	if err != nil {
		return 0, err
	}
	return w.Write(buf[:n])
}

// Drop counts n bytes of the stream that are not to be kept: readers see a gap
// with the reason Refused. What was kept before stays.
func (w *Writer) Drop(n int64) error {
	if w.fd < 0 {
		return os.ErrClosed
	}
	if n > 0 {
		w.s.lose(w.l, w.s.total, w.s.total+n, Refused)
		w.s.total += n
		w.publish()
	}
	return nil
}

// DropFrom is WriteFrom for a stream that is only drained.
func (w *Writer) DropFrom(fd int, buf []byte) (int, error) {
	n, err := readOnce(fd, buf)
	if err != nil {
		return 0, err
	}
	return n, w.Drop(int64(n))
}

// Close tells the readers that nothing will follow, and with eof that the
// stream itself ended, and closes the file. The error: they could not be told.
// Closing again does nothing.
func (w *Writer) Close(eof bool) error {
	if w.fd < 0 {
		return nil
	}
	w.s.flags |= flagClosed
	if eof {
		w.s.flags |= flagEOF
	}
	var err error
	if !w.publish() {
		err = os.NewSyscallError("pwrite", syscall.Errno(w.s.errno))
	}
	if e := syscall.Close(w.fd); err == nil {
		err = os.NewSyscallError("close", e)
	}
	w.fd = -1
	return err
}

// fillHead writes p, which fits into the head.
func (w *Writer) fillHead(p []byte) {
	s := &w.s
	end := s.total + int64(len(p))
	kept := s.total + int64(w.store(p, w.l.pos(s.total)))
	s.written = max(s.written, kept)
	s.lose(w.l, kept, end, Lost)
	s.total = end
}

// fillRing writes what the ring can keep of p.
func (w *Writer) fillRing(p []byte) {
	s, before := &w.s, w.s.written
	end := s.total + int64(len(p))
	at := s.total
	if extra := int64(len(p)) - w.l.ring(); extra > 0 {
		p, at = p[extra:], at+extra
	}
	s.written = end
	kept := 0
	if overwrites := end-w.l.ring() > w.l.head; !overwrites || (!w.waits() && w.publish()) {
		n := int(min(w.l.run(at), int64(len(p))))
		kept = w.store(p[:n], w.l.pos(at))
		if kept == n && n < len(p) {
			kept += w.store(p[n:], w.l.pos(at+int64(n)))
		}
	}
	if kept == 0 { // then nothing was overwritten either
		s.written = before
		at = s.total
	}
	s.lose(w.l, at+int64(kept), end, Lost)
	s.total = end
	s.prune(w.l)
}

// waits tells whether it is too early to try again.
func (w *Writer) waits() bool {
	if w.retry.IsZero() {
		return false
	}
	if time.Now().Before(w.retry) {
		return true
	}
	w.retry = time.Time{}
	return false
}

// store writes to a place in the file and returns how much of p is there now.
func (w *Writer) store(p []byte, pos int64) int {
	if w.waits() {
		return 0
	}
	n, err := w.pwriteAll(p, pos)
	if err != nil {
		w.retry = time.Now().Add(retryAfter)
	}
	return n
}

// publish writes the state into the slot that is not the current one, and
// tells whether it is there.
func (w *Writer) publish() bool {
	w.s.seq++
	b := w.s.encode(w.slot[:])
	if _, err := w.pwriteAll(b, slotsAt+slotSize*int64(w.s.seq&1)); err != nil {
		w.s.seq-- // the other slot is still the good one
		return false
	}
	return true
}

// pwriteAll counts an error in the state.
func (w *Writer) pwriteAll(p []byte, pos int64) (done int, err error) {
	for done < len(p) && err == nil {
		n := 0
		err = ignoringEINTR(func() (err error) { n, err = w.pwrite(w.fd, p[done:], pos+int64(done)); return })
		if err == nil && n <= 0 {
			err = syscall.EIO
		}
		done += max(n, 0)
	}
	if err != nil {
		w.s.errors++
		if e, ok := err.(syscall.Errno); ok {
			w.s.errno = uint64(e)
		}
	}
	return done, err
}

func readOnce(fd int, buf []byte) (int, error) {
	n := 0
	err := ignoringEINTR(func() (err error) { n, err = syscall.Read(fd, buf); return })
	if err == nil && n <= 0 {
		err = io.EOF
	}
	return n, err
}

func ignoringEINTR(f func() error) error {
	for {
		if err := f(); err != syscall.EINTR {
			return err
		}
	}
}
