package spool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"pinfold.dev/internal/sys/systest"
)

func newSuite() *systest.Suite {
	return systest.New(map[string]systest.Helper{
		"pattern":  patternHelper,
		"generate": generateHelper,
		"keep":     keepHelper,
		"sink":     sinkHelper,
		"fulldisk": fullDiskHelper,
		"filesize": fileSizeHelper,
	})
}

var suite = newSuite()

func TestMain(m *testing.M) { suite.Main(m) }

// The content of every stream here tells its own offset: a byte read from the
// wrong place, or from two times, is noticed.
func fill(p []byte, off int64) {
	var w [8]byte
	for len(p) > 0 {
		binary.LittleEndian.PutUint64(w[:], mix(uint64(off)>>3))
		n := copy(p, w[off&7:])
		p, off = p[n:], off+int64(n)
	}
}

func mix(x uint64) uint64 {
	x = (x + 0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>29) * 0x94d049bb133111eb
	return x ^ x>>32
}

// verify compares p with what the stream has at off.
func verify(p []byte, off int64) error {
	var want [4096]byte
	for len(p) > 0 {
		n := min(len(p), len(want))
		fill(want[:n], off)
		for i := range n {
			if p[i] != want[i] {
				return fmt.Errorf("byte %d is %#x instead of %#x", off+int64(i), p[i], want[i])
			}
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// tester is what testing and rapid have in common.
type tester interface {
	Helper()
	Fatalf(format string, args ...any)
}

func create(t tester, path string, max int64) *Writer {
	t.Helper()
	w, err := Create(path, max)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return w
}

// say writes n bytes of the stream.
func say(t tester, w *Writer, n int) {
	t.Helper()
	p := make([]byte, n)
	fill(p, w.Status().Total)
	if k, err := w.Write(p); k != n || err != nil {
		t.Fatalf("write %d bytes: %d, %v", n, k, err)
	}
}

// walk reads all that is there, of a spool that is not being written, checks
// each byte, and holds the account of what is missing against Status.
func walk(r *Reader, p []byte) (gaps []Gap, err error) {
	st, err := r.Status()
	if err != nil {
		return nil, err
	}
	missing := int64(0)
	for off := int64(0); off < st.Total; {
		n, next, gap, err := r.ReadAt(p, off)
		switch {
		case err != nil:
			return gaps, fmt.Errorf("read at %d: %w", off, err)
		case gap != nil:
			if n != 0 || gap.From != off || gap.To != next || next <= off || gap.Reason == 0 {
				return gaps, fmt.Errorf("read at %d: %d bytes, next %d, gap %v", off, n, next, *gap)
			}
			missing += gap.To - gap.From
			gaps = append(gaps, *gap)
		case n <= 0 || next != off+int64(n):
			return gaps, fmt.Errorf("read at %d: %d bytes, next %d", off, n, next)
		default:
			if err := verify(p[:n], off); err != nil {
				return gaps, err
			}
		}
		off = next
	}
	if missing != st.Dropped || st.Lost > st.Dropped {
		return gaps, fmt.Errorf("%d bytes are missing, status says %+v", missing, st)
	}
	n, next, gap, err := r.ReadAt(p, st.Total)
	if n != 0 || next != st.Total || gap != nil || (st.Closed) != errors.Is(err, io.EOF) {
		return gaps, fmt.Errorf("read at the end: %d, %d, %v, %v", n, next, gap, err)
	}
	return gaps, nil
}

// mustWalk opens a file for a walk.
func mustWalk(t tester, path string) (Status, []Gap) {
	t.Helper()
	r, err := Open(path)
	if err != nil {
		t.Fatalf("%v", err)
	}
	defer r.Close()
	gaps, err := walk(r, make([]byte, 7000))
	if err != nil {
		t.Fatalf("%v", err)
	}
	st, err := r.Status()
	if err != nil {
		t.Fatalf("%v", err)
	}
	return st, gaps
}

func mustOpen(t tester, path string) *Reader {
	t.Helper()
	r, err := Open(path)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return r
}

func number(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}

// patternHelper writes a stream in pieces of random sizes: path, max, total
// (0: without end).
func patternHelper(args []string) error {
	w, err := Create(args[0], number(args[1]))
	if err != nil {
		return err
	}
	fmt.Println("made")
	total, p := number(args[2]), make([]byte, 70_000)
	for at := int64(0); total == 0 || at < total; {
		n := rand.IntN(len(p))
		if rand.IntN(3) > 0 {
			n = rand.IntN(500)
		}
		if total > 0 {
			n = int(min(int64(n), total-at))
		}
		fill(p[:n], at)
		if _, err := w.Write(p[:n]); err != nil {
			return err
		}
		at += int64(n)
	}
	return w.Close(true)
}

// testDir is a directory on a disk, where there is one.
func testDir(t testing.TB) string { return t.TempDir() }

func file(dir string, i int) string { return filepath.Join(dir, strconv.Itoa(i)) }

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
