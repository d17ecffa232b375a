package systemd

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// Config says which service manager to use, and how.
type Config struct {
	// User means the calling user's own manager instead of PID 1.
	User bool
	// Log hears of reconnects and of properties that the manager does not
	// know; nil is silent.
	Log *slog.Logger
	// Timeout bounds each call, reconnecting included; 0 means 5 s.
	Timeout time.Duration
	// Slice is where scopes go that name none; "" means pinfold.slice.
	Slice string
}

// Manager is one service manager, reached over a bus connection that is
// redialled when it is lost. Its methods may be called at the same time.
type Manager struct {
	cfg Config
}

var errNotYet = errors.New("not written yet")

// Connect reaches the service manager and reads its version, so that a nil
// error means that it answers.
func Connect(ctx context.Context, cfg Config) (*Manager, error) {
	return nil, errNotYet
}

// Available tries the service manager: nil means that scopes can be made
// there, ErrUnavailable in the chain that they cannot, another error that it
// did not become clear. The *Error has the reason and the remedy.
func Available(ctx context.Context, user bool) error {
	return errNotYet
}

// Version returns the manager's version as it says it ("252.39-1~deb12u2") and
// the number in it (252; 0 when there is none).
func (m *Manager) Version() (string, int) { return "", 0 }

// User tells whether it is a user's manager.
func (m *Manager) User() bool { return m.cfg.User }

// Close closes the connection. Calls after it fail.
func (m *Manager) Close() error { return nil }
