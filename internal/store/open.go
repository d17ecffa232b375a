package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"

	"pinfold.dev/containment"
)

// lockWait is how long to wait for another service to let go of the file.
const lockWait = 3 * time.Second

var (
	errDamaged = errors.New("the history is damaged")
	errLocked  = errors.New("another service has it open")
)

// guarded makes errors of the panics that bbolt has for a damaged file, and of
// the faults that reading a mapped file brings that is shorter than it says.
func guarded(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %s", errDamaged, saysPanic(r))
		}
	}()
	return f()
}

// saysPanic is what a panic of bbolt's says to people. Most are of the runtime: a
// page that was read led to somewhere else.
func saysPanic(r any) string {
	var e runtime.Error
	if err, ok := r.(error); ok && errors.As(err, &e) {
		return "one of its pages leads to where nothing is"
	}
	return fmt.Sprint(r)
}

// openHistory opens the file, or notes why it cannot be used. Only that another
// service has it open is an error.
func openHistory(path string, keep Keep) (*history, error) {
	h := &history{path: path, keep: keep.orDefaults()}
	h.mu.Lock()
	h.open()
	h.mu.Unlock()
	if errors.Is(h.why, errLocked) {
		return nil, fmt.Errorf("open history %s: %w", path, h.why)
	}
	if h.why == nil {
		h.writing.Lock()
		defer h.writing.Unlock()
		h.trim()
	}
	return h, nil
}

// open opens the file; mu is held. One that is damaged is set aside.
func (h *history) open() {
	h.note, h.file = "", nil
	if isEmpty(h.path) {
		h.note = "the history's file was there, and empty: it begins anew, and if there was a history it is lost"
	}
	h.db, h.why = openFile(h.path)
	if errors.Is(h.why, errDamaged) {
		_ = h.setAside(h.why)
	}
	switch {
	case h.why == nil:
		h.compact()
		h.file, _ = os.Lstat(h.path)
	case errors.Is(h.why, syscall.EROFS) || errors.Is(h.why, syscall.ENOSPC) || errors.Is(h.why, syscall.EDQUOT):
		_ = guarded(func() (err error) {
			h.db, err = bbolt.Open(h.path, 0o600, &bbolt.Options{Timeout: lockWait, ReadOnly: true})
			return err
		})
		fallthrough
	default:
		h.note = fmt.Sprintf("the history cannot be written (%v): turns that end stay in the runtime directory", h.why)
	}
}

// revive tries again to open a file that could not be used; writing is held.
func (h *history) revive() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return os.ErrClosed
	}
	h.displaced()
	if h.why == nil && h.db != nil {
		return nil
	}
	_ = h.closeFile()
	h.open()
	return h.why
}

// setAside has a damaged file out of the way, and a new one begun; mu is held.
func (h *history) setAside(why error) error {
	_ = h.closeFile()
	aside := fmt.Sprintf("%s.damaged-%d", h.path, time.Now().UnixNano())
	err := os.Rename(h.path, aside)
	if err == nil {
		h.db, err = openFile(h.path)
	}
	h.why = err
	if err == nil {
		h.file, _ = os.Lstat(h.path)
		h.note = fmt.Sprintf("the history was damaged (%v); it begins anew, the old one is %s", why, aside)
	}
	return err
}

// openFile opens a file that is ours, for writing.
func openFile(path string) (*bbolt.DB, error) {
	if err := ownFile(path); err != nil {
		return nil, err
	}
	_, was := os.Lstat(path)
	var db *bbolt.DB
	err := guarded(func() (err error) {
		db, err = bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockWait})
		if err != nil {
			return err
		}
		if err = whole(db); err == nil {
			err = db.Update(prepare)
		}
		return err
	})
	switch {
	case err == nil:
		return db, nil
	case errors.Is(err, bbolterrors.ErrTimeout):
		err = errLocked
	case errors.Is(err, bbolterrors.ErrVersionMismatch):
		err = fmt.Errorf("%w: %w", containment.ErrNewer, err)
	case errors.Is(err, bbolterrors.ErrInvalid), errors.Is(err, bbolterrors.ErrChecksum):
		err = fmt.Errorf("%w: %w", errDamaged, err)
	}
	if db != nil {
		_ = guarded(db.Close)
	}
	if errors.Is(was, fs.ErrNotExist) && isEmpty(path) { // there was no room to make it
		_ = os.Remove(path)
	}
	return nil, err
}

func isEmpty(path string) bool {
	fi, err := os.Lstat(path)
	return err == nil && fi.Mode().IsRegular() && fi.Size() == 0
}

// ownFile refuses a file that somebody else could have put there, and one that
// cannot be whole.
func ownFile(path string) error {
	fi, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at the history: %w", err)
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	switch {
	case !fi.Mode().IsRegular():
		return fmt.Errorf("use %s: not a regular file", path)
	case ok && int(st.Uid) != os.Geteuid():
		return fmt.Errorf("use %s: it belongs to uid %d, not to %d", path, st.Uid, os.Geteuid())
	case fi.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("use %s: others may write it (mode %o)", path, fi.Mode().Perm())
	case fi.Size() > 0 && fi.Size() < 2*int64(os.Getpagesize()):
		return fmt.Errorf("%w: it has %d bytes", errDamaged, fi.Size())
	}
	return nil
}

// whole compares what the file says of its size with what it is.
func whole(db *bbolt.DB) error {
	fi, err := os.Stat(db.Path())
	if err != nil {
		return err
	}
	return db.View(func(tx *bbolt.Tx) error {
		if tx.Size() > fi.Size() {
			return fmt.Errorf("%w: it has %d bytes of %d", errDamaged, fi.Size(), tx.Size())
		}
		return nil
	})
}

// prepare makes the buckets, and refuses a file of a newer version.
func prepare(tx *bbolt.Tx) error {
	a, err := tx.CreateBucketIfNotExists(about)
	if err != nil {
		return err
	}
	if v := a.Get(version); len(v) == 8 && binary.BigEndian.Uint64(v) > historySchema {
		return fmt.Errorf("it has schema %d, this service knows %d: %w", binary.BigEndian.Uint64(v), historySchema, containment.ErrNewer)
	} else if len(v) != 8 {
		if err := a.Put(version, binary.BigEndian.AppendUint64(nil, historySchema)); err != nil {
			return err
		}
	}
	for _, b := range [][]byte{byTurn, byTime} {
		if _, err := tx.CreateBucketIfNotExists(b); err != nil {
			return err
		}
	}
	return nil
}

// Bounds of compaction, which is done at the start: a file whose free pages are
// most of it, and of which little is left to copy.
const (
	compactFrom = 32 << 20 // bytes of the file
	compactMost = 64 << 20 // bytes in use
)

// compact gives the room of what was dropped back to the disk; mu is held. Where
// that cannot be, the file stays as it is.
func (h *history) compact() {
	fi, err := os.Stat(h.path)
	if err != nil || fi.Size() < compactFrom {
		return
	}
	page := int64(h.db.Info().PageSize)
	used := fi.Size() - int64(h.db.Stats().FreePageN+h.db.Stats().PendingPageN)*page
	if used > compactMost || used > fi.Size()/2 {
		return
	}
	tmp := h.path + ".compact"
	_ = os.Remove(tmp) // of a compaction that was cut short
	var dst *bbolt.DB
	err = guarded(func() (err error) {
		if dst, err = bbolt.Open(tmp, 0o600, &bbolt.Options{Timeout: lockWait}); err != nil {
			return err
		}
		if err = bbolt.Compact(dst, h.db, 1<<20); err == nil {
			err = os.Rename(tmp, h.path)
		}
		return err
	})
	if err != nil {
		if dst != nil {
			_ = guarded(dst.Close)
		}
		_ = os.Remove(tmp)
		return
	}
	_ = h.closeFile()
	h.db = dst
}
