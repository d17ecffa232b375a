//go:build linux

package cgroup

import (
	"context"
	"errors"
	"fmt"
	"path"
	"syscall"
	"time"

	"pinfold.dev/internal/sys"
)

// Remove removes it and the cgroups below, whoever made them, depth first, and
// never a file. EBUSY is tried again for about a second: it is what the kernel
// says while the last members are going, and while somebody makes another below.
// That it is gone already is no error; that its path is another cgroup's by now
// is none either, and leaves that alone.
func (d *Dir) Remove(ctx context.Context) error {
	err := d.fd.Use(func(fd int) error {
		err := retryBusy(ctx, func() error {
			if err := removeChildren(fd); err != nil {
				return err
			}
			return d.removeSelf(fd)
		})
		return err
	})
	if err != nil {
		return fmt.Errorf("remove cgroup %s: %w", d.path, err)
	}
	return nil
}

// removeChildren empties an open cgroup of cgroups.
func removeChildren(fd int) error {
	return eachChild(fd, func(child int, name string) error {
		if err := removeChildren(child); err != nil {
			return err
		}
		if err := sys.Rmdirat(fd, name); !removed(err) {
			return err
		}
		return nil
	})
}

// removeSelf removes an open cgroup from its parent, by its name there, after
// having seen that the name still means it.
func (d *Dir) removeSelf(fd int) error {
	parent, err := sys.Openat(fd, "..", sys.ODirectory)
	if removed(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer sys.Close(parent)
	name := path.Base(d.path)
	id, err := sys.InoAt(parent, name)
	if removed(err) || (err == nil && id != d.id) {
		return nil
	}
	if err == nil {
		err = sys.Rmdirat(parent, name)
	}
	if removed(err) {
		return nil
	}
	return err
}

// retryBusy calls fn until it returns something else than EBUSY, with pauses
// that sum up to about a second.
func retryBusy(ctx context.Context, fn func() error) error {
	for pause := 50 * time.Microsecond; ; pause *= 2 {
		err := fn()
		if !errors.Is(err, syscall.EBUSY) || pause > 500*time.Millisecond {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w (%w)", err, ctx.Err())
		case <-time.After(pause):
		}
	}
}
