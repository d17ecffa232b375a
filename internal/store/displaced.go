package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"

	"pinfold.dev/internal/ownfile"
)

// displaced sees to it that what is open is the file at the history's path: one that
// was removed, or replaced, under the service takes what is written to it along when
// the service ends. What it had is written again, under its own name where there is
// none by now. mu is held for writing.
func (h *history) displaced() {
	now, err := os.Lstat(h.path)
	if h.db == nil || h.file == nil || err == nil && os.SameFile(now, h.file) || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return
	}
	to, what := h.path, "the history's file was removed under the service; it is written again"
	if err == nil {
		to = fmt.Sprintf("%s.displaced-%d", h.path, time.Now().UnixNano())
		what = fmt.Sprintf("another file is at the history's place, and is used from now on; what the service had open is %s", to)
	}
	if err := h.copyTo(to); err != nil {
		h.note = fmt.Sprintf("the history's file was removed or replaced under the service, and cannot be written again: %v", err)
		return
	}
	_ = h.closeFile()
	if h.open(); h.why == nil {
		h.note = what
	}
}

// copyTo copies the open history to a new file.
func (h *history) copyTo(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	tmp := path + ".new"
	f, err := ownfile.Create(tmp)
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		return err
	}
	err = guarded(func() error {
		dst, err := bbolt.Open(tmp, 0o600, &bbolt.Options{Timeout: lockWait})
		if err != nil {
			return err
		}
		return errors.Join(bbolt.Compact(dst, h.db, 1<<20), dst.Close())
	})
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		_ = os.Remove(tmp)
	}
	return err
}

// Tend sees to it that the history is where it belongs.
func (s *Store) Tend() {
	s.hist.writing.Lock()
	defer s.hist.writing.Unlock()
	_ = s.hist.revive()
}
