package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"sync/atomic"
	"syscall"

	"pinfold.dev/containment"
	"pinfold.dev/internal/fault"
)

// maxRecord bounds what is read back; a record grows by about 500 bytes a
// process.
const maxRecord = 256 << 20

// turnID is what a turn's directory may be called: nothing else is touched.
var turnID = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-f]{16}$`) })

// Store is the live records of one runtime directory and the history of one
// state directory. Its methods may be called at the same time.
type Store struct {
	turns string // runtime directory + "/turns"
	hist  *history
	spare *reserve
	away  atomic.Pointer[error] // why the runtime directory is not ours at the moment; nil: it is
}

// Open opens, and where needed makes, the directories (0700). It fails when
// either belongs to somebody else, or another service has the history open.
func Open(runtimeDir, stateDir string, keep Keep) (*Store, error) {
	turns := filepath.Join(runtimeDir, "turns")
	for _, d := range []string{turns, stateDir} {
		if err := ownDir(d); err != nil {
			return nil, err
		}
	}
	h, err := openHistory(filepath.Join(stateDir, "history.db"), keep)
	if err != nil {
		return nil, err
	}
	return &Store{turns: turns, hist: h, spare: openReserve(runtimeDir)}, nil
}

// Note says, for people, what is wrong with the history; blank: nothing.
func (s *Store) Note() string { return s.hist.told() }

// ownDir makes dir, or checks that it is ours and nobody else can write it.
func ownDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	fi, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("look at directory: %w", err)
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	switch {
	case !fi.IsDir():
		return fmt.Errorf("use %s: not a directory", dir)
	case ok && int(st.Uid) != os.Geteuid():
		return fmt.Errorf("use %s: it belongs to uid %d, not to %d", dir, st.Uid, os.Geteuid())
	case fi.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("use %s: others may write it (mode %o)", dir, fi.Mode().Perm())
	}
	return nil
}

// Close closes the history.
func (s *Store) Close() error { return s.hist.close() }

// Dir is the turn's runtime directory; Save makes it, Archive removes it.
func (s *Store) Dir(turn string) string { return filepath.Join(s.turns, turn) }

// Save writes the turn's record. There is room kept for that of a turn that is
// being ended, or was.
func (s *Store) Save(r containment.Record) error {
	if !turnID().MatchString(r.Turn.ID) {
		return fmt.Errorf("save record: turn id %q is malformed", r.Turn.ID)
	}
	if err := s.isHere(); err != nil {
		return fmt.Errorf("save record: %w", err)
	}
	b, err := seal(r)
	if err != nil {
		return err
	}
	path := filepath.Join(s.Dir(r.Turn.ID), "record.json")
	err = replaceFile(path, b)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.Mkdir(s.Dir(r.Turn.ID), 0o700); err == nil {
			err = replaceFile(path, b)
		}
	}
	if err != nil && (r.Ending != nil || r.Receipt != nil) && s.spare.spend(err) {
		err = replaceFile(path, b)
	}
	if err != nil {
		return fmt.Errorf("save record: %w", err)
	}
	s.spare.refill()
	return nil
}

// replaceFile writes path so that it is whole or as it was. It makes the system
// calls itself: package os would make twice as many, and an ending waits for
// them.
func replaceFile(path string, b []byte) error {
	tmp := path + ".new"
	const flags = syscall.O_WRONLY | syscall.O_CREAT | syscall.O_EXCL | syscall.O_NOFOLLOW | syscall.O_CLOEXEC
	fd, err := syscall.Open(tmp, flags, 0o600)
	if errors.Is(err, syscall.EEXIST) { // of a write that was cut short, or something else
		_ = syscall.Unlink(tmp)
		fd, err = syscall.Open(tmp, flags, 0o600)
	}
	if err != nil {
		return &fs.PathError{Op: "open", Path: tmp, Err: err}
	}
	fault.Point("record.opened")
	err = writeAll(fd, b)
	if err == nil {
		err = os.NewSyscallError("fsync", syscall.Fsync(fd)) // nothing on tmpfs, all the difference on a disk
	}
	if cerr := syscall.Close(fd); err == nil {
		err = os.NewSyscallError("close", cerr)
	}
	fault.Point("record.synced")
	if err == nil {
		err = os.NewSyscallError("rename", syscall.Rename(tmp, path))
	}
	fault.Point("record.renamed")
	if err != nil {
		os.Remove(tmp)
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func writeAll(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := syscall.Write(fd, b)
		if err != nil && !errors.Is(err, syscall.EINTR) {
			return os.NewSyscallError("write", err)
		}
		b = b[max(n, 0):]
	}
	return nil
}

// Away says that the runtime directory is another's: nothing is written there until
// it is ours again (nil).
func (s *Store) Away(why error) {
	if why == nil {
		s.away.Store(nil)
		return
	}
	s.away.Store(&why)
}

func (s *Store) isHere() error {
	if why := s.away.Load(); why != nil {
		return *why
	}
	return nil
}

// Has tells whether a turn has a record.
func (s *Store) Has(turn string) bool {
	_, err := os.Lstat(filepath.Join(s.Dir(turn), "record.json"))
	return !errors.Is(err, fs.ErrNotExist)
}

// Discard removes the record of a turn that never began.
func (s *Store) Discard(turn string) error {
	if !turnID().MatchString(turn) {
		return fmt.Errorf("discard record: turn id %q is malformed", turn)
	}
	if err := s.isHere(); err != nil {
		return fmt.Errorf("discard record: %w", err)
	}
	err := os.RemoveAll(s.Dir(turn))
	fault.Point("record.discarded")
	return err
}

// Load reads all live records. One that cannot be read is an error in the list,
// hides no other, and is left where it is.
func (s *Store) Load() ([]containment.Record, []error) {
	entries, err := os.ReadDir(s.turns)
	if err != nil {
		return nil, []error{fmt.Errorf("list records: %w", err)}
	}
	var out []containment.Record
	var errs []error
	for _, e := range entries {
		if !turnID().MatchString(e.Name()) {
			continue
		}
		if !e.IsDir() { // the turn may be there all the same
			errs = append(errs, &containment.BadRecord{Turn: e.Name(), Err: fmt.Errorf("read record: %s is no directory (%s)", s.Dir(e.Name()), e.Type())})
			continue
		}
		r, err := s.read(e.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue // of a turn whose begin was cut short, before it had one
		}
		if err != nil {
			bad := &containment.BadRecord{Turn: e.Name(), Err: err}
			if of, ok := errors.AsType[*otherTurn](err); ok && turnID().MatchString(of.id) {
				bad.Of = of.id
			}
			errs = append(errs, bad)
			continue
		}
		out = append(out, r)
	}
	return out, errs
}

func (s *Store) read(turn string) (containment.Record, error) {
	var r containment.Record
	path := filepath.Join(s.Dir(turn), "record.json")
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return r, fmt.Errorf("read record: %w", err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return r, fmt.Errorf("read record: %w", err)
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	switch {
	case !fi.Mode().IsRegular():
		return r, fmt.Errorf("read record %s: not a regular file", path)
	case ok && int(st.Uid) != os.Geteuid():
		return r, fmt.Errorf("read record %s: it belongs to uid %d", path, st.Uid)
	case fi.Mode().Perm()&0o022 != 0:
		return r, fmt.Errorf("read record %s: others may write it (mode %o)", path, fi.Mode().Perm())
	case fi.Size() > maxRecord:
		return r, fmt.Errorf("read record %s: %d bytes is too much", path, fi.Size())
	}
	b := make([]byte, fi.Size())
	if _, err := io.ReadFull(f, b); err != nil {
		return r, fmt.Errorf("read record %s: %w", path, err)
	}
	if err := unseal(b, &r); err != nil {
		return r, fmt.Errorf("read record %s: %w", path, err)
	}
	if r.Turn.ID != turn {
		return r, &otherTurn{path: path, id: r.Turn.ID}
	}
	return r, nil
}

// otherTurn is the error of a record in the directory of another turn.
type otherTurn struct{ path, id string }

func (e *otherTurn) Error() string {
	return fmt.Sprintf("read record %s: it is of turn %q", e.path, e.id)
}

// Archive moves an ended turn from its live record to the history.
func (s *Store) Archive(turn string) error {
	if err := s.isHere(); err != nil {
		return err
	}
	r, err := s.read(turn)
	if errors.Is(err, fs.ErrNotExist) {
		return s.Discard(turn)
	}
	if err != nil {
		return err
	}
	switch was, ok, err := s.hist.get(turn); {
	case err == nil && ok && was.Supersedes(&r):
		return s.Discard(turn)
	case !r.Turn.State.Terminal(): // nor is its end in the history
		return errors.Join(fmt.Errorf("archive turn %s: its record has it %s", turn, r.Turn.State), err)
	}
	fault.Point("history.write")
	if err := s.hist.put(r); err != nil {
		return err
	}
	fault.Point("history.written")
	return s.Discard(turn)
}

// PutEnded writes a turn that is over to the history, and nothing in the runtime
// directory.
func (s *Store) PutEnded(r containment.Record) error {
	if !turnID().MatchString(r.Turn.ID) {
		return fmt.Errorf("write history: turn id %q is malformed", r.Turn.ID)
	}
	return s.hist.put(r)
}

// Ended finds a turn in the history.
func (s *Store) Ended(turn string) (containment.Record, bool, error) { return s.hist.get(turn) }

// EndedTurns lists the history, newest first; owner nil means everybody's.
func (s *Store) EndedTurns(owner *uint32, limit int) ([]containment.Record, error) {
	return s.hist.list(owner, limit)
}
