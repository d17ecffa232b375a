//go:build linux

package cgroup

import (
	"fmt"
	"os"
	"slices"
	"strconv"

	"pinfold.dev/internal/sys"
)

// OnlyHolds tells whether every thread in it and below is one of the process
// pid (0: there is none at all), the cgroups below that are called as in but left
// out. It goes by threads: a
// process whose main thread has exited need not be in the list of processes. A
// thread in a PID namespace that we cannot see is somebody else's.
func (d *Dir) OnlyHolds(pid int, but ...string) (bool, error) {
	const file = "cgroup.threads"
	l := listing{ids: make(map[uint64]bool)}
	err := d.fd.Use(func(fd int) error {
		b, err := sys.ReadFileAt(fd, file)
		if err == nil {
			err = l.add(b, "")
		}
		if err != nil {
			return err
		}
		return eachChild(fd, func(child int, name string) error {
			if slices.Contains(but, name) {
				return nil
			}
			return l.walk(child, name, file)
		})
	})
	if err != nil {
		return false, fmt.Errorf("list %s of %s: %w", file, d.path, err)
	}
	for _, t := range l.pids {
		if _, err := os.Lstat("/proc/" + strconv.Itoa(pid) + "/task/" + strconv.Itoa(t.PID)); t.PID != pid && err != nil {
			return false, nil
		}
	}
	return l.hidden == 0, nil
}
