package spool

import (
	"errors"
	"io"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// model says for every byte of a stream why it cannot be read; 0: it can.
type model struct {
	max, head int64
	why       []Reason
	lost      int64
}

func (m *model) write(n int) {
	if n == 0 {
		return
	}
	m.why = append(m.why, make([]Reason, n)...)
	for i := m.head; i < int64(len(m.why))-(m.max-m.head); i++ {
		m.why[i] = Overwritten
	}
}

func (m *model) drop(n int) {
	for range n {
		m.why = append(m.why, Refused)
	}
	m.lost += int64(n)
}

func (m *model) dropped() (n int64) {
	for _, r := range m.why {
		if r != 0 {
			n++
		}
	}
	return n
}

// gapAt is the gap that begins at off. Gaps of lost bytes do not reach across
// the head's end.
func (m *model) gapAt(off int64) *Gap {
	g := Gap{From: off, To: off, Reason: m.why[off]}
	for g.To < int64(len(m.why)) && m.why[g.To] == g.Reason {
		if g.To++; g.To == m.head && g.Reason != Overwritten {
			break
		}
	}
	return &g
}

// refusals bounds the gaps of a model: a spool lists 32 of them.
const refusals = 30

// genMax favours small spools, whose edges are met often.
func genMax() *rapid.Generator[int64] {
	return rapid.OneOf(rapid.Int64Range(MinMax, MinMax+20), rapid.Int64Range(MinMax, 64<<10))
}

func genSize() *rapid.Generator[int] {
	return rapid.OneOf(rapid.IntRange(0, 40), rapid.IntRange(0, 5000), rapid.IntRange(0, 80_000))
}

func TestModel(t *testing.T) {
	dir, i := testDir(t), 0
	rapid.Check(t, func(t *rapid.T) {
		i++
		max := genMax().Draw(t, "max")
		w := create(t, file(dir, i), max)
		defer w.Close(false)
		r := mustOpen(t, file(dir, i))
		defer r.Close()
		m := &model{max: max, head: max / 4}
		drops := 0
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				n := genSize().Draw(t, "n")
				say(t, w, n)
				m.write(n)
			},
			"drop": func(t *rapid.T) {
				if drops++; drops > refusals {
					return
				}
				n := rapid.IntRange(0, 5000).Draw(t, "n")
				if err := w.Drop(int64(n)); err != nil {
					t.Fatalf("%v", err)
				}
				m.drop(n)
			},
			"read": func(t *rapid.T) { m.checkRead(t, r) },
			"tail": func(t *rapid.T) { m.checkTail(t, r) },
			"":     func(t *rapid.T) { m.checkStatus(t, w, r) },
		})
		if _, err := walk(r, make([]byte, rapid.IntRange(1, 100_000).Draw(t, "p"))); err != nil {
			t.Fatalf("%v", err)
		}
	})
}

func (m *model) checkStatus(t *rapid.T, w *Writer, r *Reader) {
	st, err := r.Status()
	want := Status{Total: int64(len(m.why)), Dropped: m.dropped(), Lost: m.lost, Max: m.max}
	if err != nil || st != want || w.Status() != want {
		t.Fatalf("status %+v, %v; the writer's %+v; want %+v", st, err, w.Status(), want)
	}
}

func (m *model) checkTail(t *rapid.T, r *Reader) {
	total := int64(len(m.why))
	n := rapid.Int64Range(-1, total+10).Draw(t, "n")
	want := max(0, total-max(n, 0))
	for want < total && m.why[want] == Overwritten {
		want++
	}
	if off, err := r.Tail(n); err != nil || off != want {
		t.Fatalf("tail of %d in %d: %d, %v; want %d", n, total, off, err, want)
	}
}

func (m *model) checkRead(t *rapid.T, r *Reader) {
	total := int64(len(m.why))
	off := rapid.Int64Range(0, total+10).Draw(t, "off")
	p := make([]byte, rapid.IntRange(1, 9000).Draw(t, "len"))
	n, next, gap, err := r.ReadAt(p, off)
	switch {
	case err != nil:
		t.Fatalf("read at %d: %v", off, err)
	case off >= total:
		if n != 0 || next != off || gap != nil {
			t.Fatalf("read at %d of %d: %d bytes, next %d, gap %v", off, total, n, next, gap)
		}
	case m.why[off] != 0:
		if want := m.gapAt(off); gap == nil || *gap != *want || n != 0 || next != want.To {
			t.Fatalf("read at %d: %d bytes, next %d, gap %v; want %v", off, n, next, gap, want)
		}
	default:
		if n < 1 || n > len(p) || next != off+int64(n) || gap != nil {
			t.Fatalf("read at %d: %d bytes of %d, next %d, gap %v", off, n, len(p), next, gap)
		}
		for i := range p[:n] {
			if m.why[off+int64(i)] != 0 {
				t.Fatalf("read at %d: byte %d is %v", off, off+int64(i), m.why[off+int64(i)])
			}
		}
		if err := verify(p[:n], off); err != nil {
			t.Fatalf("%v", err)
		}
	}
}

// faulty has every write go through to the kernel, or in part, or not.
func faulty(t *rapid.T, w *Writer) {
	w.pwrite = func(fd int, p []byte, off int64) (int, error) {
		switch rapid.IntRange(0, 5).Draw(t, "fault") {
		case 0:
			return -1, rapid.SampledFrom([]error{syscall.ENOSPC, syscall.EDQUOT, syscall.EIO}).Draw(t, "errno")
		case 1:
			return syscall.Pwrite(fd, p[:rapid.IntRange(0, len(p)).Draw(t, "short")], off)
		case 2:
			return -1, syscall.EINTR
		}
		return syscall.Pwrite(fd, p, off)
	}
}

// TestFaults: whatever fails, also in the header, what is read is right, what
// is missing is accounted for, and no offset moves.
func TestFaults(t *testing.T) {
	dir, i := testDir(t), 0
	rapid.Check(t, func(t *rapid.T) {
		i++
		w := create(t, file(dir, i), genMax().Draw(t, "max"))
		defer func() {
			w.pwrite = syscall.Pwrite
			w.Close(false)
		}()
		r := mustOpen(t, file(dir, i))
		defer r.Close()
		total := int64(0)
		for range rapid.IntRange(1, 60).Draw(t, "writes") {
			if rapid.Bool().Draw(t, "faulty") {
				faulty(t, w)
			} else {
				w.pwrite = syscall.Pwrite
			}
			if rapid.Bool().Draw(t, "later") {
				w.retry = time.Time{}
			}
			n := genSize().Draw(t, "n")
			say(t, w, n)
			if total += int64(n); w.Status().Total != total {
				t.Fatalf("total is %d instead of %d", w.Status().Total, total)
			}
			if _, err := walk(r, make([]byte, 9000)); err != nil {
				t.Fatalf("%v", err)
			}
		}
		w.pwrite, w.retry = syscall.Pwrite, time.Time{}
		say(t, w, 3000)
		st, err := r.Status()
		if err != nil || st != w.Status() || st.Total != total+3000 {
			t.Fatalf("status %+v, %v; the writer's %+v", st, err, w.Status())
		}
		off, err := r.Tail(3000) // all that was said last is there
		for p := make([]byte, 3000); err == nil && off < st.Total; {
			n, next, gap, err := r.ReadAt(p, off)
			if err != nil || gap != nil || verify(p[:n], off) != nil {
				t.Fatalf("read at %d of %+v: %d, %v, %v", off, st, n, gap, err)
			}
			off = next
		}
		if err != nil {
			t.Fatalf("%v", err)
		}
	})
}

// TestManyLosses: more losses than are listed cost the bytes between some, not
// the truth.
func TestManyLosses(t *testing.T) {
	path := filepath.Join(testDir(t), "x")
	w := create(t, path, 64<<10)
	defer w.Close(false)
	const times = 3 * maxRanges
	dearest := int64(0)
	for i := range times {
		say(t, w, 100+i)
		if err := w.Drop(int64(1 + i%7)); err != nil {
			t.Fatal(err)
		}
		if dearest += int64(1 + i%7); i < times-maxRanges { // the shortest are given up
			dearest += int64(100 + i)
		}
		mustWalk(t, path)
	}
	st, gaps := mustWalk(t, path)
	if len(gaps) != maxRanges || st.Lost != st.Dropped || st.Dropped > dearest+times {
		t.Errorf("%d gaps, %+v, expected at most %d lost", len(gaps), st, dearest)
	}
}

// TestLossesAreForgotten: what the ring has overwritten takes no place in the
// list.
func TestLossesAreForgotten(t *testing.T) {
	path := filepath.Join(testDir(t), "x")
	w := create(t, path, 64<<10)
	defer w.Close(false)
	const times = 10 * maxRanges
	for range times {
		say(t, w, 10_000)
		if err := w.Drop(10); err != nil {
			t.Fatal(err)
		}
	}
	if st, _ := mustWalk(t, path); st.Lost != 10*times {
		t.Errorf("%+v, want %d lost", st, 10*times)
	}
}

func TestClosed(t *testing.T) {
	for _, eof := range []bool{true, false} {
		path := filepath.Join(testDir(t), "x")
		w := create(t, path, 0)
		say(t, w, 10)
		for range 2 {
			if err := w.Close(eof); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := w.Write([]byte("x")); err == nil {
			t.Error("a closed spool was written to")
		}
		if w.Drop(1) == nil {
			t.Error("a closed spool dropped")
		}
		st, _ := mustWalk(t, path)
		if want := (Status{Total: 10, Max: DefaultMax, EOF: eof, Closed: true}); st != want {
			t.Errorf("status %+v, want %+v", st, want)
		}
		r := mustOpen(t, path)
		if n, next, gap, err := r.ReadAt(make([]byte, 5), 1<<40); n != 0 || next != 1<<40 || gap != nil || !errors.Is(err, io.EOF) {
			t.Errorf("read beyond the end: %d, %d, %v, %v", n, next, gap, err)
		}
		if _, _, _, err := r.ReadAt(make([]byte, 5), -1); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("read at -1: %v", err)
		}
		r.Close()
	}
}
