package api

import (
	"errors"
	"fmt"
)

// Code names a kind of error; it is stable, the message is not.
type Code string

// The codes, with the HTTP status each travels with.
const (
	CodeBadRequest       Code = "bad_request"          // 400
	CodeForbidden        Code = "forbidden"            // 403
	CodePeerUnverifiable Code = "peer_unverifiable"    // 403
	CodeNotFound         Code = "not_found"            // 404
	CodeMethod           Code = "method_not_allowed"   // 405
	CodeTimeout          Code = "timeout"              // 408
	CodeTurnOver         Code = "turn_over"            // 409: ending or ended
	CodeStaleEpoch       Code = "stale_epoch"          // 409
	CodeConflict         Code = "idempotency_conflict" // 409: the key was used for another request
	CodeStdinClosed      Code = "stdin_closed"         // 409: nobody reads it any more; details.bytes were taken
	CodeTooLarge         Code = "too_large"            // 413
	CodeExecFailed       Code = "exec_failed"          // 422: details.errno, details.errno_name, details.path
	CodeLaunchRefused    Code = "launch_refused"       // 422: cwd, user, cgroup; details.errno_name
	CodeGradeUnavailable Code = "grade_unavailable"    // 422
	CodeLimitUnavailable Code = "limit_unavailable"    // 422
	CodeAdoptRefused     Code = "adopt_refused"        // 422: details.reason, details.pid
	CodeUnsupported      Code = "unsupported"          // 422: the turn's keeper, or the kernel, is too old; details.feature
	CodeKeeperLost       Code = "keeper_lost"          // 503
	CodeUnavailable      Code = "unavailable"          // 503
	CodeInternal         Code = "internal"             // 500
)

// Error is the body of every answer that is not 2xx, and the error that the
// Go client returns: what happened, why, and what to do.
type Error struct {
	Code    Code              `json:"code"`
	Message string            `json:"message"`
	Remedy  string            `json:"remedy,omitempty"`
	Details map[string]string `json:"details,omitempty"`
	Grade   Grade             `json:"grade,omitempty"` // of the turn, or of the host
}

// Error says what happened and, where there is one, the remedy.
func (e *Error) Error() string {
	if e.Remedy == "" {
		return e.Message
	}
	return e.Message + " (" + e.Remedy + ")"
}

// Is matches on the code, so that errors.Is(err, api.ErrNotFound) works on both
// sides of the socket.
func (e *Error) Is(target error) bool {
	var t *Error
	return errors.As(target, &t) && t.Code == e.Code
}

// Sentinels to compare with errors.Is.
var (
	ErrBadRequest       = &Error{Code: CodeBadRequest, Message: "bad request"}
	ErrForbidden        = &Error{Code: CodeForbidden, Message: "forbidden"}
	ErrPeerUnverifiable = &Error{Code: CodePeerUnverifiable, Message: "peer unverifiable"}
	ErrNotFound         = &Error{Code: CodeNotFound, Message: "not found"}
	ErrTimeout          = &Error{Code: CodeTimeout, Message: "timeout"}
	ErrTurnOver         = &Error{Code: CodeTurnOver, Message: "turn is over"}
	ErrStaleEpoch       = &Error{Code: CodeStaleEpoch, Message: "stale epoch"}
	ErrConflict         = &Error{Code: CodeConflict, Message: "idempotency conflict"}
	ErrStdinClosed      = &Error{Code: CodeStdinClosed, Message: "stdin closed"}
	ErrUnsupported      = &Error{Code: CodeUnsupported, Message: "unsupported"}
	ErrExecFailed       = &Error{Code: CodeExecFailed, Message: "exec failed"}
	ErrLaunchRefused    = &Error{Code: CodeLaunchRefused, Message: "launch refused"}
	ErrGradeUnavailable = &Error{Code: CodeGradeUnavailable, Message: "grade unavailable"}
	ErrLimitUnavailable = &Error{Code: CodeLimitUnavailable, Message: "limit unavailable"}
	ErrAdoptRefused     = &Error{Code: CodeAdoptRefused, Message: "adoption refused"}
	ErrKeeperLost       = &Error{Code: CodeKeeperLost, Message: "keeper lost"}
	ErrUnavailable      = &Error{Code: CodeUnavailable, Message: "unavailable"}
)

// Errorf makes an Error with a formatted message.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// WithRemedy returns a copy of e that says what to do.
func (e *Error) WithRemedy(format string, args ...any) *Error {
	c := *e
	c.Remedy = fmt.Sprintf(format, args...)
	return &c
}

// With returns a copy of e with one more detail.
func (e *Error) With(key, value string) *Error {
	c := *e
	c.Details = make(map[string]string, len(e.Details)+1)
	for k, v := range e.Details {
		c.Details[k] = v
	}
	c.Details[key] = value
	return &c
}
