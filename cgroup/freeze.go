//go:build linux

package cgroup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"pinfold.dev/internal/sys"
)

// FreezeAsked tells whether it is asked to be frozen: it itself, not one above
// it (cgroup.freeze, Linux 5.2).
func (d *Dir) FreezeAsked() (bool, error) {
	b, err := d.read("cgroup.freeze")
	if removed(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read cgroup.freeze of %s: %w", d.path, err)
	}
	return len(b) > 0 && b[0] == '1', nil
}

// ErrThawed tells that nobody asks for a cgroup to be frozen any more, or that it
// was removed.
var ErrThawed = errors.New("it was thawed meanwhile")

// AwaitFrozen waits until everything in it and below is seen frozen, or ctx is
// done (its error), or it is not to be frozen any more (ErrThawed). What sleeps
// uninterruptibly keeps a cgroup from it.
func (d *Dir) AwaitFrozen(ctx context.Context) error {
	for pause := lookFirst; ; pause = min(2*pause, 10*lookLast) {
		frozen, err := d.Frozen()
		if err != nil || frozen {
			return err
		}
		if asked, err := d.FreezeAsked(); err != nil || !asked {
			return fmt.Errorf("freeze cgroup %s: %w", d.path, cmp.Or(err, ErrThawed))
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("freeze cgroup %s: %w", d.path, err)
		}
		sys.Nanosleep(int64(pause))
	}
}

// stillFor bounds the wait of Still: frozen helps, but is no condition.
const stillFor = 100 * time.Millisecond

// Still freezes it, so that nobody in it forks, and returns what undoes that. It
// does not insist: a kernel before 5.2 freezes nothing, and a process in
// uninterruptible sleep not yet. One that was frozen before stays so.
func (d *Dir) Still(ctx context.Context) (thaw func()) {
	asked, err := d.FreezeAsked()
	if err != nil || asked || d.refuse(listing{}) != nil {
		return func() {}
	}
	freezer, err := d.openFreezer()
	if err != nil {
		return func() {}
	}
	// Through the same descriptor: to thaw, none must be wanted.
	ask := func(data string) error {
		return freezer.Use(func(fd int) error { return sys.Write(fd, []byte(data)) })
	}
	if ask("1") != nil {
		_ = freezer.Close()
		return func() {}
	}
	ctx, cancel := context.WithTimeout(ctx, stillFor)
	defer cancel()
	_ = d.AwaitFrozen(ctx)
	return func() {
		_ = ask("0")
		_ = freezer.Close()
	}
}

func (d *Dir) openFreezer() (freezer *sys.FD, err error) {
	err = d.fd.Use(func(fd int) error {
		n, err := sys.Openat(fd, "cgroup.freeze", sys.OWronly)
		if err == nil {
			freezer = sys.NewFD(n, "cgroup.freeze")
		}
		return err
	})
	return freezer, err
}
