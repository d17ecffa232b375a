package spool

import (
	"encoding/binary"
	"errors"
)

// Sizes of spools, in bytes of stream that are kept. A file has a header of
// 4096 bytes in addition.
const (
	MinMax     = 4 << 10
	MaxMax     = 1 << 30
	DefaultMax = 16 << 20
)

// The header page.
const (
	headerSize = 4096
	magic      = 0x0a6c6f6f7073_6670 // "pfspool\n"
	version    = 1
	fixedSize  = 5 * 8 // magic, version, max, head, checksum
	slotsAt    = 1024
	slotSize   = 1024
	maxRanges  = 32
	slotWords  = 9
	rangeWords = 3
	maxTotal   = 1 << 62
)

// What a reader says of a file that it does not trust.
var (
	ErrFormat  = errors.New("not a spool, or damaged")
	ErrVersion = errors.New("spool of an unknown version")
	ErrOwner   = errors.New("not a file of this user alone")
)

// layout tells where the bytes are. Its head is never empty and smaller than max.
type layout struct{ max, head int64 }

func (l layout) ring() int64 { return l.max - l.head }

// pos is the place of a byte in the file.
func (l layout) pos(off int64) int64 {
	if off < l.head {
		return headerSize + off
	}
	return headerSize + l.head + (off-l.head)%l.ring()
}

// run is how many bytes from off on are side by side in the file, be they
// written or not.
func (l layout) run(off int64) int64 {
	if off < l.head {
		return l.head - off
	}
	return l.ring() - (off-l.head)%l.ring()
}

// start is the first offset of the ring that is not overwritten.
func (l layout) start(s *state) int64 {
	return min(max(l.head, s.written-l.ring()), max(l.head, s.total))
}

func (l layout) encode(b []byte) {
	for i, w := range []int64{magic, version, l.max, l.head} {
		put(b, i, uint64(w))
	}
	put(b, 4, sum(b[:32]))
}

func decodeLayout(b []byte) (l layout, err error) {
	switch {
	case len(b) < fixedSize || word(b, 0) != magic:
		return l, ErrFormat
	case word(b, 1) != version:
		return l, ErrVersion
	case word(b, 4) != sum(b[:32]):
		return l, ErrFormat
	}
	l = layout{int64(word(b, 2)), int64(word(b, 3))}
	if l.max < MinMax || l.max > MaxMax || l.head <= 0 || l.head >= l.max {
		return l, ErrFormat
	}
	return l, nil
}

// Flags of a state.
const (
	flagEOF    = 1 << iota // the stream ended
	flagClosed             // the writer writes no more
)

// state is what a slot says.
type state struct {
	seq     uint64
	total   int64 // bytes the stream has had
	written int64 // the end of what went, or is just going, into the file
	lost    int64 // bytes that never went there
	flags   uint64
	errors  uint64
	errno   uint64 // of the last error
	n       int
	gone    [maxRanges]Gap // what is lost and not overwritten since, ascending
}

// encode returns the part of b that was used. Its first word is the checksum of
// the others.
func (s *state) encode(b []byte) []byte {
	for i, w := range []uint64{s.seq, uint64(s.total), uint64(s.written), uint64(s.lost), s.flags, s.errors, s.errno, uint64(s.n)} {
		put(b, 1+i, w)
	}
	at := slotWords
	for _, g := range s.gone[:s.n] {
		put(b, at, uint64(g.From))
		put(b, at+1, uint64(g.To))
		put(b, at+2, uint64(g.Reason))
		at += rangeWords
	}
	b = b[:at*8]
	put(b, 0, sum(b[8:]))
	return b
}

// decode tells whether b is a whole slot that makes sense in a file of layout l.
func (s *state) decode(l layout, b []byte) bool {
	n := word(b, 8)
	if n > maxRanges {
		return false
	}
	if word(b, 0) != sum(b[8:(slotWords+rangeWords*n)*8]) {
		return false
	}
	*s = state{
		seq: word(b, 1), total: int64(word(b, 2)), written: int64(word(b, 3)), lost: int64(word(b, 4)),
		flags: word(b, 5), errors: word(b, 6), errno: word(b, 7), n: int(n),
	}
	for i := range s.gone[:n] {
		at := slotWords + rangeWords*i
		s.gone[i] = Gap{int64(word(b, at)), int64(word(b, at+1)), Reason(word(b, at+2))}
	}
	return s.sane(l)
}

func (s *state) sane(l layout) bool {
	if s.total < 0 || s.total > maxTotal || s.written < 0 || s.written > maxTotal || s.lost < 0 || s.lost > s.total {
		return false
	}
	last := int64(0)
	for _, g := range s.gone[:s.n] {
		if g.From < last || g.To <= g.From || g.To > s.total || (g.From < l.head && g.To > l.head) {
			return false
		}
		last = g.To
	}
	return true
}

// sum is a checksum against torn and flipped bits: any change of one word
// changes it.
func sum(b []byte) uint64 {
	h := uint64(0x9e3779b97f4a7c15)
	for ; len(b) >= 8; b = b[8:] {
		h = (h ^ binary.LittleEndian.Uint64(b)) * 0xff51afd7ed558ccd
		h ^= h >> 32
	}
	return h
}

func word(b []byte, i int) uint64   { return binary.LittleEndian.Uint64(b[8*i:]) }
func put(b []byte, i int, w uint64) { binary.LittleEndian.PutUint64(b[8*i:], w) }
