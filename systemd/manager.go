package systemd

import (
	"context"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
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

const (
	defaultTimeout = 5 * time.Second
	defaultSlice   = "pinfold.slice"
)

// Manager is one service manager, reached over a bus connection that is
// redialled when it is lost. Its methods may be called at the same time.
type Manager struct {
	cfg    Config
	dialer chan struct{} // holds one token: who has it may dial

	mu      sync.Mutex // guards what follows; never held over a call
	link    *link      // nil: dial
	closed  bool
	version string
	unknown map[string]bool // properties that this version refused
}

// Connect reaches the service manager and reads its version, so that a nil
// error means that it answers. PID 1 is reached over the system bus, by root
// also over /run/systemd/private; a user's manager over the session bus
// ($DBUS_SESSION_BUS_ADDRESS, else $XDG_RUNTIME_DIR/bus) or
// $XDG_RUNTIME_DIR/systemd/private. The error is an *Error.
func Connect(ctx context.Context, cfg Config) (*Manager, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = defaultTimeout
	}
	if cfg.Slice == "" {
		cfg.Slice = defaultSlice
	}
	m := &Manager{cfg: cfg, dialer: make(chan struct{}, 1), unknown: make(map[string]bool)}
	m.dialer <- struct{}{}
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	if _, err := m.connected(ctx); err != nil {
		return nil, err
	}
	return m, nil
}

// Version returns the manager's version as it says it ("252.39-1~deb12u2") and
// the number in it (252; 0 when there is none).
func (m *Manager) Version() (string, int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.version, versionNumber(m.version)
}

// User tells whether it is a user's manager.
func (m *Manager) User() bool { return m.cfg.User }

// Close closes the connection. Calls after it fail.
func (m *Manager) Close() error {
	m.mu.Lock()
	l := m.link
	m.link, m.closed = nil, true
	m.mu.Unlock()
	if l != nil {
		l.close()
	}
	return nil
}

// connected returns the connection, a new one where there is none any more.
// ctx must have a deadline.
func (m *Manager) connected(ctx context.Context) (*link, error) {
	if l, err := m.current(); l != nil || err != nil {
		return l, err
	}
	select {
	case <-m.dialer:
		defer func() { m.dialer <- struct{}{} }()
	case <-ctx.Done():
		return nil, m.unreachable([]attempt{{err: ctx.Err()}}, "")
	}
	if l, err := m.current(); l != nil || err != nil {
		return l, err // another caller has dialled meanwhile
	}
	l, err := m.dialAny(ctx)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		l.close()
		return nil, errClosed
	}
	if m.version != "" {
		m.cfg.Log.Info("reconnected to the service manager", "version", l.version)
	}
	if m.version != l.version {
		m.version, m.unknown = l.version, make(map[string]bool)
	}
	m.link = l
	return l, nil
}

// current returns the connection if there is a live one.
func (m *Manager) current() (*link, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, errClosed
	}
	if m.link != nil && !m.link.conn.Connected() {
		m.link = nil
	}
	return m.link, nil
}

// drop gives a connection up; whoever still waits on it gets an error.
func (m *Manager) drop(l *link) {
	m.mu.Lock()
	if m.link == l {
		m.link = nil
	}
	m.mu.Unlock()
	l.close()
}

// call calls a method of the manager; to takes its answer, if not nil. A
// connection over which no answer comes in time is given up: what else is
// queued there would come no sooner.
func (m *Manager) call(ctx context.Context, l *link, method string, to any, args ...any) error {
	c := l.conn.Object(busName, managerPath).CallWithContext(ctx, managerIface+"."+method, 0, args...)
	err := c.Err
	if err == nil && to != nil {
		err = c.Store(to)
	}
	if isTimeout(err) || isLost(err) {
		m.drop(l)
	}
	return err
}

// attempt is one endpoint that did not work.
type attempt struct {
	ep  endpoint
	err error
}

// dialAny tries the endpoints in their order; each gets an equal share of the
// time that is left, so that a bus that hangs leaves some for the next.
func (m *Manager) dialAny(ctx context.Context) (*link, error) {
	list, problem := endpoints(m.cfg.User, os.Geteuid(), os.Getenv)
	var failed []attempt
	for i, ep := range list {
		end, _ := ctx.Deadline()
		share := time.Until(end) / time.Duration(len(list)-i)
		c, cancel := context.WithTimeout(ctx, share)
		l, err := dial(c, ep)
		cancel()
		if err == nil {
			return l, nil
		}
		failed = append(failed, attempt{ep, err})
	}
	return nil, m.unreachable(failed, problem)
}

// versionNumber is the number that a version begins with.
func versionNumber(v string) int {
	end := strings.IndexFunc(v, func(r rune) bool { return r < '0' || r > '9' })
	if end < 0 {
		end = len(v)
	}
	n, err := strconv.Atoi(v[:end])
	if err != nil {
		return 0
	}
	return n
}
