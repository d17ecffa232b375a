package sys

import (
	"errors"
	"os"
	"syscall"
)

// FD owns a descriptor that goroutines share. It is closed when the last Use
// has returned, so that nobody acts on a number that was handed out again.
type FD struct {
	file *os.File
	conn syscall.RawConn
}

// NewFD takes ownership of fd; the name is for errors.
func NewFD(fd int, name string) *FD {
	if fd < 0 {
		return &FD{}
	}
	f := &FD{file: os.NewFile(uintptr(fd), name)}
	if f.file != nil {
		f.conn, _ = f.file.SyscallConn()
	}
	return f
}

// Use calls fn with the descriptor, which stays open until fn returns.
// os.ErrClosed: it was closed before. EBADF: there never was one.
func (f *FD) Use(fn func(fd int) error) error {
	if f.conn == nil {
		return syscall.EBADF
	}
	var err error
	if e := f.conn.Control(func(fd uintptr) { err = fn(int(fd)) }); e != nil {
		return os.ErrClosed
	}
	return err
}

// Close closes it. Closing again does nothing.
func (f *FD) Close() error {
	if f.file == nil {
		return nil
	}
	if err := f.file.Close(); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}
