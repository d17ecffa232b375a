//go:build linux

package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"pinfold.dev/internal/sys"
)

// Populated tells whether a live process is in it or below. Zombies do not
// count; a cgroup that was removed is not populated.
func (d *Dir) Populated() (bool, error) { return d.event("populated") }

// Frozen tells whether every process in it and below is frozen, not whether
// somebody asked for it.
func (d *Dir) Frozen() (bool, error) { return d.event("frozen") }

// Freeze asks for it to be frozen, or thawed, and does not wait (cgroup.freeze,
// Linux 5.2). Our own cgroup and its ancestors are refused.
func (d *Dir) Freeze(on bool) error {
	data := "0"
	if on {
		if err := d.refuse(listing{}); err != nil {
			return err
		}
		data = "1"
	}
	if err := d.write("cgroup.freeze", data); err != nil {
		return fmt.Errorf("freeze cgroup %s: %w", d.path, err)
	}
	return nil
}

// event reads one key of cgroup.events through a descriptor that stays open:
// 0.7 µs, and ENODEV once the cgroup was removed.
func (d *Dir) event(key string) (bool, error) {
	d.mu.Lock()
	events := d.events
	var err error
	if events == nil {
		if events, err = d.openEvents(); err == nil {
			d.events = events
		}
	}
	d.mu.Unlock()
	if removed(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open cgroup.events of %s: %w", d.path, err)
	}
	return d.eventIn(events, key)
}

// eventIn reads one key of an open cgroup.events. A cgroup that was removed is
// neither populated nor frozen.
func (d *Dir) eventIn(events *sys.FD, key string) (bool, error) {
	var buf [128]byte
	n := 0
	err := events.Use(func(fd int) (err error) { n, err = sys.Pread(fd, buf[:], 0); return })
	if removed(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read cgroup.events of %s: %w", d.path, err)
	}
	v, ok := sys.ParseKV(buf[:n], key)
	if !ok {
		return false, fmt.Errorf("read cgroup.events of %s: no %s: %w", d.path, key, sys.ErrParse)
	}
	return v != 0, nil
}

// errRoot tells that the root of the hierarchy says nothing of its members.
var errRoot = errors.New("the root cgroup has none")

// openEvents opens cgroup.events. ENOENT: the cgroup was removed.
func (d *Dir) openEvents() (*sys.FD, error) {
	var events *sys.FD
	err := d.fd.Use(func(fd int) error {
		n, err := sys.Openat(fd, "cgroup.events", sys.ORdonly)
		if errors.Is(err, syscall.ENOENT) {
			if _, e := sys.InoAt(fd, "cgroup.procs"); e == nil {
				return errRoot
			}
		}
		if err == nil {
			events = sys.NewFD(n, "cgroup.events")
		}
		return err
	})
	return events, err
}

// Empty waits until the cgroup and those below hold no live process, or it was
// removed. It returns ctx's error when that is done first. It needs no thread
// for a long wait.
func (d *Dir) Empty(ctx context.Context) error {
	return d.awaitEmpty(ctx, time.Time{})
}

// How awaitEmpty looks. The kernel sends at most one notification in 10 ms for
// each file, so a short wait is a matter of looking again; and one can be
// missed when the cgroup is removed at once, so a long one looks again as well.
// Without a descriptor to look through, or to wait by, it is tried again.
const (
	lookFor   = 20 * time.Millisecond // then wait for notifications
	lookFirst = 20 * time.Microsecond
	lookLast  = time.Millisecond
	pollFirst = 10 * time.Millisecond
	pollLast  = time.Second
)

// awaitEmpty waits until populated reads 0, ctx is done, or the time end has
// come (os.ErrDeadlineExceeded; zero: never).
func (d *Dir) awaitEmpty(ctx context.Context, end time.Time) error {
	for start := time.Now(); ; {
		populated, err := d.Populated()
		if !sys.Short(err) && (err != nil || !populated) {
			return err
		}
		if err := over(ctx, end); err != nil {
			return err
		}
		pause, waited := lookLast, time.Since(start)
		if waited >= lookFor {
			if err := d.watchEmpty(ctx, end, start); !sys.Short(err) {
				return err
			}
			pause = pollFirst
		}
		sys.Nanosleep(int64(bounded(waited/8, lookFirst, pause)))
	}
}

// watchEmpty is awaitEmpty for the long wait, by notification (POLLPRI). It has
// a cgroup.events of its own, since whoever reads one takes its notification.
func (d *Dir) watchEmpty(ctx context.Context, end, start time.Time) error {
	events, err := d.openEvents()
	if removed(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("watch cgroup %s: %w", d.path, err)
	}
	defer events.Close()
	var watch *sys.Watch
	err = events.Use(func(fd int) (err error) { watch, err = sys.NewWatch(fd, sys.WatchPri); return })
	if err != nil {
		return fmt.Errorf("watch cgroup %s: %w", d.path, err)
	}
	defer watch.Close()
	for {
		populated, err := d.eventIn(events, "populated")
		if err != nil || !populated {
			return err
		}
		if err := over(ctx, end); err != nil {
			return err
		}
		next := bounded(time.Since(start)/4, pollFirst, pollLast)
		if !end.IsZero() {
			next = bounded(time.Until(end), time.Microsecond, next)
		}
		if err := watch.Wait(ctx, next); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
}

// over returns ctx's error, or os.ErrDeadlineExceeded when end has come.
func over(ctx context.Context, end time.Time) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !end.IsZero() && !time.Now().Before(end) {
		return os.ErrDeadlineExceeded
	}
	return nil
}

func bounded(d, low, high time.Duration) time.Duration { return min(max(d, low), high) }
