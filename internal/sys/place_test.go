package sys

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

func TestPlaces(t *testing.T) {
	a := Place{Dev: 1, Ino: 2, Born: 3}
	for what, c := range map[string]struct {
		b    Place
		same bool
	}{
		"itself":                {a, true},
		"an overlay anew":       {Place{9, 9, 3}, true},
		"its numbers, later":    {Place{1, 2, 4}, false},
		"no birth, its numbers": {Place{1, 2, 0}, true},
		"no birth, its inode":   {Place{9, 2, 0}, false},
		"no birth, its device":  {Place{1, 9, 0}, false},
	} {
		if a.Same(c.b) != c.same || c.b.Same(a) != c.same {
			t.Errorf("%s: same %v", what, a.Same(c.b))
		}
	}
	if _, err := PlaceOf("."); errors.Is(err, syscall.ENOSYS) {
		return // not on this system
	}
	dir := t.TempDir()
	one, err := PlaceOf(dir)
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := errors.Join(os.Rename(dir, dir+".moved"), os.Symlink(dir+".moved", link)); err != nil {
		t.Fatal(err)
	}
	if two, err := PlaceOf(link); err != nil || !one.Same(two) {
		t.Errorf("moved, and by a link: %+v, was %+v (%v)", two, one, err)
	}
	time.Sleep(20 * time.Millisecond) // file systems' clocks tick
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if two, err := PlaceOf(dir); err != nil || one.Same(two) {
		t.Errorf("made anew: %+v, was %+v (%v)", two, one, err)
	}
	if _, err := PlaceOf(dir + "/none"); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
