package sys

import (
	"errors"
	"os"
	"syscall"
)

// Short tells of an error that comes of what may be there again in a moment:
// descriptors, memory, watches (a file that could not be given to the poller for
// that has no deadlines).
func Short(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM) ||
		errors.Is(err, syscall.ENOSPC) || errors.Is(err, os.ErrNoDeadline)
}
