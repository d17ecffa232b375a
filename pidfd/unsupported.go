package pidfd

import "errors"

// ErrNotSupported is what an error is (errors.Is) that tells that the kernel, or a
// filter before it, has not got something: the only reason to fall back.
var ErrNotSupported = errors.ErrUnsupported

// Unsupported tells what this kernel has not got, found out by trying it.
type Unsupported struct {
	Feature string
	Since   string // the Linux that brought it
	Cause   error
}

func (e *Unsupported) Error() string {
	return e.Feature + " not supported (requires Linux " + e.Since + "): " + e.Cause.Error()
}

// Unwrap makes it ErrNotSupported.
func (e *Unsupported) Unwrap() []error { return []error{ErrNotSupported, e.Cause} }
