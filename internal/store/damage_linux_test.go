package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"pinfold.dev/api"
	"pinfold.dev/containment"
	"pinfold.dev/internal/sys/systest"
)

// filled is a history of some turns, as bytes.
func filled(t *testing.T, turns int) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "history.db")
	h, err := openHistory(path, Keep{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range turns {
		if err := h.put(record(i, 0)); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.close(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// works checks that a store with a file that somebody has damaged can be used:
// what it tells is right or an error, and a turn can be put away, at the second
// try at the latest.
func works(t *testing.T, damaged []byte, what string) {
	t.Helper()
	state := t.TempDir()
	path := filepath.Join(state, "history.db")
	if err := os.WriteFile(path, damaged, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Open(filepath.Join(state, "run"), state, Keep{})
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	defer s.Close()
	defer func() {
		if n := s.Note(); strings.Contains(n, "runtime error") || len(damaged) == 0 && !strings.Contains(n, "empty") {
			t.Errorf("%s: told %q", what, n)
		}
	}()
	for i := range 40 {
		want := record(i, 0)
		if r, ok, err := s.Ended(want.Turn.ID); err == nil && ok && r.Turn.ID != want.Turn.ID {
			t.Errorf("%s: turn %d is told as %+v", what, i, r)
		}
	}
	_, _ = s.EndedTurns(nil, 1000)
	var put error
	for range 2 {
		if put = s.hist.put(record(1000, 7)); put == nil {
			break
		}
	}
	r, ok, err := s.Ended(record(1000, 7).Turn.ID)
	if put != nil || !ok || err != nil || r.Turn.Owner != 7 {
		t.Errorf("%s: put: %v; get: %v %v", what, put, ok, err)
	}
	aside, _ := filepath.Glob(path + ".damaged-*")
	for _, f := range aside { // what it was is still there, whole
		if fi, err := os.Stat(f); err != nil || fi.Size() < int64(len(damaged)) {
			t.Errorf("%s: set aside as %v (%v)", what, fi, err)
		}
	}
}

func TestTruncatedHistory(t *testing.T) {
	whole := filled(t, 40)
	for _, at := range []int{0, 1, 16, 80, 4095, 4096, 8192, 12288, 16384, 20480, len(whole) / 2, len(whole) - 4096, len(whole) - 1} {
		works(t, whole[:min(at, len(whole))], "truncated")
	}
}

func TestFlippedBitsInHistory(t *testing.T) {
	whole := filled(t, 40)
	rounds := 300
	if testing.Short() {
		rounds = 30
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	for range rounds {
		b := bytes.Clone(whole)
		at := rnd.IntN(len(b))
		if rnd.IntN(2) == 0 {
			at = at/4096*4096 + rnd.IntN(128) // the heads of pages say where all else is
		}
		b[at] ^= 1 << rnd.IntN(8)
		works(t, b, "flipped")
	}
}

// A file that is not to be trusted, or that only a newer version understands, is
// neither read nor written nor moved. Once it is out of the way, what has ended
// meanwhile can be put away.
func TestHistoryThatIsNotToBeTouched(t *testing.T) {
	systest.Root(t)
	newer := func(t *testing.T, path string) {
		db, err := bbolt.Open(path, 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if err := db.Update(func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists(about)
			if err != nil {
				return err
			}
			return b.Put(version, binary.BigEndian.AppendUint64(nil, historySchema+1))
		}); err != nil {
			t.Fatal(err)
		}
	}
	for name, change := range map[string]func(t *testing.T, path string) error{
		"owner": func(_ *testing.T, p string) error { return os.Chown(p, 1, 1) },
		"mode":  func(_ *testing.T, p string) error { return os.Chmod(p, 0o666) },
		"link": func(_ *testing.T, p string) error {
			return errors.Join(os.Rename(p, p+".real"), os.Symlink(p+".real", p))
		},
		"directory": func(_ *testing.T, p string) error { return errors.Join(os.Remove(p), os.Mkdir(p, 0o700)) },
		"newer":     func(t *testing.T, p string) error { newer(t, p); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			state := t.TempDir()
			path := filepath.Join(state, "history.db")
			if err := errors.Join(os.WriteFile(path, filled(t, 3), 0o600), change(t, path)); err != nil {
				t.Fatal(err)
			}
			before, _ := os.ReadFile(path)
			s, err := Open(filepath.Join(state, "run"), state, Keep{})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if !strings.Contains(s.Note(), "cannot be written") {
				t.Errorf("note %q", s.Note())
			}
			if err := s.Save(record(9, 0)); err != nil {
				t.Fatal(err)
			}
			if err := s.Archive(record(9, 0).Turn.ID); err == nil {
				t.Error("it was written")
			}
			if l, errs := s.Load(); len(l) != 1 || len(errs) != 0 {
				t.Errorf("live: %v %v", l, errs)
			}
			if after, _ := os.ReadFile(path); name != "newer" && !bytes.Equal(before, after) {
				t.Error("it was touched")
			}
			if err := os.Rename(path, path+".away"); err != nil {
				t.Fatal(err)
			}
			if err := s.Archive(record(9, 0).Turn.ID); err != nil || s.Note() != "" {
				t.Errorf("%v, note %q", err, s.Note())
			}
		})
	}
}

// Bits of live records: whichever is flipped, and wherever it is cut, the record
// is refused or says the same.
func TestDamagedLiveRecord(t *testing.T) {
	want := record(5, 1000)
	want.Facts = containment.Facts{Cgroup: "/sys/fs/cgroup/x", CgroupID: 77, Nonce: "abcdef"}
	b, err := seal(want)
	if err != nil {
		t.Fatal(err)
	}
	var r containment.Record
	if err := unseal(b, &r); err != nil {
		t.Fatal(err)
	}
	for i := range len(b) * 8 {
		c := bytes.Clone(b)
		c[i/8] ^= 1 << (i % 8)
		var r containment.Record
		if err := unseal(c, &r); err == nil {
			t.Fatalf("bit %d of byte %d can be flipped: %s", i%8, i/8, c)
		}
	}
	for n := range len(b) {
		var r containment.Record
		if err := unseal(b[:n], &r); err == nil && r.Facts.Nonce != want.Facts.Nonce {
			t.Fatalf("cut at %d: %+v", n, r)
		}
	}
	old := b[:len(b)-sumLen] // of an earlier version
	if err := unseal(old, &r); err != nil || r.Facts.CgroupID != 77 {
		t.Errorf("without a sum: %v", err)
	}
	if err := unseal([]byte(`{"schema":99,"turn":"another shape"}`), &r); !errors.Is(err, containment.ErrNewer) {
		t.Errorf("newer: %v", err)
	}
}

// A disk that is full, or read-only, at any time: the error is told, the turn
// stays, and it is put away when there is room again, by the same store.
func TestHistoryOnAFullDisk(t *testing.T) {
	systest.Root(t)
	dir := t.TempDir()
	state := filepath.Join(dir, "state")
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("none", state, "tmpfs", 0, "size=256k,mode=700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(state, syscall.MNT_DETACH) })
	fill := filepath.Join(state, "filler")
	full := func() {
		if err := os.WriteFile(fill, make([]byte, 1<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
	}
	full()
	s, err := Open(filepath.Join(dir, "run"), state, Keep{}) // nor is there a history
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	big := record(1, 0)
	big.Turn.Label = strings.Repeat("x", 30<<10)
	if err := s.Save(big); err != nil {
		t.Fatal(err)
	}
	if err := s.Archive(big.Turn.ID); err == nil || s.Note() == "" {
		t.Errorf("%v, note %q", err, s.Note())
	}
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	if err := s.Archive(big.Turn.ID); err != nil || s.Note() != "" {
		t.Fatalf("%v, note %q", err, s.Note())
	}
	full()
	more := record(2, 0)
	more.Turn.Label = strings.Repeat("y", 200<<10)
	if err := s.Save(more); err != nil {
		t.Fatal(err)
	}
	if err := s.Archive(more.Turn.ID); err == nil {
		t.Error("it fitted on a full disk")
	}
	if p := s.History().Problem; !strings.Contains(p, "no space left") {
		t.Errorf("why turns wait is told as %q", p)
	}
	if r, ok, err := s.Ended(big.Turn.ID); !ok || err != nil || r.Turn.Label != big.Turn.Label {
		t.Errorf("what was there before: %v %v", ok, err)
	}
	if err := errors.Join(os.Remove(fill), syscall.Mount("none", state, "", syscall.MS_REMOUNT, "size=4m")); err != nil {
		t.Fatal(err)
	}
	if err := s.Archive(more.Turn.ID); err != nil || s.History().Problem != "" {
		t.Error(err, s.History().Problem)
	}
}

func TestHistoryByAgeAndSize(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history.db")
	h, err := openHistory(path, Keep{Age: time.Hour, Count: 1 << 20, Size: 100 << 10})
	if err != nil {
		t.Fatal(err)
	}
	put := func(n int, age time.Duration, size int) {
		t.Helper()
		r := containment.Record{Schema: 1, SavedAt: time.Now().Add(-age), Turn: api.Turn{ID: record(n, 0).Turn.ID, Label: strings.Repeat("z", size)}}
		if err := h.put(r); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2000 { // more than go at once
		put(i, 2*time.Hour, 1)
	}
	put(5000, time.Minute, 1)
	h.trimLater()
	if l, err := h.list(nil, 5000); err != nil || len(l) != 1 || l[0].Turn.ID != record(5000, 0).Turn.ID {
		t.Fatalf("%d are left (%v)", len(l), err)
	}
	for i := range 20 {
		put(6000+i, 0, 10<<10)
	}
	h.trimLater()
	l, err := h.list(nil, 100)
	if err != nil || len(l) < 7 || len(l) > 10 || l[0].Turn.ID != record(6019, 0).Turn.ID {
		t.Errorf("%d are left (%v)", len(l), err)
	}
	put(7000, 0, 300<<10) // larger than all may be: it stays, alone
	h.trimLater()
	if l, err := h.list(nil, 100); err != nil || len(l) != 1 || l[0].Turn.ID != record(7000, 0).Turn.ID {
		t.Errorf("%d are left (%v)", len(l), err)
	}
	if err := h.close(); err != nil {
		t.Fatal(err)
	}
}

// Room of what was dropped is given back at the next start.
func TestHistoryIsCompacted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history.db")
	h, err := openHistory(path, Keep{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		r := record(i, 0)
		r.Turn.Label = strings.Repeat("z", 1<<20)
		if err := h.put(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.close(); err != nil {
		t.Fatal(err)
	}
	before, _ := os.Stat(path)
	if h, err = openHistory(path, Keep{Count: 3}); err != nil { // it is dropped at this start
		t.Fatal(err)
	}
	if err := h.close(); err != nil {
		t.Fatal(err)
	}
	if h, err = openHistory(path, Keep{Count: 3}); err != nil {
		t.Fatal(err)
	}
	defer h.close()
	after, _ := os.Stat(path)
	if after.Size() > before.Size()/4 {
		t.Errorf("%d bytes of %d are left", after.Size(), before.Size())
	}
	if l, err := h.list(nil, 10); err != nil || len(l) != 3 {
		t.Errorf("%d turns (%v)", len(l), err)
	}
	if err := h.put(record(99, 0)); err != nil {
		t.Error(err)
	}
}
