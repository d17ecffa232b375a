package systemd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
)

// Available tries the service manager: nil means that scopes can be made
// there, ErrUnavailable in the chain that they cannot, another error that it
// did not become clear. The *Error has the reason and the remedy.
func Available(ctx context.Context, user bool) error {
	m, err := Connect(ctx, Config{User: user})
	if err != nil {
		return err
	}
	defer m.Close()
	return m.Allowed(ctx)
}

// Allowed tells whether this process may make scopes at the manager, as
// Available does.
func (m *Manager) Allowed(ctx context.Context) error {
	uid := os.Geteuid()
	if uid == 0 {
		return nil
	}
	const op = "use service manager"
	if !m.cfg.User {
		return &Error{Op: op, Err: ErrUnavailable,
			Reason: fmt.Sprintf("uid %d may not make units of the system's manager", uid),
			Remedy: "run the service as root, or use the user's own manager"}
	}
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Timeout)
	defer cancel()
	l, err := m.connected(ctx)
	if err != nil {
		return err
	}
	var manager string
	if err := l.get(ctx, managerPath, managerIface, "ControlGroup", &manager); err != nil {
		return &Error{Op: op, Reason: "read its cgroup: " + err.Error(), Err: err}
	}
	own, err := ownCgroup()
	if err != nil {
		return &Error{Op: op, Reason: "read our cgroup: " + err.Error(), Err: err}
	}
	if inSubtree(own, manager) {
		return nil
	}
	return &Error{Op: op, Err: ErrUnavailable,
		Reason: fmt.Sprintf("this process is in cgroup %s, outside the user manager's %s: the kernel lets uid %d move no process out of there", own, manager, uid),
		Remedy: "start the service below the user manager: as a user unit (systemctl --user), or with systemd-run --user"}
}

// ownCgroup reads this process's cgroup v2 path, as seen from its namespace.
func ownCgroup() (string, error) {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		if p, ok := strings.CutPrefix(line, "0::"); ok {
			return strings.TrimSuffix(p, "\n"), nil
		}
	}
	return "", errors.New("/proc/self/cgroup has no cgroup v2 line")
}

// inSubtree tells whether cgroup own is root or below it.
func inSubtree(own, root string) bool {
	own, root = path.Clean(own), path.Clean(root)
	return own == root || root == "/" || strings.HasPrefix(own, root+"/")
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
