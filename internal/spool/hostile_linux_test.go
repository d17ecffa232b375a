package spool

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"pinfold.dev/internal/sys/systest"
)

// sample is the file of a spool that has wrapped, with a refusal.
func sample(t testing.TB) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x")
	w, err := Create(path, MinMax)
	if err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 9000)
	fill(p, 0)
	_, _ = w.Write(p)
	_ = w.Drop(100)
	p = p[:1000]
	fill(p, 9100)
	_, _ = w.Write(p)
	if err := w.Close(true); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func mustWrite(t testing.TB, path string, b []byte, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, b, mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func TestOpenRefuses(t *testing.T) {
	good := sample(t)
	mangled := func(i int, b byte) []byte {
		m := bytes.Clone(good)
		m[i] ^= b
		return m
	}
	tests := []struct {
		name string
		make func(path string)
		want error
	}{
		{"missing", func(string) {}, os.ErrNotExist},
		{"link", func(path string) { os.Symlink("target", path) }, syscall.ELOOP},
		{"pipe", func(path string) { syscall.Mkfifo(path, 0o600) }, ErrOwner},
		{"directory", func(path string) { os.Mkdir(path, 0o700) }, ErrOwner},
		{"writable", func(path string) { mustWrite(t, path, good, 0o620) }, ErrOwner},
		{"empty", func(path string) { mustWrite(t, path, nil, 0o600) }, ErrFormat},
		{"one byte", func(path string) { mustWrite(t, path, good[:1], 0o600) }, ErrFormat},
		{"no slots", func(path string) { mustWrite(t, path, good[:slotsAt+1], 0o600) }, ErrFormat},
		{"text", func(path string) { mustWrite(t, path, bytes.Repeat([]byte("text"), 4000), 0o600) }, ErrFormat},
		{"zeros", func(path string) { mustWrite(t, path, make([]byte, 8192), 0o600) }, ErrFormat},
		{"magic", func(path string) { mustWrite(t, path, mangled(3, 1), 0o600) }, ErrFormat},
		{"version", func(path string) { mustWrite(t, path, mangled(8, 2), 0o600) }, ErrVersion},
		{"max", func(path string) { mustWrite(t, path, mangled(16, 1), 0o600) }, ErrFormat},
		{"head", func(path string) { mustWrite(t, path, mangled(24, 1), 0o600) }, ErrFormat},
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "target"), good, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range tests {
		path := filepath.Join(dir, test.name)
		test.make(path)
		if r, err := Open(path); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", test.name, err, test.want)
			if err == nil {
				r.Close()
			}
		}
	}
	mustWalk(t, filepath.Join(dir, "target")) // which is good
}

func TestOpenRefusesOthers(t *testing.T) {
	systest.Root(t)
	path := filepath.Join(t.TempDir(), "x")
	mustWrite(t, path, sample(t), 0o600)
	mustWalk(t, path)
	if err := os.Chown(path, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path); !errors.Is(err, ErrOwner) {
		t.Errorf("somebody else's: %v", err)
	}
}

// TestFlippedBits: any one bit of the header may be wrong. Then the file is
// refused, or read as if the last step of the writer had not been.
func TestFlippedBits(t *testing.T) {
	good := sample(t)
	path := filepath.Join(t.TempDir(), "x")
	mustWrite(t, path, good, 0o600)
	whole, _ := mustWalk(t, path)
	refused, older := 0, 0
	for bit := range 8 * headerSize {
		if bit%8 != (bit/8)%8 && bit/8 > fixedSize { // some of those of the slots
			continue
		}
		good[bit/8] ^= 1 << (bit % 8)
		mustWrite(t, path, good, 0o600)
		good[bit/8] ^= 1 << (bit % 8)
		r, err := Open(path)
		if err != nil {
			refused++
			continue
		}
		if st, err := r.Status(); err != nil || st != whole {
			older++
		}
		if _, err := walk(r, make([]byte, 5000)); err != nil {
			t.Fatalf("bit %d: %v", bit, err)
		}
		r.Close()
	}
	if refused < 8*fixedSize || older == 0 {
		t.Errorf("%d were refused, %d were older", refused, older)
	}
}

// TestTruncated: what is cut off while it is open is an error, not a gap.
func TestTruncated(t *testing.T) {
	good := sample(t)
	path := filepath.Join(t.TempDir(), "x")
	for _, size := range []int64{0, 100, slotsAt + 10, headerSize, headerSize + 100, int64(len(good)) - 1} {
		mustWrite(t, path, good, 0o600)
		r := mustOpen(t, path)
		if err := os.Truncate(path, size); err != nil {
			t.Fatal(err)
		}
		if _, err := walk(r, make([]byte, 5000)); !errors.Is(err, ErrFormat) {
			t.Errorf("cut to %d: %v", size, err)
		}
		r.Close()
	}
}

// TestWentBack: a file that tells less than before is damaged.
func TestWentBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	w := create(t, path, MinMax)
	defer w.Close(false)
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	say(t, w, 100)
	r := mustOpen(t, path)
	defer r.Close()
	mustWrite(t, path, old, 0o600)
	if _, err := r.Status(); !errors.Is(err, ErrFormat) {
		t.Errorf("status: %v", err)
	}
}

// FuzzOpen reads files that are wrong in every way but their checksums.
func FuzzOpen(f *testing.F) {
	good := sample(f)
	f.Add(good[:fixedSize], good[slotsAt:slotsAt+200], good[slotsAt+slotSize:slotsAt+slotSize+200], good[headerSize:], int64(5), true)
	f.Add([]byte("pfspool\n"), []byte{}, []byte{1}, []byte{}, int64(-1), false)
	path := filepath.Join(f.TempDir(), "x")
	f.Fuzz(func(t *testing.T, fixed, a, b, data []byte, off int64, resum bool) {
		image := make([]byte, headerSize+len(data))
		copy(image[:fixedSize], fixed)
		copy(image[slotsAt:][:slotSize], a)
		copy(image[slotsAt+slotSize:][:slotSize], b)
		copy(image[headerSize:], data)
		if resum {
			put(image, 4, sum(image[:32]))
			for _, s := range [][]byte{image[slotsAt:], image[slotsAt+slotSize:]} {
				put(s, 8, word(s, 8)%(maxRanges+1))
				put(s, 0, sum(s[8:(slotWords+rangeWords*word(s, 8))*8]))
			}
		}
		if err := os.WriteFile(path, image, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := Open(path)
		if err != nil {
			return
		}
		defer r.Close()
		probe(t, r, off)
	})
}

// FuzzState decodes slots whose checksums are right, and has readers and
// writers compute with them.
func FuzzState(f *testing.F) {
	good := sample(f)
	f.Add(good[slotsAt:slotsAt+slotSize], int64(MinMax), int64(MinMax/4), int64(2000))
	f.Add(good[slotsAt+slotSize:slotsAt+2*slotSize], int64(MaxMax), int64(1), int64(-1))
	f.Fuzz(func(t *testing.T, slot []byte, most, head, off int64) {
		var fixed [fixedSize]byte
		layout{most, head}.encode(fixed[:])
		l, err := decodeLayout(fixed[:])
		if err != nil {
			return
		}
		var b, again [slotSize]byte
		copy(b[:], slot)
		put(b[:], 8, word(b[:], 8)%(maxRanges+1))
		size := (slotWords + rangeWords*word(b[:], 8)) * 8
		put(b[:], 0, sum(b[8:size]))
		var s state
		if !s.decode(l, b[:]) {
			return
		}
		if !bytes.Equal(s.encode(again[:]), b[:size]) && !hasLongReason(b[:]) {
			t.Fatal("encoded otherwise than it was decoded from")
		}
		compute(t, l, &s, off)
		before := s.status(l)
		s.prune(l)
		if after := s.status(l); after != before {
			t.Fatalf("pruned from %+v to %+v", before, after)
		}
		s.lose(l, s.total, s.total+1000, Lost)
		if s.total += 1000; s.total <= maxTotal && before.Lost <= before.Dropped && !s.sane(l) {
			t.Fatalf("insane after a loss: %+v", s)
		}
	})
}

// hasLongReason: of a reason one byte is used.
func hasLongReason(b []byte) bool {
	for i := range word(b, 8) {
		if word(b, int(slotWords+rangeWords*i+2)) > 255 {
			return true
		}
	}
	return false
}

// compute holds gaps and readable runs against the status.
func compute(t *testing.T, l layout, s *state, off int64) {
	st := s.status(l)
	if st.Dropped < 0 || st.Dropped > st.Total || st.Total < 0 {
		t.Fatalf("%+v", st)
	}
	for _, at := range []int64{0, off, l.head - 1, l.head, s.total - 1} {
		for range 100 {
			if at < 0 || at >= s.total {
				break
			}
			next := at
			if g := s.gapAt(l, at); g != nil {
				next = g.To
			} else if n := s.readable(l, at); n > 0 {
				next += n
				if from := l.pos(at); from < headerSize || from+n > headerSize+l.max {
					t.Fatalf("%d bytes at %d are %d in the file", n, at, from)
				}
			}
			if next <= at || next > s.total {
				t.Fatalf("from %d to %d of %d", at, next, s.total)
			}
			at = next
		}
	}
}

// probe calls everything on a reader that may hold anything.
func probe(t *testing.T, r *Reader, off int64) {
	st, err := r.Status()
	if err != nil || st.Dropped < 0 || st.Dropped > st.Total || st.Lost < 0 {
		t.Fatalf("%+v, %v", st, err)
	}
	if tail, err := r.Tail(off); err != nil || tail < 0 || tail > st.Total {
		t.Fatalf("tail: %d, %v", tail, err)
	}
	p := make([]byte, 1000)
	for _, at := range []int64{0, off, st.Total - 1} {
		for range 100 {
			n, next, gap, err := r.ReadAt(p, at)
			if err != nil || next == at {
				break
			}
			if next < at || (gap == nil) == (n == 0) || next > st.Total {
				t.Fatalf("read at %d: %d, %d, %v", at, n, next, gap)
			}
			at = next
		}
	}
}
