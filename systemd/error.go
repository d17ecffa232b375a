package systemd

import "errors"

// ErrUnavailable is in the chain of an error that says conclusively that there
// is no service manager to use. An error without it, a time-out for one, means
// that nobody can tell yet.
var ErrUnavailable = errors.New("service manager unavailable")

// ErrUnitExists is in the chain of StartScope's error where the manager has a
// unit of that name; the caller picks another random name.
var ErrUnitExists = errors.New("unit exists")

// ErrProcessGone is in the chain of StartScope's error where the process had
// exited before the manager could place it.
var ErrProcessGone = errors.New("process gone")

// Error is what the functions of this package return: what was done, why it
// did not work, and what a person can do about it.
type Error struct {
	Op     string // "start scope pinfold-….scope"
	Reason string
	Remedy string // may be empty
	Err    error  // a sentinel, or the cause; may be nil
}

// Error says what was done and why it did not work; the remedy is a field of
// its own.
func (e *Error) Error() string { return e.Op + ": " + e.Reason }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
