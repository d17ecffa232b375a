//go:build linux

package hold

import (
	"context"
	"log/slog"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"pinfold.dev/containment"
	"pinfold.dev/internal/sys/systest"
	"pinfold.dev/internal/wire"
	"pinfold.dev/pidfd"
)

// A census waits for an end that is just being told, at whatever step that is: also
// where its handle is closed between two looks. For who lives it does not wait.
func TestAwaitUnkept(t *testing.T) {
	lives := systest.Start(t, exec.Command("sleep", "1000"))
	opened := func() *pidfd.Handle {
		h, err := pidfd.Open(lives.PID())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { h.Close() })
		return h
	}
	closed := opened()
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		p     proc
		waits bool
	}{
		{"lives", proc{handle: opened()}, false},
		{"its handle was closed since", proc{handle: closed}, true},
		{"entered", proc{exit: &wire.Exit{}}, true},
		{"lost", proc{lost: "its keeper was gone"}, true},
	} {
		x := keeping{procs: map[string]*proc{"p1": &c.p}}
		x.losing.Do(func() {}) // the keeper was gone before
		c.p.told = make(chan struct{})
		var told atomic.Bool
		time.AfterFunc(50*time.Millisecond, func() { told.Store(true); close(c.p.told) })
		if x.awaitUnkept(t.Context()); c.waits && !told.Load() {
			t.Errorf("%s: it did not wait", c.name)
		}
		if <-c.p.told; c.waits {
			continue
		}
		c.p.told = make(chan struct{}) // never
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if x.awaitUnkept(ctx); ctx.Err() != nil {
			t.Errorf("%s: it waited", c.name)
		}
		cancel()
	}
}

// A keeper that has died is lost when a census comes, also when who heard of it has not
// looked again yet; one that lives, or that was told to go, is not.
func TestAwaitUnkeptDead(t *testing.T) {
	for _, c := range []struct {
		name          string
		dies, leaving bool
		want          string
	}{{"dead", true, false, "it has died"}, {"told to go", true, true, ""}, {"lives", false, false, ""}} {
		keeper := systest.Start(t, exec.Command("sleep", "1000"))
		h, err := pidfd.Open(keeper.PID())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { h.Close() })
		if c.dies {
			keeper.End()
		}
		lost := ""
		x := keeping{keeper: h, body: &hold{}, host: &Host{log: slog.New(slog.DiscardHandler)}, facts: containment.Facts{Dir: t.TempDir()},
			hooks: containment.Hooks{KeeperLost: func(why string) { lost = why }}}
		x.quitting.Store(c.leaving)
		if x.awaitUnkept(t.Context()); lost != c.want {
			t.Errorf("%s: %q, not %q", c.name, lost, c.want)
		}
	}
}
