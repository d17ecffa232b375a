package store

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A history that is removed, moved or replaced under the service loses nothing that
// was in it, and nothing that comes after.
func TestHistoryGoes(t *testing.T) {
	for name, do := range map[string]func(state string) error{
		"file removed":      func(s string) error { return os.Remove(s + "/history.db") },
		"file moved":        func(s string) error { return os.Rename(s+"/history.db", s+"/aside") },
		"directory removed": os.RemoveAll,
		"directory moved":   func(s string) error { return os.Rename(s, s+".aside") },
		"replaced by a copy": func(s string) error {
			return errors.Join(exec.Command("cp", s+"/history.db", s+"/c").Run(), os.Rename(s+"/c", s+"/history.db"))
		},
		"replaced by an old one": func(s string) error {
			return errors.Join(os.WriteFile(s+"/c", nil, 0o600), os.Rename(s+"/c", s+"/history.db"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			state := filepath.Join(dir, "state")
			s, err := Open(filepath.Join(dir, "run"), state, Keep{})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { s.Close() }()
			put := func(i int) {
				t.Helper()
				if err := errors.Join(s.Save(record(i, 0)), s.Archive(record(i, 0).Turn.ID)); err != nil {
					t.Error(err)
				}
			}
			has := func(i int) bool {
				t.Helper()
				r, ok, err := s.Ended(record(i, 0).Turn.ID)
				return err == nil && ok && r.Turn.ID == record(i, 0).Turn.ID
			}
			put(1)
			if err := do(state); err != nil {
				t.Fatal(err)
			}
			put(2)
			if n := s.Note(); !strings.Contains(n, "under the service") && !strings.Contains(n, "another file is at") {
				t.Errorf("told %q", n)
			}
			put(3)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if s, err = Open(filepath.Join(dir, "run"), state, Keep{}); err != nil {
				t.Fatal(err)
			}
			if !has(2) || !has(3) {
				t.Error("what came after is not in the history")
			}
			if aside, _ := filepath.Glob(state + "/history.db.displaced-*"); !has(1) && len(aside) != 1 {
				t.Errorf("what was there before is nowhere: %q", aside)
			}
		})
	}
}

// So is a history that goes while nothing is written: whoever asks is told, and it
// is there again.
func TestHistoryGoesUnwritten(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(filepath.Join(dir, "run"), filepath.Join(dir, "state"), Keep{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := os.RemoveAll(filepath.Join(dir, "state")); err != nil {
		t.Fatal(err)
	}
	s.Tend()
	h := s.History()
	if !strings.Contains(h.Problem, "was removed under the service") || h.FileSize == 0 {
		t.Errorf("%+v", h)
	}
}
