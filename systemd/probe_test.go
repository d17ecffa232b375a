package systemd

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// userAt makes the user's manager be looked for at address only.
func userAt(t *testing.T, address string) {
	t.Setenv("DBUS_SESSION_BUS_ADDRESS", address)
	t.Setenv("XDG_RUNTIME_DIR", "")
}

// A bus that takes the connection and never answers is waited for no longer
// than was said, and nobody concludes anything from it.
func TestConnectToBusThatHangs(t *testing.T) {
	sock := filepath.Join(t.TempDir(), "bus")
	ln, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	userAt(t, "unix:path="+sock)

	began := time.Now()
	m, err := Connect(t.Context(), Config{User: true, Timeout: 200 * time.Millisecond})
	if err == nil {
		m.Close()
		t.Fatal("connected to a bus that says nothing")
	}
	if took := time.Since(began); took < 200*time.Millisecond || took > time.Minute {
		t.Errorf("gave up after %v", took)
	}
	if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrUnavailable) {
		t.Errorf("error %#v", err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	if _, err := Connect(ctx, Config{User: true, Timeout: time.Hour}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestConnectToNoBus(t *testing.T) {
	dir := t.TempDir()
	deaf := filepath.Join(dir, "deaf")
	ln, err := net.Listen("unix", deaf)
	if err != nil {
		t.Fatal(err)
	}
	ln.(*net.UnixListener).SetUnlinkOnClose(false)
	ln.Close()
	for name, c := range map[string]struct{ address, reason string }{
		"nothing there":  {"unix:path=" + dir + "/none", "there is no socket"},
		"nobody listens": {"unix:path=" + deaf, "nobody listens"},
		"no address":     {"", "neither DBUS_SESSION_BUS_ADDRESS nor XDG_RUNTIME_DIR is set"},
	} {
		t.Run(name, func(t *testing.T) {
			userAt(t, c.address)
			err := Available(t.Context(), true)
			e, ok := errors.AsType[*Error](err)
			if !ok || !errors.Is(err, ErrUnavailable) {
				t.Fatalf("error %#v", err)
			}
			if !strings.Contains(e.Reason, c.reason) || e.Remedy == "" {
				t.Errorf("reason %q, remedy %q", e.Reason, e.Remedy)
			}
			if m, err := Connect(t.Context(), Config{User: true}); err == nil {
				m.Close()
				t.Error("Connect found a manager")
			}
		})
	}
}

// On a host without systemd the remedy says so; on one with it there is a
// manager for root.
func TestAvailableOnThisHost(t *testing.T) {
	err := Available(t.Context(), false)
	if _, statErr := os.Stat("/run/systemd/system"); statErr == nil {
		if (err == nil) != (os.Geteuid() == 0) {
			t.Errorf("as uid %d on a host with systemd: %v", os.Geteuid(), err)
		}
		return
	}
	e, ok := errors.AsType[*Error](err)
	if !ok || !errors.Is(err, ErrUnavailable) || !strings.Contains(e.Remedy, "not booted with systemd") {
		t.Errorf("on a host without systemd: %#v", err)
	}
}
