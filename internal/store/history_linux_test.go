package store

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"pinfold.dev/internal/sys/systest"
)

// A history that cannot be written keeps nobody from ending turns: it is read,
// and what ends stays where it was.
func TestReadOnlyHistory(t *testing.T) {
	systest.Root(t)
	dir := t.TempDir()
	state := filepath.Join(dir, "state")
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("none", state, "tmpfs", 0, "size=4m,mode=700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(state, syscall.MNT_DETACH) })
	reopen := func(flags uintptr) *Store {
		t.Helper()
		if err := syscall.Mount("none", state, "", syscall.MS_REMOUNT|flags, ""); err != nil {
			t.Fatal(err)
		}
		s, err := Open(filepath.Join(dir, "run"), state, Keep{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	archive := func(s *Store, n int) error {
		t.Helper()
		if err := s.Save(record(n, 0)); err != nil {
			t.Fatal(err)
		}
		return s.Archive(record(n, 0).Turn.ID)
	}
	s := reopen(syscall.MS_RDONLY) // there is no history yet
	if err := archive(s, 1); !errors.Is(err, syscall.EROFS) || s.Note() == "" {
		t.Errorf("%v, note %q", err, s.Note())
	}
	if l, err := s.EndedTurns(nil, 10); err != nil || len(l) != 0 {
		t.Errorf("%v (%v)", l, err)
	}
	s.Close()
	s = reopen(0)
	if err := archive(s, 2); err != nil || s.Note() != "" {
		t.Errorf("%v, note %q", err, s.Note())
	}
	s.Close()
	s = reopen(syscall.MS_RDONLY)
	defer s.Close()
	if err := archive(s, 3); !errors.Is(err, syscall.EROFS) {
		t.Error(err)
	}
	if r, ok, err := s.Ended(record(2, 0).Turn.ID); !ok || err != nil {
		t.Errorf("%+v %v %v", r, ok, err)
	}
	if l, errs := s.Load(); len(l) != 2 || len(errs) != 0 {
		t.Errorf("the live records: %v %v", l, errs)
	}
}

// A damaged history is set aside, not thrown away, and keeps nobody up.
func TestDamagedHistory(t *testing.T) {
	dir := t.TempDir()
	state := filepath.Join(dir, "state")
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	damaged := strings.Repeat("no database ", 4096)
	if err := os.WriteFile(filepath.Join(state, "history.db"), []byte(damaged), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Open(filepath.Join(dir, "run"), state, Keep{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	aside, _ := filepath.Glob(state + "/history.db.damaged-*")
	if len(aside) != 1 || !strings.Contains(s.Note(), aside[0]) {
		t.Fatalf("%q, note %q", aside, s.Note())
	}
	if b, err := os.ReadFile(aside[0]); err != nil || string(b) != damaged {
		t.Errorf("%d bytes (%v)", len(b), err)
	}
	if err := s.Save(record(1, 0)); err != nil {
		t.Fatal(err)
	}
	if err := s.Archive(record(1, 0).Turn.ID); err != nil {
		t.Error(err)
	}
}
