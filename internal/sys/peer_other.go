//go:build !linux

package sys

import (
	"os"
	"syscall"
)

// PlainFile is for Linux.
func PlainFile(int, string) (*os.File, error) { return nil, syscall.ENOSYS }

// WithUmask is for Linux.
func WithUmask(int, func() error) error { return syscall.ENOSYS }

// LockFile is for Linux.
func LockFile(string) (*os.File, error) { return nil, syscall.ENOSYS }
