//go:build linux

package cgroup

import (
	"errors"
	"fmt"
	"iter"
	"os"
	"path"
	"syscall"

	"pinfold.dev/internal/sys"
	"pinfold.dev/pidfd"
)

// Pid is a process in the cgroup, and in which one below it.
type Pid struct {
	PID int
	Dir string // relative; "" for the cgroup itself
}

// Pids lists the processes in it and below, as cgroup.procs does. Those that are
// in a PID namespace that we cannot see read as 0 and are left out: see Count. A
// process whose main thread has exited and that was then moved here is in no such
// list: see Living.
func (d *Dir) Pids() ([]Pid, error) {
	l, err := d.list("cgroup.procs")
	return l.pids, err
}

// Count counts them; hidden are those in a PID namespace that we cannot see.
func (d *Dir) Count() (seen, hidden int, err error) {
	l, err := d.list("cgroup.procs")
	return len(l.pids), l.hidden, err
}

// listing is what a walk over the cgroup and those below found.
type listing struct {
	pids   []Pid           // of processes or of threads
	hidden int             // zeros
	ids    map[uint64]bool // the kernfs ids of all the cgroups
	// partial tells that not every process is listed: there was an error, or
	// the cgroup itself is threaded and so does not list processes.
	partial bool
}

// numbers are the pids alone.
func (l *listing) numbers() iter.Seq[int] {
	return func(yield func(int) bool) {
		for _, p := range l.pids {
			if !yield(p.PID) {
				return
			}
		}
	}
}

// list reads cgroup.procs or cgroup.threads of the cgroup and of those below.
// A cgroup that is removed meanwhile has nothing in it.
func (d *Dir) list(file string) (listing, error) {
	l := listing{ids: make(map[uint64]bool)}
	err := d.fd.Use(func(fd int) error { return l.walk(fd, "", file) })
	if err != nil {
		l.partial = true
		return l, fmt.Errorf("list %s of %s: %w", file, d.path, err)
	}
	return l, nil
}

func (l *listing) walk(fd int, rel, file string) error {
	id, subdirs, err := sys.DirStat(fd)
	if err != nil {
		return err
	}
	l.ids[id] = true
	b, err := sys.ReadFileAt(fd, file)
	switch {
	case removed(err):
		return nil
	case errors.Is(err, syscall.EOPNOTSUPP):
		// Of a threaded cgroup the domain above lists the processes.
		l.partial = l.partial || rel == ""
	case err != nil:
		return err
	}
	if err := l.add(b, rel); err != nil {
		return err
	}
	if subdirs == 0 {
		return nil
	}
	return eachChild(fd, func(child int, name string) error {
		return l.walk(child, path.Join(rel, name), file)
	})
}

// add takes the numbers of one file.
func (l *listing) add(b []byte, rel string) error {
	ns, err := sys.ParseNumbers(b)
	for _, n := range ns {
		if n == 0 {
			l.hidden++
			continue
		}
		l.pids = append(l.pids, Pid{n, rel})
	}
	return err
}

// Children are the names of the cgroups directly in it.
func (d *Dir) Children() (names []string, err error) {
	err = d.fd.Use(func(fd int) error {
		return eachChild(fd, func(_ int, name string) error { names = append(names, name); return nil })
	})
	if err != nil {
		return nil, fmt.Errorf("list the cgroups in %s: %w", d.path, err)
	}
	return names, nil
}

// eachChild calls fn with each cgroup that is directly in an open one; those
// that are removed meanwhile are passed over.
func eachChild(fd int, fn func(child int, name string) error) error {
	dup, err := sys.Openat(fd, ".", sys.ODirectory)
	if removed(err) {
		return nil
	}
	if err != nil {
		return err
	}
	names, err := sys.Subdirs(dup)
	_ = sys.Close(dup)
	if removed(err) {
		return nil
	}
	for _, name := range names {
		if err != nil {
			break
		}
		err = withChild(fd, name, fn)
	}
	return err
}

func withChild(fd int, name string, fn func(child int, name string) error) error {
	child, err := sys.Openat(fd, name, sys.ODirectory|sys.ONofollow)
	if removed(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer sys.Close(child)
	return fn(child, name)
}

// refuse returns pidfd.ErrRefused when the cgroup is our own or an ancestor of
// it. A full list of its processes shows that, also where the ids of our
// ancestors cannot be found (no /proc, another cgroup namespace); without one,
// which is what a listing{} is, the ids have to.
func (d *Dir) refuse(l listing) error {
	if l.ids != nil && !l.partial {
		if err := pidfd.RefuseHolding(l.numbers(), os.Getpid()); err != nil {
			return fmt.Errorf("cgroup %s: %w", d.path, err)
		}
		return nil
	}
	own, err := pidfd.OwnCgroups()
	if err != nil {
		return fmt.Errorf("cgroup %s: %w: cannot tell whether it holds ourselves: %w", d.path, pidfd.ErrRefused, err)
	}
	if err := pidfd.RefuseCgroup(d.id, own); err != nil {
		return fmt.Errorf("cgroup %s: %w", d.path, err)
	}
	return nil
}
