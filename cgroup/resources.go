//go:build linux

package cgroup

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/cgroups/v3/cgroup2"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys"
)

// ErrNoController is the cause when a cgroup has not got a controller.
var ErrNoController = errors.New("not available in this cgroup")

// ControllerError names the controller that was missing or refused.
type ControllerError struct {
	Controller string
	Err        error
}

func (e *ControllerError) Error() string { return "controller " + e.Controller + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *ControllerError) Unwrap() error { return e.Err }

// Controllers lists the controllers that limits of this cgroup may use.
func (d *Dir) Controllers() ([]string, error) {
	b, err := d.read("cgroup.controllers")
	if err != nil {
		return nil, fmt.Errorf("list controllers of %s: %w", d.path, err)
	}
	return strings.Fields(string(b)), nil
}

// Delegate enables controllers for the children, one by one so that one that is
// refused does not take the others along, and returns those that are enabled.
// The error joins a *ControllerError for each of the rest. EBUSY: the cgroup
// holds processes itself.
func (d *Dir) Delegate(names []string) ([]string, error) {
	var done []string
	var errs []error
	for _, name := range names {
		if err := d.write("cgroup.subtree_control", "+"+name); err != nil {
			if removed(err) {
				err = ErrNoController // that is how the kernel says it
			}
			errs = append(errs, &ControllerError{name, err})
			continue
		}
		done = append(done, name)
	}
	if err := errors.Join(errs...); err != nil {
		return done, fmt.Errorf("delegate in %s: %w", d.path, err)
	}
	return done, nil
}

// Limit sets the limits that are not zero. A *ControllerError names a
// controller that is missing; nothing was set then.
func (d *Dir) Limit(l api.Limits) error {
	have, err := d.Controllers()
	if err != nil {
		return err
	}
	res, err := resources(l)
	if err != nil {
		return fmt.Errorf("limit %s: %w", d.path, err)
	}
	for _, name := range res.EnabledControllers() {
		if !slices.Contains(have, name) {
			return fmt.Errorf("limit %s: %w", d.path, &ControllerError{name, ErrNoController})
		}
	}
	err = d.fd.Use(func(fd int) error {
		if l.SwapBytes != nil {
			if _, err := sys.InoAt(fd, "memory.swap.max"); err != nil {
				return &ControllerError{"memory.swap", ErrNoController}
			}
		}
		m, err := manager(fd)
		if err != nil {
			return err
		}
		return m.Update(res)
	})
	if err != nil {
		return fmt.Errorf("limit %s: %w", d.path, err)
	}
	return nil
}

// cpuPeriod is the kernel's default period of cpu.max in microseconds.
const cpuPeriod = uint64(100_000)

// resources says api.Limits in the words of containerd/cgroups.
func resources(l api.Limits) (*cgroup2.Resources, error) {
	if l.MemoryBytes < 0 || l.PIDs < 0 || l.CPUPercent < 0 || (l.SwapBytes != nil && *l.SwapBytes < 0) {
		return nil, errors.New("negative limit")
	}
	r := &cgroup2.Resources{}
	if l.MemoryBytes > 0 || l.SwapBytes != nil {
		r.Memory = &cgroup2.Memory{Swap: l.SwapBytes}
		if l.MemoryBytes > 0 {
			r.Memory.Max = &l.MemoryBytes
		}
	}
	if l.PIDs > 0 {
		r.Pids = &cgroup2.Pids{Max: l.PIDs}
	}
	if l.CPUPercent > 0 {
		quota, period := l.CPUPercent*int64(cpuPeriod)/100, cpuPeriod
		r.CPU = &cgroup2.CPU{Max: cgroup2.NewCPUMax(&quota, &period)}
	}
	return r, nil
}

// manager makes containerd's manager work beneath an open directory: it knows
// paths only, and this is one that cannot come to mean another cgroup.
func manager(fd int) (*cgroup2.Manager, error) {
	return cgroup2.Load("/", cgroup2.WithMountpoint("/proc/self/fd/"+strconv.Itoa(fd)))
}

// Usage reads the counters of the cgroup and those below; -1 where the host
// does not say. Times are microseconds.
func (d *Dir) Usage() api.Usage {
	u := api.NoUsage()
	_ = d.fd.Use(func(fd int) error {
		u.MemoryPeak = number(fd, "memory.peak") // Linux 5.19
		u.PIDsPeak = number(fd, "pids.peak")     // Linux 6.1
		if b, err := sys.ReadFileAt(fd, "memory.events"); err == nil {
			u.OOMKills = keyed(b, "oom_kill")
			u.OOMGroupKills = keyed(b, "oom_group_kill") // Linux 5.17
		}
		return readStats(fd, &u)
	})
	return u
}

// readStats takes CPU and I/O from containerd's statistics. It reports 0 for
// what is absent, so that is looked at first.
func readStats(fd int, u *api.Usage) error {
	var mask cgroup2.StatMask
	if _, err := sys.InoAt(fd, "cpu.stat"); err == nil {
		mask |= cgroup2.StatCPU
	}
	if _, err := sys.InoAt(fd, "io.stat"); err == nil {
		mask |= cgroup2.StatIO
	}
	m, err := manager(fd)
	if err != nil {
		return err
	}
	s, err := m.StatFiltered(mask)
	if err != nil {
		return err
	}
	if c := s.GetCPU(); c != nil {
		u.CPUUsec, u.UserUsec, u.SystemUsec = int64(c.UsageUsec), int64(c.UserUsec), int64(c.SystemUsec)
	}
	if io := s.GetIo(); io != nil {
		u.IOReadBytes, u.IOWriteBytes = 0, 0
		for _, e := range io.Usage {
			u.IOReadBytes += int64(e.Rbytes)
			u.IOWriteBytes += int64(e.Wbytes)
		}
	}
	return nil
}

// number reads a file that holds one number; -1 when there is none.
func number(fd int, name string) int64 {
	b, err := sys.ReadFileAt(fd, name)
	if err != nil {
		return -1
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// keyed is the number of a key in a flat keyed file; -1 when it is not there.
func keyed(b []byte, key string) int64 {
	if n, ok := sys.ParseKV(b, key); ok {
		return n
	}
	return -1
}
