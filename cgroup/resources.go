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
		if b, err := sys.ReadFileAt(fd, "memory.peak"); err == nil { // Linux 5.19
			u.MemoryPeak = number(b)
		}
		if b, err := sys.ReadFileAt(fd, "pids.peak"); err == nil { // Linux 6.1
			u.PIDsPeak = number(b)
		}
		m, err := manager(fd)
		if err != nil {
			return err
		}
		return readStats(m, fd, &u)
	})
	return u
}

// readStats takes from containerd's statistics what the host has; it reports 0
// for what is absent, so that is looked at first.
func readStats(m *cgroup2.Manager, fd int, u *api.Usage) error {
	mask := cgroup2.StatMask(0)
	for file, bit := range map[string]cgroup2.StatMask{
		"cpu.stat": cgroup2.StatCPU, "memory.events": cgroup2.StatMemoryEvents, "io.stat": cgroup2.StatIO,
	} {
		if _, err := sys.InoAt(fd, file); err == nil {
			mask |= bit
		}
	}
	s, err := m.StatFiltered(mask)
	if err != nil {
		return err
	}
	if c := s.GetCPU(); c != nil {
		u.CPUUsec, u.UserUsec, u.SystemUsec = int64(c.UsageUsec), int64(c.UserUsec), int64(c.SystemUsec)
	}
	if e := s.GetMemoryEvents(); e != nil {
		u.OOMKills = int64(e.OomKill)
		u.OOMGroupKills = int64(e.OomGroupKill)
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

// number parses a file that holds one number, -1 when it does not.
func number(b []byte) int64 {
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return -1
	}
	return n
}
