package systemd

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/godbus/dbus/v5"
)

// Passed is a descriptor that the service manager handed over at start: of a
// socket unit, or one that an earlier start of the service had it keep.
type Passed struct {
	Name string // FileDescriptorName= of the socket unit, or Store's
	FD   int
}

// firstPassed is SD_LISTEN_FDS_START.
const firstPassed = 3

// mostPassed bounds what LISTEN_FDS may say.
const mostPassed = 1 << 20

// TakePassed takes over what the manager passed to this process (LISTEN_PID,
// LISTEN_FDS and LISTEN_FDNAMES, see sd_listen_fds(3)) and makes it
// close-on-exec. To be called once, before anything else is started.
func TakePassed(getenv func(string) string) ([]Passed, error) {
	if getenv("LISTEN_PID") != strconv.Itoa(os.Getpid()) {
		return nil, nil // none, or meant for another process
	}
	count, err := strconv.Atoi(getenv("LISTEN_FDS"))
	if err != nil || count < 0 || count > mostPassed {
		return nil, fmt.Errorf("take what the service manager passed: LISTEN_FDS is %q", getenv("LISTEN_FDS"))
	}
	names := strings.Split(getenv("LISTEN_FDNAMES"), ":")
	all := make([]Passed, count)
	for i := range all {
		all[i] = Passed{Name: "unknown", FD: firstPassed + i}
		if i < len(names) && names[i] != "" {
			all[i].Name = names[i]
		}
		syscall.CloseOnExec(all[i].FD)
	}
	return all, nil
}

const jobIface = "org.freedesktop.systemd1.Job"

// Stopping tells whether the manager is stopping the unit that this process
// belongs to for good, not to start it again. An error means that nobody can
// tell.
func (m *Manager) Stopping(ctx context.Context) (bool, error) {
	const op = "ask what becomes of this service"
	fail := func(err error) (bool, error) { return false, &Error{Op: op, Reason: err.Error(), Err: err} }
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Timeout)
	defer cancel()
	l, err := m.connected(ctx)
	if err != nil {
		return false, err
	}
	var unit dbus.ObjectPath
	if err := m.call(ctx, l, "GetUnitByPID", &unit, uint32(os.Getpid())); err != nil {
		return fail(err)
	}
	var job struct {
		ID   uint32
		Path dbus.ObjectPath
	}
	if err := l.get(ctx, unit, unitIface, "Job", &job); err != nil {
		return fail(err)
	}
	if job.ID == 0 {
		return false, nil
	}
	var kind string
	if err := l.get(ctx, job.Path, jobIface, "JobType", &kind); err != nil {
		return fail(err)
	}
	return kind == "stop", nil
}
