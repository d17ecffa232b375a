//go:build linux

package hold

import (
	"context"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

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
