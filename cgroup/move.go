//go:build linux

package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"pinfold.dev/internal/fault"
	"pinfold.dev/internal/sys"
	"pinfold.dev/pidfd"
)

// MoveAll moves every process in it and below to another cgroup, until it is
// seen empty, and returns how many were moved. It is frozen meanwhile, so that
// nobody forks; whoever has been moved runs again at once. What cannot be moved
// is an error, and what was moved by then stays where it is.
//
// Each is a number first, then a handle, then seen to be a member, then moved,
// and then looked for through the handle. The kernel does not move what was
// counted: memory stays charged to where it was.
func (d *Dir) MoveAll(ctx context.Context, to *Dir) (int, error) {
	return d.moveTo(ctx, to, nil)
}

// MoveTree does so with one member and those of its descendants, by the parents
// that they have, that are in the cgroup or below. A descendant whose parent has
// ended is not known to be one.
func (d *Dir) MoveTree(ctx context.Context, to *Dir, root *pidfd.Handle) (int, error) {
	t := tree{root: root, in: map[int]bool{root.PID(): true}}
	return d.moveTo(ctx, to, t.choose)
}

// tree chooses the descendants of a process.
type tree struct {
	root *pidfd.Handle
	in   map[int]bool // pids that are, or were, of the tree
}

// choose takes in what has a parent in the tree. While the root lives its number
// is its own; others' are theirs as long as the cgroup is frozen.
func (t *tree) choose(l listing) (map[int]bool, error) {
	if over, err := t.root.Exited(); err != nil || over {
		return nil, fmt.Errorf("process %d: %w", t.root.PID(), errors.Join(pidfd.ErrGone, err))
	}
	parent := make(map[int]int, len(l.pids))
	for _, p := range l.pids {
		if s, ok := readStat(p.PID, "stat"); ok {
			parent[p.PID] = s.PPID
		}
	}
	for grown := true; grown; {
		grown = false
		for pid, above := range parent {
			if !t.in[pid] && t.in[above] {
				t.in[pid], grown = true, true
			}
		}
	}
	return t.in, nil
}

// errHidden tells that a member has no number here by which it could be moved.
var errHidden = errors.New("it holds processes of a PID namespace that we cannot see")

// moveTo moves those that choose chooses; nil: all.
func (d *Dir) moveTo(ctx context.Context, to *Dir, choose func(listing) (map[int]bool, error)) (int, error) {
	defer d.Still(ctx)()
	fault.Point("leaf.still")
	m := mover{from: d, to: to, moved: map[int]bool{}}
	for {
		left, err := m.round(choose)
		if err != nil || left == 0 {
			return len(m.moved), err
		}
		if err := ctx.Err(); err != nil {
			return len(m.moved), fmt.Errorf("move out of cgroup %s, %d are left: %w", d.path, left, err)
		}
		sys.Nanosleep(int64(50 * time.Microsecond))
	}
}

// mover is a moveTo under way.
type mover struct {
	from, to *Dir
	loc      pidfd.Locator
	moved    map[int]bool
}

// round moves all that are to be seen, and tells how many it has seen. The cgroup
// is left when a round sees none, and, where all are to go, it reads populated 0.
func (m *mover) round(choose func(listing) (map[int]bool, error)) (left int, err error) {
	l, err := m.from.list("cgroup.procs")
	if err == nil {
		err = m.from.refuse(l)
	}
	if err == nil && l.hidden > 0 && choose == nil {
		err = errHidden
	}
	if err != nil {
		return 0, fmt.Errorf("move out of cgroup %s: %w", m.from.path, err)
	}
	var chosen map[int]bool
	if choose != nil {
		if chosen, err = choose(l); err != nil {
			return 0, err
		}
	}
	seen := map[int]bool{}
	for _, p := range l.pids {
		if choose != nil && !chosen[p.PID] {
			continue
		}
		if err := m.process(p.PID, l.ids, seen); err != nil {
			return 0, err
		}
		fault.Point("leaf.moving")
	}
	if len(seen) > 0 {
		return len(seen), nil
	}
	return m.rest(chosen, choose == nil, seen)
}

// rest looks at the threads: of a process whose main thread has exited, and that
// was moved here, only they show.
func (m *mover) rest(chosen map[int]bool, all bool, seen map[int]bool) (int, error) {
	if all {
		if populated, err := m.from.Populated(); err != nil || !populated {
			return 0, err
		}
	}
	t, err := m.from.list("cgroup.threads")
	if err != nil {
		return 0, err
	}
	for _, p := range t.pids {
		if err := m.thread(p.PID, t.ids, chosen, all, seen); err != nil {
			return 0, err
		}
	}
	if all && len(seen) == 0 {
		return 1, nil // populated: by one that is ending, say
	}
	return len(seen), nil
}

// process moves one that is listed as a process.
func (m *mover) process(pid int, ids map[uint64]bool, seen map[int]bool) error {
	h, err := pidfd.Open(pid)
	if errors.Is(err, pidfd.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer h.Close()
	id, err := m.loc.CgroupID(h)
	switch {
	case errors.Is(err, pidfd.ErrGone):
		return nil
	case err != nil:
		return err
	case !ids[id]:
		return nil
	}
	if over, err := h.Exited(); err != nil || over {
		return err
	}
	if movedOn(pid, ids, &m.loc) {
		return nil
	}
	seen[pid] = true
	return m.move(h, pid, func() (uint64, error) {
		id, err := m.loc.CgroupID(h)
		if err == nil && id != m.to.id {
			if in, _ := threadsIn(pid, map[uint64]bool{m.to.id: true}, &m.loc); in {
				return m.to.id, nil
			}
		}
		return id, err
	})
}

// thread moves the process of one that is listed as a thread.
func (m *mover) thread(tid int, ids map[uint64]bool, chosen map[int]bool, all bool, seen map[int]bool) error {
	h, id, err := m.loc.OpenThread(tid)
	if errors.Is(err, pidfd.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer h.Close()
	pid := h.PID()
	if !ids[id] || seen[pid] || !all && !chosen[pid] {
		return nil
	}
	seen[pid] = true
	return m.move(h, pid, func() (uint64, error) {
		again, id, err := m.loc.OpenThread(tid)
		if err == nil {
			_ = again.Close()
		}
		return id, err
	})
}

// move moves a process that was seen to be a member, and makes sure of it: where
// tells the cgroup that its handle sees it in afterwards.
func (m *mover) move(h *pidfd.Handle, pid int, where func() (uint64, error)) error {
	if err := pidfd.RefusePID(pid, os.Getpid()); err != nil {
		return err
	}
	werr := m.to.Add(pid)
	id, err := where()
	over, xerr := h.Exited()
	switch {
	case err == nil && id == m.to.id:
		m.moved[pid] = true
		return nil
	case errors.Is(err, pidfd.ErrGone), xerr == nil && over:
		return m.stranger(pid, h)
	case werr != nil:
		return werr
	case err != nil:
		return err
	}
	return nil // it has gone elsewhere, or not yet: the next round sees
}

// stranger is called when a process ended while its number was written. As long as
// that was not reaped the number is its own; afterwards another may have got it.
// That one goes to where its parent is.
func (m *mover) stranger(pid int, was *pidfd.Handle) error {
	if err := was.Signal(0); !errors.Is(err, pidfd.ErrGone) {
		return nil
	}
	h, err := pidfd.Open(pid)
	if errors.Is(err, pidfd.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer h.Close()
	if id, err := m.loc.CgroupID(h); err != nil || id != m.to.id {
		return nil // it was not moved, or is gone
	}
	s, ok := readStat(pid, "stat")
	if !ok {
		return nil
	}
	back, err := dirOf(s.PPID)
	if err != nil {
		return fmt.Errorf("process %d got the number of one that ended, and was moved into %s: %w", pid, m.to.path, err)
	}
	defer back.Close()
	return back.Add(pid)
}

// dirOf opens the cgroup that a process is in.
func dirOf(pid int) (*Dir, error) {
	h, err := pidfd.Open(pid)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	line, err := h.CgroupPath()
	if err != nil {
		return nil, err
	}
	m, err := FindMount()
	if err != nil {
		return nil, err
	}
	path, err := m.Dir(line)
	if err != nil {
		return nil, err
	}
	return Open(path)
}
