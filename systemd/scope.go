package systemd

import "context"

// Property is one more property of a scope, by its D-Bus name and in the type
// that the manager expects (uint64 for MemoryMax, for one).
type Property struct {
	Name  string
	Value any
}

// ScopeSpec says what scope to make.
type ScopeSpec struct {
	Unit        string // from UnitName
	Description string // any text; made fit for a unit file
	// PID is the process to put into it: a scope cannot be empty.
	PID int
	// PIDFD is a handle of PID, or -1. The manager is given it where it takes
	// one (systemd 255 does), so that PID cannot mean another process.
	PIDFD int
	// Slice overrides Config.Slice.
	Slice string
	// Properties are wanted, not needed: one that the manager does not know
	// is left out and reported in Scope.Dropped.
	Properties []Property
}

// Scope is a scope that the manager says is active.
type Scope struct {
	Unit string
	// ControlGroup is the cgroup below the mount, as the manager says it:
	// "/pinfold.slice/pinfold-….scope".
	ControlGroup string
	// ControlGroupID is the cgroup's kernfs id; 0 where the manager does not
	// tell (before systemd 252).
	ControlGroupID uint64
	// InvocationID is 32 hex digits.
	InvocationID string
	// Dropped names the properties that this manager did not know.
	Dropped []string
}

// StartScope makes a delegated scope around a running process. The caller
// verifies membership: a process that exits meanwhile leaves an empty scope.
func (m *Manager) StartScope(ctx context.Context, spec ScopeSpec) (Scope, error) {
	return Scope{}, errNotYet
}

// StopScope stops the unit and forgets its failure, if it had one. A unit that
// the manager does not have is no error.
func (m *Manager) StopScope(ctx context.Context, unit string) error {
	return errNotYet
}

// UnitName is the scope's name for an id of ours, which is hex digits; nothing
// that a caller says ever gets into a unit name.
func UnitName(id string) string { return "pinfold-" + id + ".scope" }
