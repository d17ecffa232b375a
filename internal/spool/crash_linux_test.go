package spool

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pinfold.dev/internal/sys/systest"
)

// stroke is a write to the file, and what the writer knew before it.
type stroke struct {
	at    int64
	data  []byte
	total int64
}

// TestCutAnywhere applies every prefix of a writer's writes to a file, the last
// one in part, as a kill would leave them, and reads it.
func TestCutAnywhere(t *testing.T) {
	dir, i := testDir(t), 0
	rapid.Check(t, func(t *rapid.T) {
		i++
		path := file(dir, i)
		w := create(t, path, genMax().Draw(t, "max"))
		image, err := os.ReadFile(path)
		if err != nil {
			t.Fatalf("%v", err)
		}
		var strokes []stroke
		done := int64(0) // published
		w.pwrite = func(fd int, p []byte, off int64) (int, error) {
			strokes = append(strokes, stroke{off, append([]byte(nil), p...), done})
			return syscall.Pwrite(fd, p, off)
		}
		for range rapid.IntRange(1, 12).Draw(t, "writes") {
			if rapid.IntRange(0, 3).Draw(t, "what") == 0 {
				_ = w.Drop(int64(rapid.IntRange(0, 900).Draw(t, "n")))
			} else {
				say(t, w, genSize().Draw(t, "n"))
			}
			done = w.Status().Total
		}
		if err := w.Close(true); err != nil {
			t.Fatalf("%v", err)
		}
		last := int64(0)
		for k, s := range strokes {
			cut := rapid.IntRange(0, len(s.data)).Draw(t, "cut")
			st := readCut(t, path, splice(image, s.at, s.data[:cut]))
			if st.Total < s.total || st.Total < last {
				t.Fatalf("cut in write %d: total %d, though %d were published", k, st.Total, s.total)
			}
			last = st.Total
			image = splice(image, s.at, s.data)
		}
		if st := readCut(t, path, image); !st.EOF {
			t.Fatalf("no end: %+v", st)
		}
	})
}

// splice returns a copy of image with data at a place.
func splice(image []byte, at int64, data []byte) []byte {
	out := make([]byte, max(len(image), int(at)+len(data)))
	copy(out, image)
	copy(out[at:], data)
	return out
}

func readCut(t *rapid.T, path string, image []byte) Status {
	if err := os.WriteFile(path, image, 0o600); err != nil {
		t.Fatalf("%v", err)
	}
	st, _ := mustWalk(t, path)
	return st
}

// TestKilled kills a writer at a random moment, while somebody follows it.
func TestKilled(t *testing.T) {
	dir := testDir(t)
	rounds := 25
	if testing.Short() {
		rounds = 5
	}
	for i := range rounds {
		path := file(dir, i)
		max := []string{"4096", "70000", "2000000"}[i%3]
		p := systest.Start(t, suite.Command(t, "pattern", path, max, "0"))
		p.Line(t)
		r := mustOpen(t, path)
		end := time.Now().Add(time.Duration(rand.IntN(20)) * time.Millisecond)
		seen, buf := int64(0), make([]byte, 50_000)
		for time.Now().Before(end) {
			n, next, _, err := r.ReadAt(buf, seen)
			if err == nil {
				err = verify(buf[:n], seen)
			}
			if err != nil {
				t.Fatal(err)
			}
			seen = next
		}
		p.End()
		if _, err := walk(r, buf); err != nil {
			t.Fatal(err)
		}
		st, err := r.Status()
		if err != nil || st.Total < seen || st.Closed {
			t.Errorf("status %+v, %v; %d bytes were seen", st, err, seen)
		}
		r.Close()
		if st2, _ := mustWalk(t, path); st2 != st {
			t.Errorf("status %+v, and of another reader %+v", st, st2)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

// TestExclusive: a spool is made, never taken over.
func TestExclusive(t *testing.T) {
	dir := testDir(t)
	path, link := filepath.Join(dir, "x"), filepath.Join(dir, "link")
	w := create(t, path, MinMax)
	defer w.Close(true)
	if err := os.Symlink(filepath.Join(dir, "target"), link); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{path, link, filepath.Join(dir, "no", "x")} {
		if w, err := Create(p, MinMax); err == nil {
			w.Close(false)
			t.Errorf("%s was made", p)
		}
	}
	for _, max := range []int64{-1, 1, MinMax - 1, MaxMax + 1} {
		if w, err := Create(filepath.Join(dir, "y"), max); err == nil {
			w.Close(false)
			t.Errorf("a spool of %d bytes was made", max)
		}
	}
	if exists(filepath.Join(dir, "y")) || exists(filepath.Join(dir, "target")) {
		t.Error("a refusal left a file")
	}
	fi, err := os.Stat(path)
	if err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", fi.Mode(), err)
	}
}
