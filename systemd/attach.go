package systemd

import (
	"context"
	"fmt"
	"strings"
)

// Attach has the manager move a running process into sub, a cgroup that we made
// in a delegated scope of ours, such as "/work/p1". A user's manager asks PID 1
// where it may not itself: out of a log-in session, say, whose cgroup is none of
// the user's. Both take only processes of the caller's uid then. It is
// AttachProcessesToUnit of org.freedesktop.systemd1(5), since systemd 238, and
// takes a number, not a handle: the caller verifies who was moved. The error is
// an *Error.
func (m *Manager) Attach(ctx context.Context, unit, sub string, pid int) error {
	op := fmt.Sprintf("attach process %d to %s", pid, unit)
	switch {
	case !ourUnit(unit):
		return &Error{Op: fmt.Sprintf("attach process %d to %q", pid, unit), Reason: "the name is none of UnitName's"}
	case pid <= 1:
		return &Error{Op: op, Reason: fmt.Sprintf("pid %d cannot be put into a scope", pid)}
	case !strings.HasPrefix(sub, "/"):
		return &Error{Op: op, Reason: fmt.Sprintf("%q is no cgroup below the scope", sub)}
	}
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Timeout)
	defer cancel()
	l, err := m.connected(ctx)
	if err != nil {
		return err
	}
	if err := m.call(ctx, l, "AttachProcessesToUnit", nil, unit, sub, []uint32{uint32(pid)}); err != nil {
		return &Error{Op: op, Reason: err.Error(), Err: err}
	}
	return nil
}
