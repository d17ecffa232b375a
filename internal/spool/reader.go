//go:build unix

package spool

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"time"
)

// Reader reads a spool, while it is written or later. It may be used by several
// goroutines.
type Reader struct {
	f     *os.File
	l     layout
	watch *Watcher // nil: Wait only polls

	mu     sync.Mutex
	s      state // the latest that was seen
	now    [2 * slotSize]byte
	before [2 * slotSize]byte
	woken  time.Time // when the last Wait returned
}

// Open opens a spool. Its Wait polls; Watcher.Open makes one that is woken.
//
// The errors are, besides those of open(2), ErrOwner, ErrVersion and ErrFormat.
// A spool belongs to the effective user alone: one that others own or may write
// is refused, as are links, pipes and whatever else is not a file.
func Open(path string) (*Reader, error) { return open(path, nil) }

func open(path string, w *Watcher) (*Reader, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	r := &Reader{f: f, watch: w}
	if err = r.begin(); err != nil {
		_ = f.Close()
		return nil, &os.PathError{Op: "open spool", Path: path, Err: err}
	}
	return r, nil
}

func (r *Reader) begin() error {
	fi, err := r.f.Stat()
	if err != nil {
		return err
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok || !fi.Mode().IsRegular() || int(st.Uid) != os.Geteuid() || fi.Mode().Perm()&0o022 != 0 {
		return ErrOwner
	}
	var b [fixedSize]byte
	if _, err := r.f.ReadAt(b[:], 0); err != nil {
		return shortIsFormat(err)
	}
	if r.l, err = decodeLayout(b[:]); err != nil {
		return err
	}
	_, err = r.state()
	return err
}

// Close closes the file.
func (r *Reader) Close() error { return r.f.Close() }

// Status is how far the stream is. ErrFormat: the file is damaged.
func (r *Reader) Status() (Status, error) {
	s, err := r.state()
	if err != nil {
		return Status{}, err
	}
	return s.status(r.l), nil
}

// Tail is the offset of the n-th last byte or, when that is overwritten, of the
// first one after it that is not. It may be in a gap of another kind.
func (r *Reader) Tail(n int64) (int64, error) {
	s, err := r.state()
	if err != nil {
		return 0, err
	}
	off := max(0, s.total-max(0, n))
	if start := r.l.start(&s); off >= r.l.head && off < start {
		off = start
	}
	return off, nil
}

// ReadAt reads from the offset off. It returns one of
//
//   - n > 0 bytes, from off to next; fewer than len(p) does not mean the end;
//   - a gap that begins at off; next is its end;
//   - nothing, when off is not written yet; next is off;
//   - io.EOF, when it never will be: Status tells whether that is the end of
//     the stream or only of the writer.
//
// A reader that the writer overtakes while it copies gets a gap that reaches an
// eighth of the ring further than it must, lest it be overtaken on and on.
// ErrFormat: the file is damaged.
func (r *Reader) ReadAt(p []byte, off int64) (n int, next int64, gap *Gap, err error) {
	if off < 0 {
		return 0, off, nil, &os.PathError{Op: "read spool", Path: r.f.Name(), Err: syscall.EINVAL}
	}
	s, err := r.state()
	if err != nil {
		return 0, off, nil, err
	}
	switch {
	case off >= s.total && s.flags&flagClosed != 0:
		return 0, off, nil, io.EOF
	case off >= s.total || len(p) == 0:
		return 0, off, nil, nil
	}
	if gap = s.gapAt(r.l, off); gap != nil {
		return 0, gap.To, gap, nil
	}
	p = p[:min(int64(len(p)), s.readable(r.l, off))]
	if n, err = r.f.ReadAt(p, r.l.pos(off)); err != nil {
		return 0, off, nil, r.explain("read", shortIsFormat(err))
	}
	if off >= r.l.head && s.flags&flagClosed == 0 {
		if gap, err = r.overtaken(off); gap != nil {
			return 0, gap.To, gap, err
		} else if err != nil {
			return 0, off, nil, err
		}
	}
	return n, off + int64(n), nil, nil
}

// overtaken returns a gap when the byte at off may have been overwritten by now.
func (r *Reader) overtaken(off int64) (*Gap, error) {
	s, err := r.state()
	if err != nil {
		return nil, err
	}
	start := r.l.start(&s)
	if off >= start {
		return nil, nil
	}
	return &Gap{off, max(start, min(s.total, start+r.l.ring()/8)), Overwritten}, nil
}

// How often the slots are read before they count as damaged.
const (
	stateTries = 2000
	stillTries = 10 // when nothing changes
)

// state reads the slots. With both whole the later one is at least as new as
// this call: the current one was read, or was overwritten by one newer still.
// With one torn that does not follow, as the whole one may have been read
// before the other was begun; when nothing has changed on a second look, it was
// current at the first.
func (r *Reader) state() (state, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var slots [2]state
	for try, still := 0, 0; try < stateTries && still < stillTries; try++ {
		if _, err := r.f.ReadAt(r.now[:], slotsAt); err != nil {
			return state{}, r.explain("read header", shortIsFormat(err))
		}
		same := try > 0 && bytes.Equal(r.now[:], r.before[:])
		a, b := slots[0].decode(r.l, r.now[:slotSize]), slots[1].decode(r.l, r.now[slotSize:])
		switch s := later(&slots, a, b); {
		case s == nil || !same && !(a && b):
		case s.seq >= r.s.seq && s.total >= r.s.total:
			r.s = *s
			return r.s, nil
		case s.seq < r.s.seq && !(a && b): // the newest was spoilt by a write that failed
			return r.s, nil
		}
		r.before = r.now
		if !same {
			still = 0
			continue
		}
		still++
		time.Sleep(50 * time.Microsecond)
	}
	return state{}, r.explain("read header", ErrFormat)
}

func later(slots *[2]state, a, b bool) *state {
	switch {
	case a && (!b || slots[0].seq > slots[1].seq):
		return &slots[0]
	case b:
		return &slots[1]
	}
	return nil
}

func (r *Reader) explain(op string, err error) error {
	var e *os.PathError
	if errors.As(err, &e) {
		return err
	}
	return &os.PathError{Op: op + " of spool", Path: r.f.Name(), Err: err}
}

// shortIsFormat: what the state speaks of must be in the file.
func shortIsFormat(err error) error {
	if errors.Is(err, io.EOF) {
		return ErrFormat
	}
	return err
}

// Wait returns when the stream has had more than total bytes or its writer is
// done, or with ctx's error. A writer that was killed is not done, so whoever
// knows of its end must end ctx.
func (r *Reader) Wait(ctx context.Context, total int64) (Status, error) {
	var b *bell
	calm := false
	for pause := time.Duration(0); ; {
		st, err := r.Status()
		if err == nil {
			err = ctx.Err()
		}
		if err != nil || st.Total > total || st.Closed {
			b.disarm()
			if calm {
				r.waited()
			}
			return st, err
		}
		if !calm {
			calm = true
			if r.calm(ctx) {
				continue
			}
		}
		if b == nil { // look again before waiting for the next write
			if b = r.watch.arm(r.f); b != nil {
				continue
			}
		}
		pause = b.pause(pause)
		b = b.wait(ctx, pause)
	}
}

// A stream that flows fast would wake its reader for every piece, which costs
// both more than the piece: so waits that follow on each other closely begin
// with a pause, short enough that a writer at 4 GiB/s does not fill a quarter of
// the ring.
const (
	closely   = 200 * time.Microsecond
	ringBytes = 4 * 4 << 30 / int64(time.Second) // of the ring for a nanosecond
)

// calm pauses, or tells that there is no need.
func (r *Reader) calm(ctx context.Context) bool {
	r.mu.Lock()
	last := r.woken
	r.mu.Unlock()
	if time.Since(last) > closely {
		return false
	}
	(*bell)(nil).wait(ctx, min(closely, time.Duration(r.l.ring()/ringBytes)))
	return true
}

func (r *Reader) waited() {
	r.mu.Lock()
	r.woken = time.Now()
	r.mu.Unlock()
}
