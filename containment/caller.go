package containment

import (
	"os"

	"pinfold.dev/api"
)

// Caller is who asks, as the kernel told it when the connection was made.
type Caller struct {
	UID, GID uint32
	Groups   []uint32
	PID      int    // as seen by the service; 0 when it lives in a foreign PID namespace
	Ino      uint64 // pidfs inode, Linux >= 6.9; else 0
	Cgroup   string // the 0:: line of /proc/PID/cgroup; empty when it could not be read
	// Admin is root, or a member of the admin group.
	Admin bool
	// Process opens a handle on the process that asks, its pidfd; nil: there is
	// none to be had.
	Process func() (*os.File, error)
}

// TurnFilter narrows a list of turns; a zero field does not.
type TurnFilter struct {
	Owner   *uint32
	Session string
	State   api.State
	Live    bool // only turns that are not over
}
