package systemd

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"

	"github.com/godbus/dbus/v5"
)

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

var errClosed = &Error{Op: "call service manager", Reason: "the connection is closed", Err: net.ErrClosed}

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

// D-Bus error names that mean something here.
const (
	errNoSuchUnit     = "org.freedesktop.systemd1.NoSuchUnit"
	errUnitExists     = "org.freedesktop.systemd1.UnitExists"
	errUnknownObject  = "org.freedesktop.DBus.Error.UnknownObject"
	errUnknownProp    = "org.freedesktop.DBus.Error.UnknownProperty"
	errReadOnlyProp   = "org.freedesktop.DBus.Error.PropertyReadOnly"
	errNoProcess      = "org.freedesktop.DBus.Error.UnixProcessIdUnknown"
	errESRCH          = "System.Error.ESRCH"
	errNoReply        = "org.freedesktop.DBus.Error.NoReply"
	errDisconnected   = "org.freedesktop.DBus.Error.Disconnected"
	errServiceUnknown = "org.freedesktop.DBus.Error.ServiceUnknown"
	errNoOwner        = "org.freedesktop.DBus.Error.NameHasNoOwner"
	errAccessDenied   = "org.freedesktop.DBus.Error.AccessDenied"
	errInteractive    = "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired"
)

// busError returns the name of the error that the other side answered with; ""
// for any other error.
func busError(err error) string {
	if e, ok := errors.AsType[dbus.Error](err); ok {
		return e.Name
	}
	if e, ok := errors.AsType[*dbus.Error](err); ok {
		return e.Name
	}
	return ""
}

// isBusError tells whether the other side answered with one of these errors.
func isBusError(err error, names ...string) bool {
	have := busError(err)
	for _, n := range names {
		if have == n {
			return true
		}
	}
	return false
}

// isLost tells whether the connection, or the manager behind it, went away with
// the question unanswered.
func isLost(err error) bool {
	return errors.Is(err, dbus.ErrClosed) || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) ||
		isBusError(err, errNoReply, errDisconnected, errServiceUnknown, errNoOwner)
}

// isTimeout tells whether time ran out.
func isTimeout(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
}

// inDoubt tells whether a call may or may not have had its effect: nobody
// answered. An *Error is none of these: the manager was not reached at all.
func inDoubt(err error) bool {
	if _, ok := errors.AsType[*Error](err); ok {
		return false
	}
	return isLost(err) || isTimeout(err)
}
