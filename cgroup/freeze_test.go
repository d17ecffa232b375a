//go:build linux

package cgroup

import (
	"context"
	"errors"
	"testing"
	"time"
)

// Waiting for it to be frozen ends when nobody wants that any more, whatever its
// time: who thaws it does not wait for who froze it.
func TestAwaitFrozenThatIsThawed(t *testing.T) {
	d := testDir(t)
	born(t, d)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if err := d.AwaitFrozen(ctx); !errors.Is(err, ErrThawed) {
		t.Errorf("not to be frozen: %v", err)
	}
	if err := d.Freeze(true); err != nil {
		t.Fatal(err)
	}
	if err := d.AwaitFrozen(ctx); err != nil {
		t.Errorf("to be frozen: %v", err)
	}
	if err := d.Freeze(false); err != nil {
		t.Fatal(err)
	}
	gone := child(t, d, "gone")
	if err := gone.Remove(ctx); err != nil {
		t.Fatal(err)
	}
	if err := gone.AwaitFrozen(ctx); !errors.Is(err, ErrThawed) {
		t.Errorf("removed: %v", err)
	}
}
