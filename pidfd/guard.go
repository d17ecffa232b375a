package pidfd

// What must never be signalled, in one place: every signal that Pinfold sends
// passes one of these functions first.

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"path"
	"slices"

	"pinfold.dev/internal/sys"
)

// ErrRefused tells that a target may never be signalled: pid 0 or 1, ourselves,
// a process that we descend from, our own process group, our own cgroup or an
// ancestor of it.
var ErrRefused = errors.New("refused")

// RefusePID returns ErrRefused for a process that must never be signalled; self
// is our own pid. Pid 0 and negative numbers mean groups to kill(2), and 0 is
// what cgroup.procs shows for a process that we cannot see.
func RefusePID(pid, self int) error {
	switch {
	case pid <= 0:
		return fmt.Errorf("signal pid %d: %w: not a process", pid, ErrRefused)
	case pid == 1:
		return fmt.Errorf("signal pid 1: %w: init", ErrRefused)
	case pid == self:
		return fmt.Errorf("signal pid %d: %w: ourselves", pid, ErrRefused)
	case pid > math.MaxInt32: // kill(2) sees the lower half, which may be any of those
		return fmt.Errorf("signal pid %d: %w: no number of a process", pid, ErrRefused)
	}
	return nil
}

// RefuseGroup returns ErrRefused for a process group that must never be
// signalled; self is our own group.
func RefuseGroup(pgid, self int) error {
	switch {
	case pgid <= 1:
		return fmt.Errorf("signal group %d: %w: not a group of ours", pgid, ErrRefused)
	case pgid == self:
		return fmt.Errorf("signal group %d: %w: our own group", pgid, ErrRefused)
	case pgid > math.MaxInt32:
		return fmt.Errorf("signal group %d: %w: no number of a group", pgid, ErrRefused)
	}
	return nil
}

// RefuseCgroup returns ErrRefused for a cgroup, by its kernfs id, that must
// never be killed or signalled; own are our own cgroup and its ancestors.
func RefuseCgroup(id uint64, own []uint64) error {
	if id == 0 {
		return fmt.Errorf("signal cgroup: %w: no id", ErrRefused)
	}
	switch at := slices.Index(own, id); {
	case at == 0:
		return fmt.Errorf("signal cgroup %d: %w: our own", id, ErrRefused)
	case at > 0:
		return fmt.Errorf("signal cgroup %d: %w: an ancestor of our own", id, ErrRefused)
	}
	return nil
}

// RefuseHolding returns ErrRefused for a cgroup, by the full list of the
// processes in it and below, that holds ourselves: so it is our own or an
// ancestor of it. self is our own pid.
func RefuseHolding(pids iter.Seq[int], self int) error {
	for pid := range pids {
		if pid == self {
			return fmt.Errorf("signal cgroup: %w: it holds ourselves", ErrRefused)
		}
	}
	return nil
}

// OwnCgroups returns the kernfs ids of our own cgroup and of its ancestors up
// to the root of the mount, innermost first. It returns sys.ErrOutside where
// the mount does not show our cgroup; that it holds us then has to be seen from
// a cgroup's list of members.
func OwnCgroups() ([]uint64, error) {
	m, _, err := sys.FindCgroup2()
	if err != nil {
		return nil, fmt.Errorf("find own cgroup: %w", err)
	}
	own, err := sys.OwnCgroup()
	if err != nil {
		return nil, fmt.Errorf("find own cgroup: %w", err)
	}
	dir, err := m.Dir(own)
	if err != nil {
		return nil, fmt.Errorf("find own cgroup %s: %w", own, err)
	}
	var ids []uint64
	for {
		id, err := sys.InoAt(sys.AtFDCWD, dir)
		if err != nil {
			return nil, fmt.Errorf("find own cgroup: %w", err)
		}
		if ids = append(ids, id); dir == m.Path || dir == "/" {
			return ids, nil
		}
		dir = path.Dir(dir)
	}
}
