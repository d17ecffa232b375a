package systemd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// Available tries the service manager: nil means that scopes can be made
// there, as one has been; ErrUnavailable in the chain that they cannot; another
// error that it did not become clear. The *Error has the reason and the remedy.
func Available(ctx context.Context, user bool) error {
	m, err := Connect(ctx, Config{User: user})
	if err != nil {
		return err
	}
	defer m.Close()
	return m.Try(ctx)
}

// Try makes a scope around a child of this process, looks whether it is in
// there, and ends both. The error is as Available's.
func (m *Manager) Try(ctx context.Context) error {
	const op = "try the service manager"
	child, done, err := startChild(ctx)
	if err != nil {
		return &Error{Op: op, Reason: "start a child: " + err.Error(), Err: err}
	}
	defer done()
	unit := UnitName(strings.ToLower(rand.Text()))
	s, err := m.StartScope(ctx, ScopeSpec{Unit: unit, Description: "pinfold tries the service manager", PID: child, PIDFD: -1})
	if err != nil {
		return m.tryError(op, err)
	}
	defer func() {
		done()
		_ = m.StopScope(context.WithoutCancel(ctx), unit)
	}()
	in, err := cgroupOf(strconv.Itoa(child))
	switch {
	case err != nil:
		return &Error{Op: op, Reason: "read the child's cgroup: " + err.Error(), Err: err}
	case path.Base(in) != unit:
		return &Error{Op: op, Err: ErrUnavailable,
			Reason: fmt.Sprintf("it says that the scope is %s, but the process in it is in %s", s.ControlGroup, in),
			Remedy: "the service must see the cgroup tree that the manager manages: a container with a bus socket from outside is not enough"}
	}
	return nil
}

// startChild starts a process that waits until done is called, or until we are
// gone: then its input ends. It is a real child, so its pid cannot be another's.
func startChild(ctx context.Context) (pid int, done func(), err error) {
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", "read x")
	in, err := cmd.StdinPipe()
	if err != nil {
		return 0, nil, err
	}
	if err := cmd.Start(); err != nil {
		return 0, nil, err
	}
	return cmd.Process.Pid, sync.OnceFunc(func() {
		_ = in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}), nil
}

// tryError says what the error of a scope that was tried means for all others.
func (m *Manager) tryError(op string, err error) error {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		return err
	}
	job, isJob := errors.AsType[jobError](err)
	switch {
	case isBusError(err, errAccessDenied, errInteractive):
		return &Error{Op: op, Reason: fmt.Sprintf("uid %d may not make scopes: %s", os.Geteuid(), e.Reason),
			Remedy: e.Remedy, Err: errors.Join(ErrUnavailable, err)}
	case isJob && job == "failed":
		reason := "it could not make a scope"
		if own, e := cgroupOf("self"); e == nil && m.cfg.User {
			reason += fmt.Sprintf(": this process is in cgroup %s, where the user's manager may move no process from", own)
		}
		return &Error{Op: op, Reason: reason, Remedy: e.Remedy, Err: errors.Join(ErrUnavailable, err)}
	}
	return err
}

// cgroupOf reads the cgroup v2 path of a process, as seen from our namespace.
func cgroupOf(pid string) (string, error) {
	b, err := os.ReadFile("/proc/" + pid + "/cgroup")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		if p, ok := strings.CutPrefix(line, "0::"); ok {
			return strings.TrimSuffix(p, "\n"), nil
		}
	}
	return "", fmt.Errorf("/proc/%s/cgroup has no cgroup v2 line", pid)
}

// unreachable makes the error for a manager that none of the attempts reached.
// problem is what was wrong before any was made. The error is conclusive when
// every attempt was.
func (m *Manager) unreachable(failed []attempt, problem string) error {
	e := &Error{Op: "reach the system's service manager", Err: ErrUnavailable}
	if m.cfg.User {
		e.Op = fmt.Sprintf("reach the service manager of uid %d", os.Geteuid())
	}
	var reasons []string
	if problem != "" {
		reasons = append(reasons, problem)
	}
	var causes []error
	for _, a := range failed {
		reason, conclusive := explain(a.err)
		if a.ep.name != "" {
			reason = a.ep.name + ": " + reason
		}
		reasons = append(reasons, reason)
		if !conclusive {
			causes = append(causes, a.err)
		}
	}
	e.Reason = strings.Join(reasons, "; ")
	if len(causes) > 0 {
		e.Err = errors.Join(causes...)
		e.Remedy = "it may only be slow: try again; systemctl status dbus.service tells more"
		return e
	}
	e.Remedy = m.remedy(failed)
	return e
}

// explain says in words why an endpoint did not work, and whether that will
// stay so until somebody does something.
func explain(err error) (reason string, conclusive bool) {
	switch {
	case isTimeout(err):
		return "no answer in time", false
	case errors.Is(err, context.Canceled):
		return "cancelled", false
	case errors.Is(err, fs.ErrNotExist):
		return "there is no socket", true
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nobody listens on the socket", true
	case errors.Is(err, fs.ErrPermission):
		return "permission denied", true
	case isBusError(err, errServiceUnknown, errNoOwner):
		return "the bus has no service manager on it", true
	case isBusError(err, errAccessDenied, errInteractive):
		return "refused: " + err.Error(), true
	case strings.HasPrefix(err.Error(), "dbus: authentication"):
		return "the bus does not accept this uid", true
	}
	return err.Error(), false
}

// remedy says what a person can do about a manager that is not there.
func (m *Manager) remedy(failed []attempt) string {
	_, err := os.Stat("/run/systemd/system") // sd_booted(3)
	switch {
	case err != nil:
		return "this host was not booted with systemd: use grade cgroup, or boot with systemd"
	case m.cfg.User && os.Getenv("XDG_RUNTIME_DIR") == "":
		return fmt.Sprintf("log in through PAM (su does not), or: loginctl enable-linger %[1]d; export XDG_RUNTIME_DIR=/run/user/%[1]d", os.Geteuid())
	case m.cfg.User:
		return fmt.Sprintf("start the user's manager: loginctl enable-linger %d", os.Geteuid())
	}
	for _, a := range failed {
		if errors.Is(a.err, fs.ErrPermission) {
			return "run the service as root, or use the user's own manager"
		}
	}
	return "start the system bus: systemctl start dbus.socket"
}
