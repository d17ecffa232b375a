package systemd

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"time"

	sd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
)

// ScopeSpec says what scope to make.
type ScopeSpec struct {
	Unit        string // from UnitName
	Description string // any text; made fit for a unit file
	// PID is the process to put into it: a scope cannot be empty. A process
	// that another unit holds is taken from it, without a word.
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
	// tell (systemd 247).
	ControlGroupID uint64
	// InvocationID is 32 hex digits.
	InvocationID string
	// Dropped names the properties that this manager did not know.
	Dropped []string
	// ByHandle tells that the process was handed over as a pidfd, not as a
	// number.
	ByHandle bool
}

// StartScope makes a delegated scope around a running process and waits until
// the manager says that it is active. When the connection is lost or nobody
// answers within Config.Timeout, the manager is asked what became of the unit,
// over a new connection, and if it knows of none, the start is tried again, for
// Config.Timeout at most: it may be executing itself anew.
// All that takes no longer than three times Config.Timeout. The error is an
// *Error; after one the scope may still come, and lives as long as its process.
//
// The caller verifies membership: the manager also calls a scope active when
// its process was a zombie. That one is empty and stays: stop it.
func (m *Manager) StartScope(ctx context.Context, spec ScopeSpec) (Scope, error) {
	op := "start scope " + spec.Unit
	if !ourUnit(spec.Unit) {
		return Scope{}, &Error{Op: fmt.Sprintf("start scope %q", spec.Unit), Reason: "the name is none of UnitName's"}
	}
	if spec.PID <= 1 {
		return Scope{}, &Error{Op: op, Reason: fmt.Sprintf("pid %d cannot be put into a scope", spec.PID)}
	}
	r := newRequest(spec, spec.Slice)
	if r.slice == "" {
		r.slice = m.cfg.Slice
	}
	ctx, cancel := context.WithTimeout(ctx, 3*m.cfg.Timeout)
	defer cancel()
	if err := m.startSurely(ctx, r); err != nil {
		return Scope{}, m.startError(op, spec, err)
	}
	s, err := m.describeSurely(ctx, spec)
	if err != nil {
		return Scope{}, err
	}
	s.Dropped, s.ByHandle = r.dropped(), r.byHandle()
	return s, nil
}

// startSurely starts the unit, where it stayed in doubt whether the manager has
// heard, again: the second may find the first, which was heard. A manager that
// executes itself anew, or whose bus is gone, is back within a second or two; one
// that does not answer at all is not asked any more.
func (m *Manager) startSurely(ctx context.Context, r *request) error {
	err := m.start(ctx, r)
	for end := time.Now().Add(m.cfg.Timeout); m.mayComeBack(err) && ctx.Err() == nil; {
		active, aerr := m.active(ctx, r.spec.Unit)
		switch {
		case active:
			return nil
		case errors.Is(err, errJobPending), isTimeout(aerr):
			return err
		}
		again := m.start(ctx, r)
		if !isBusError(again, errUnitExists) { // else that is ours, on its way
			err = again
		}
		if time.Now().After(end) {
			return err
		}
		if m.mayComeBack(err) {
			time.Sleep(backPause)
		}
	}
	return err
}

// backPause is between questions to a manager that is away.
const backPause = 50 * time.Millisecond

// mayComeBack tells of an error that leaves in doubt whether the manager has
// heard, or says that a manager is away that had been there.
func (m *Manager) mayComeBack(err error) bool {
	if inDoubt(err) {
		return true
	}
	_, away := errors.AsType[*Error](err)
	version, _ := m.Version()
	return away && version != "" && !errors.Is(err, net.ErrClosed)
}

// start asks for the scope, with fewer properties as often as the manager says
// that it does not know one, and waits for its job.
func (m *Manager) start(ctx context.Context, r *request) error {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Timeout)
	defer cancel()
	l, err := m.connected(ctx)
	if err != nil {
		return err
	}
	ended, stop := l.jobs.wait(r.spec.Unit)
	defer stop()
	r.without = m.unknownProperties()
	for {
		var job dbus.ObjectPath
		err := m.call(ctx, l, "StartTransientUnit", &job,
			r.spec.Unit, "fail", r.properties(), []sd.PropertyCollection{})
		if err == nil {
			return waitJob(ctx, l, job, ended)
		}
		name := unknownProperty(err, r.optional())
		if name == "" {
			return err
		}
		m.cfg.Log.Info("the service manager does not know a property", "property", name)
		m.refused(name)
		r.without[name] = true
	}
}

// active tells whether the manager says that the unit is; an error that it does
// not say.
func (m *Manager) active(ctx context.Context, unit string) (bool, error) {
	state, err := m.state(ctx, unit)
	return err == nil && state == "active", err
}

// Over tells that the manager has no such unit, or knows it as over: nobody is to
// be put into its cgroup any more. The answer no may be no more than an error.
func (m *Manager) Over(ctx context.Context, unit string) bool {
	state, err := m.state(ctx, unit)
	return isBusError(err, errNoSuchUnit, errUnknownObject) || err == nil && (state == "inactive" || state == "failed")
}

// state is the unit's ActiveState, see systemd(1).
func (m *Manager) state(ctx context.Context, unit string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Timeout)
	defer cancel()
	l, err := m.connected(ctx)
	if err != nil {
		return "", err
	}
	var state string
	err = l.get(ctx, unitPath(unit), unitIface, "ActiveState", &state)
	if isTimeout(err) || isLost(err) {
		m.drop(l)
	}
	return state, err
}

// describeSurely describes it, again where the manager may come back.
func (m *Manager) describeSurely(ctx context.Context, spec ScopeSpec) (Scope, error) {
	s, err := m.describe(ctx, spec)
	for end := time.Now().Add(m.cfg.Timeout); isLost(err) && time.Now().Before(end) && ctx.Err() == nil; {
		time.Sleep(backPause)
		s, err = m.describe(ctx, spec)
	}
	return s, err
}

// describe reads what the manager says about an active scope.
func (m *Manager) describe(ctx context.Context, spec ScopeSpec) (Scope, error) {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Timeout)
	defer cancel()
	op, s := "describe scope "+spec.Unit, Scope{Unit: spec.Unit}
	l, err := m.connected(ctx)
	if err != nil {
		return s, err
	}
	// All at once: each is a round trip.
	obj, ch := l.conn.Object(busName, unitPath(spec.Unit)), make(chan *dbus.Call, 3)
	path := obj.GoWithContext(ctx, getProperty, 0, ch, scopeIface, "ControlGroup")
	id := obj.GoWithContext(ctx, getProperty, 0, ch, scopeIface, "ControlGroupId")
	invocation := obj.GoWithContext(ctx, getProperty, 0, ch, unitIface, "InvocationID")
	for range 3 {
		<-ch
	}
	var raw []byte
	err = errors.Join(storeVariant(path, &s.ControlGroup), storeVariant(invocation, &raw))
	s.InvocationID = hex.EncodeToString(raw)
	if e := storeVariant(id, &s.ControlGroupID); e != nil && !isBusError(e, errUnknownProp) {
		err = errors.Join(err, e)
	}
	switch {
	case isBusError(err, errNoSuchUnit, errUnknownObject), err == nil && s.ControlGroup == "":
		return s, &Error{Op: op, Err: ErrProcessGone,
			Reason: fmt.Sprintf("it is over already: process %d has exited", spec.PID)}
	case err != nil:
		if isLost(err) {
			m.drop(l)
		}
		return s, &Error{Op: op, Reason: err.Error(), Err: err}
	}
	return s, nil
}

func storeVariant(c *dbus.Call, to any) error {
	var v dbus.Variant
	if err := c.Store(&v); err != nil {
		return err
	}
	return v.Store(to)
}

// StopScope stops the unit, waits for it no longer than Config.Timeout, and
// forgets its failure, if it had one. A unit that the manager does not have is
// no error. The manager signals what is still in the unit: stop one only when
// it is seen empty, or is to be ended by all means.
func (m *Manager) StopScope(ctx context.Context, unit string) error {
	op := "stop scope " + unit
	if !ourUnit(unit) {
		return &Error{Op: fmt.Sprintf("stop scope %q", unit), Reason: "the name is none of UnitName's"}
	}
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Timeout)
	defer cancel()
	var err error
	for range 2 { // asking twice does no harm
		if err = m.stop(ctx, unit); !isLost(err) {
			break
		}
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	if err != nil {
		return &Error{Op: op, Reason: err.Error(), Err: err}
	}
	return nil
}

func (m *Manager) stop(ctx context.Context, unit string) error {
	l, err := m.connected(ctx)
	if err != nil {
		return err
	}
	ended, cancel := l.jobs.wait(unit)
	defer cancel()
	var job dbus.ObjectPath
	err = m.call(ctx, l, "StopUnit", &job, unit, "replace")
	if err == nil {
		err = waitJob(ctx, l, job, ended)
	}
	if err == nil || isBusError(err, errNoSuchUnit) {
		err = m.call(ctx, l, "ResetFailedUnit", nil, unit)
	}
	if isBusError(err, errNoSuchUnit) {
		return nil
	}
	return err
}

// startError explains why a scope did not start.
func (m *Manager) startError(op string, spec ScopeSpec, err error) error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e // the manager could not be reached
	}
	e := &Error{Op: op, Reason: err.Error(), Err: err}
	job, isJob := errors.AsType[jobError](err)
	switch {
	case isBusError(err, errUnitExists):
		e.Reason, e.Err = "the manager has a unit of that name", errors.Join(ErrUnitExists, err)
	case isBusError(err, errNoProcess, errESRCH):
		e.Reason, e.Err = fmt.Sprintf("process %d has exited", spec.PID), errors.Join(ErrProcessGone, err)
	case isBusError(err, errAccessDenied, errInteractive):
		e.Remedy = "run the service as root, or use the user's own manager"
	case isJob && job == "failed" && m.cfg.User:
		e.Remedy = "the service must run below the user's manager: as a user unit (systemctl --user), or with systemd-run --user"
	case isJob:
		e.Remedy = "journalctl -u " + spec.Unit + " tells more"
	case errors.Is(err, errJobPending):
		e.Remedy = "systemctl list-jobs shows what the manager waits for"
	case isTimeout(err):
		e.Reason = fmt.Sprintf("no answer within %v", m.cfg.Timeout)
		e.Remedy = "systemctl status dbus.service, and journalctl -b, tell more"
	}
	return e
}

func unitPath(unit string) dbus.ObjectPath {
	return dbus.ObjectPath("/org/freedesktop/systemd1/unit/" + sd.PathBusEscape(unit))
}
