package spool

import "syscall"

// Gap is a run of bytes that cannot be read (any more): those from From up to,
// but not including, To.
type Gap struct {
	From, To int64
	Reason   Reason
}

// Reason tells why a byte cannot be read.
type Reason uint8

// The reasons.
const (
	Overwritten Reason = iota + 1 // later bytes took its place
	Lost                          // it could not be written: Status.Errno
	Refused                       // it was not to be kept: Writer.Drop
)

func (r Reason) String() string {
	switch r {
	case Overwritten:
		return "overwritten"
	case Lost:
		return "lost"
	case Refused:
		return "refused"
	}
	return "unknown"
}

// Status is how far a stream is.
type Status struct {
	Total   int64 // bytes the stream has had
	Dropped int64 // of these, the bytes that cannot be read any more, for whatever reason
	Lost    int64 // of these, the bytes that never were in the file: a full disk, or not wanted
	Max     int64 // bytes that are kept
	EOF     bool  // the stream ended
	Closed  bool  // the writer is done, with or without EOF; one that was killed does not say so

	Errors int64         // writes that went wrong
	Errno  syscall.Errno // why the last of them did
}

func (s *state) status(l layout) Status {
	out := Status{
		Total: s.total, Lost: s.lost, Max: l.max, EOF: s.flags&flagEOF != 0, Closed: s.flags&flagClosed != 0,
		Errors: int64(s.errors), Errno: syscall.Errno(s.errno),
	}
	start := l.start(s)
	if start > l.head {
		out.Dropped = start - l.head
	}
	for _, g := range s.gone[:s.n] {
		if g.From >= l.head {
			g.From = max(g.From, start)
		}
		out.Dropped += max(0, g.To-g.From)
	}
	return out
}

// gapAt is the gap that off is in, if any.
func (s *state) gapAt(l layout, off int64) *Gap {
	if start := l.start(s); off >= l.head && off < start {
		return &Gap{off, start, Overwritten}
	}
	for _, g := range s.gone[:s.n] {
		if g.From <= off && off < g.To {
			return &Gap{off, g.To, g.Reason}
		}
	}
	return nil
}

// readable is how many bytes from off on, which is in no gap, can be read at
// once.
func (s *state) readable(l layout, off int64) int64 {
	n := min(l.run(off), s.total-off)
	for _, g := range s.gone[:s.n] {
		if g.From > off {
			return min(n, g.From-off)
		}
	}
	return n
}

// lose records that the bytes from from to to are lost. Ranges do not reach
// from the head into the ring, which forgets them when it is overwritten.
func (s *state) lose(l layout, from, to int64, why Reason) {
	if from < l.head && to > l.head {
		s.lose(l, from, l.head, why)
		from = l.head
	}
	if from >= to {
		return
	}
	s.lost += to - from
	if s.n > 0 {
		if last := &s.gone[s.n-1]; last.To == from && from != l.head && last.Reason == why {
			last.To = to
			return
		}
	}
	if s.n == maxRanges {
		s.merge(l)
	}
	s.gone[s.n] = Gap{from, to, why}
	s.n++
}

// merge makes one range of the two that are nearest to each other and gives up
// the bytes between.
func (s *state) merge(l layout) {
	best, size := 0, int64(-1)
	for i := range s.n - 1 {
		a, b := s.gone[i], s.gone[i+1]
		if a.From < l.head && b.From >= l.head {
			continue
		}
		if d := b.From - a.To; size < 0 || d < size {
			best, size = i, d
		}
	}
	s.lost += size
	s.gone[best].To = s.gone[best+1].To
	copy(s.gone[best+1:s.n], s.gone[best+2:s.n])
	s.n--
}

// prune forgets ranges that are overwritten.
func (s *state) prune(l layout) {
	start, kept := l.start(s), 0
	for _, g := range s.gone[:s.n] {
		if g.From >= l.head {
			if g.To <= start {
				continue
			}
			g.From = max(g.From, start)
		}
		s.gone[kept] = g
		kept++
	}
	s.n = kept
}
