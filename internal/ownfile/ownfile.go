// Package ownfile opens the service's own files: below its runtime and state
// directories, at names that it chose. Whatever is at such a name, no call here
// waits: a FIFO, a device, a socket, a directory or a link is refused, and so is
// what somebody else owns or may write. The errors say what is there, and what
// to do.
package ownfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// ErrStrange tells that what is at a name is no file that only this user can
// have written.
var ErrStrange = errors.New("it is not used")

const remedy = "move it away, and the service makes its own"

// Open opens a file for reading.
func Open(path string) (*os.File, error) { return open(path, os.O_RDONLY, 0) }

// OpenTo opens a file for writing, or makes it (0600) if flag has os.O_CREATE.
// os.O_TRUNC counts only once it is known to be ours.
func OpenTo(path string, flag int) (*os.File, error) {
	f, err := open(path, flag&^os.O_TRUNC, 0o600)
	if err != nil || flag&os.O_TRUNC == 0 {
		return f, err
	}
	if err := f.Truncate(0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// open does not wait for the other end of a FIFO, nor for a device, and follows
// no link.
func open(path string, flag int, mode fs.FileMode) (*os.File, error) {
	f, err := os.OpenFile(path, flag|syscall.O_NOFOLLOW|syscall.O_NONBLOCK|syscall.O_NOCTTY, mode)
	if err != nil {
		if fi, lerr := os.Lstat(path); lerr == nil && !fi.Mode().IsRegular() {
			return nil, strange(path, fi)
		}
		return nil, err
	}
	fi, err := f.Stat()
	if err == nil {
		err = check(path, fi)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// check refuses what is not a regular file of this user alone.
func check(path string, fi fs.FileInfo) error {
	st, ok := fi.Sys().(*syscall.Stat_t)
	switch {
	case !fi.Mode().IsRegular():
		return strange(path, fi)
	case ok && int(st.Uid) != os.Geteuid():
		return fmt.Errorf("use %s: it belongs to uid %d: %w; %s", path, st.Uid, ErrStrange, remedy)
	case fi.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("use %s: others may write it (mode %o): %w; %s", path, fi.Mode().Perm(), ErrStrange, remedy)
	}
	return nil
}

// strange says what is there instead of a file.
func strange(path string, fi fs.FileInfo) error {
	kind := map[fs.FileMode]string{fs.ModeDir: "a directory", fs.ModeSymlink: "a link", fs.ModeNamedPipe: "a FIFO", fs.ModeSocket: "a socket"}[fi.Mode().Type()]
	if kind == "" {
		kind = "a device"
	}
	return fmt.Errorf("use %s: %s is there, not a regular file: %w; %s", path, kind, ErrStrange, remedy)
}

// Read reads a whole file of at most so many bytes.
func Read(path string, most int64) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(b)) > most {
		err = fmt.Errorf("read %s: it has more than %d bytes: %w; %s", path, most, ErrStrange, remedy)
	}
	if err != nil {
		return nil, err
	}
	return b, nil
}

// Create makes a new, empty file (0600). What is at its name goes first, unless
// that is a directory.
func Create(path string) (*os.File, error) {
	f, err := create(path)
	if errors.Is(err, fs.ErrExist) {
		if err := syscall.Unlink(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			if fi, lerr := os.Lstat(path); lerr == nil && fi.IsDir() {
				return nil, strange(path, fi)
			}
			return nil, &fs.PathError{Op: "remove", Path: path, Err: err}
		}
		f, err = create(path)
	}
	return f, err
}

func create(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
}

// Replace writes a file so that a reader sees the old one or the new one, and so
// does who comes after a crash, of the service or, with sync, of the machine. A
// FIFO, a link and the like are replaced, a directory is refused.
func Replace(path string, b []byte, sync bool) error {
	tmp := path + ".new"
	f, err := Create(tmp)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil && sync {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		_ = os.Remove(tmp)
		if fi, lerr := os.Lstat(path); lerr == nil && fi.IsDir() {
			return strange(path, fi)
		}
	}
	return err
}

// Dir opens a directory for reading.
func Dir(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
}
