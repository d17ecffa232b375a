package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/containment"
)

func open(t *testing.T) (*Store, string) {
	t.Helper()
	dir := t.TempDir()
	s, err := Open(filepath.Join(dir, "run"), filepath.Join(dir, "state"), Keep{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, filepath.Join(dir, "run", "turns")
}

func record(n int, owner uint32) containment.Record {
	id := fmt.Sprintf("%016x", n)
	return containment.Record{Schema: 1, Boot: "b", SavedAt: time.Now().Add(time.Duration(n)*time.Second - time.Hour),
		Turn:    api.Turn{ID: id, Owner: owner, State: api.StateAbandoned},
		Receipt: &api.Receipt{Turn: id}}
}

func TestOneBadRecordHidesNoOther(t *testing.T) {
	s, turns := open(t)
	for i := range 4 {
		if err := s.Save(record(i, 0)); err != nil {
			t.Fatal(err)
		}
	}
	file := func(n int) string { return filepath.Join(turns, fmt.Sprintf("%016x", n), "record.json") }
	if err := os.WriteFile(file(0), []byte(`{"schema":1,`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file(1), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(file(2)); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/hostname", file(2)); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(turns, "not-a-turn"), 0o700); err != nil {
		t.Fatal(err)
	}
	got, errs := s.Load()
	if len(got) != 1 || got[0].Turn.ID != fmt.Sprintf("%016x", 3) {
		t.Errorf("loaded %v, want turn 3 alone", got)
	}
	if len(errs) != 3 {
		t.Errorf("errors %v, want 3", errs)
	}
	for _, n := range []int{0, 1} {
		if _, err := os.Stat(file(n)); err != nil {
			t.Errorf("the bad record was touched: %v", err)
		}
	}
}

func TestArchiveMovesToHistory(t *testing.T) {
	s, turns := open(t)
	for i := range 5 {
		if err := s.Save(record(i, uint32(i%2))); err != nil {
			t.Fatal(err)
		}
		if err := s.Archive(fmt.Sprintf("%016x", i)); err != nil {
			t.Fatal(err)
		}
	}
	if es, _ := os.ReadDir(turns); len(es) != 0 {
		t.Errorf("left in the runtime directory: %v", es)
	}
	if _, ok, err := s.Ended(fmt.Sprintf("%016x", 2)); !ok || err != nil {
		t.Errorf("turn 2 is not in the history: %v", err)
	}
	one := uint32(1)
	got, err := s.EndedTurns(&one, 10)
	if err != nil || len(got) != 2 || got[0].Turn.ID < got[1].Turn.ID {
		t.Errorf("owner 1 has %v (%v), want turns 3 and 1", got, err)
	}
	if err := s.Archive(fmt.Sprintf("%016x", 2)); err != nil {
		t.Errorf("archiving again: %v", err)
	}
}

func TestHistoryIsBounded(t *testing.T) {
	s, _ := open(t)
	s.hist.keep.Count = 10
	for i := range 3 * trimEvery {
		if err := s.hist.put(record(i, 0)); err != nil {
			t.Fatal(err)
		}
	}
	got, err := s.EndedTurns(nil, 1000)
	if err != nil || len(got) > 10+trimEvery || len(got) < 10 {
		t.Fatalf("%d turns kept (%v)", len(got), err)
	}
	if want := fmt.Sprintf("%016x", 3*trimEvery-1); got[0].Turn.ID != want {
		t.Errorf("newest is %s, want %s", got[0].Turn.ID, want)
	}
}

func TestForeignDirectoriesAreRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	run := filepath.Join(dir, "run")
	if err := os.MkdirAll(filepath.Join(run, "turns"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(run, "turns"), 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(run, filepath.Join(dir, "state"), Keep{}); err == nil || !strings.Contains(err.Error(), "others may write") {
		t.Errorf("a world-writable directory was taken: %v", err)
	}
}

func TestSecondServiceIsRefused(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the lock")
	}
	dir := t.TempDir()
	s, err := Open(filepath.Join(dir, "a"), filepath.Join(dir, "state"), Keep{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := Open(filepath.Join(dir, "b"), filepath.Join(dir, "state"), Keep{}); err == nil || !strings.Contains(err.Error(), "another service") {
		t.Errorf("two services share a history: %v", err)
	}
}

// A turn whose end went straight into the history stays as it is there, whatever
// its live record says; a live one that is newer goes there.
func TestEndThatIsInTheHistoryStands(t *testing.T) {
	s, turns := open(t)
	for n, c := range map[int]struct {
		live api.State
		at   time.Duration // saved, after the one in the history
		want api.Reason
	}{
		1: {api.StateOpen, time.Hour, api.ReasonStop}, // clocks are set
		2: {api.StateFinished, -time.Hour, api.ReasonStop},
		3: {api.StateFinished, time.Hour, api.ReasonFinished},
	} {
		r := record(n, 0)
		r.Turn.Reason = api.ReasonStop
		if err := s.PutEnded(r); err != nil {
			t.Fatal(err)
		}
		r.Turn.State, r.Turn.Reason, r.SavedAt = c.live, api.ReasonFinished, r.SavedAt.Add(c.at)
		if err := errors.Join(s.Save(r), s.Archive(r.Turn.ID)); err != nil {
			t.Fatal(err)
		}
		if got, ok, err := s.Ended(r.Turn.ID); !ok || err != nil || got.Turn.Reason != c.want || !got.Turn.State.Terminal() {
			t.Errorf("turn %d: %s for %s (%v), want %s", n, got.Turn.State, got.Turn.Reason, err, c.want)
		}
	}
	r := record(4, 0)
	r.Turn.State = api.StateOpen
	if err := s.Save(r); err != nil {
		t.Fatal(err)
	}
	if err := s.Archive(r.Turn.ID); err == nil {
		t.Error("a turn that is open was moved to the history")
	}
	if es, _ := os.ReadDir(turns); len(es) != 1 || es[0].Name() != r.Turn.ID {
		t.Errorf("left in the runtime directory: %v", es)
	}
}

// A record that cannot be written says where: whoever reads "no space left" is to
// know on which disk.
func TestSaveTellsWhichFile(t *testing.T) {
	s, turns := open(t)
	r := record(1, 0)
	path := filepath.Join(turns, r.Turn.ID, "record.json")
	if err := os.MkdirAll(path, 0o700); err != nil { // nothing is renamed onto a directory
		t.Fatal(err)
	}
	if err := s.Save(r); err == nil || !strings.Contains(err.Error(), path+": rename") {
		t.Errorf("it says %v, which does not tell %s", err, path)
	}
}
