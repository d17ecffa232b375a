//go:build !linux

package sys

import "syscall"

// SetDisposition returns ENOSYS.
func SetDisposition(sig syscall.Signal, ignore bool) error { return nosys("rt_sigaction") }

// Eventfd returns ENOSYS.
func Eventfd() (int, error) { return -1, nosys("eventfd2") }

// CloseOnExecFrom returns ENOSYS.
func CloseOnExecFrom(first int) error { return nosys("close_range") }

// Listening returns ENOSYS.
func Listening(fd int) error { return nosys("getsockopt SO_ACCEPTCONN") }

// WaitWritable returns false.
func WaitWritable(fd, ms int) bool { return false }
