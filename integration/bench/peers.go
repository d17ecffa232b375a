package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"pinfold.dev/internal/sys"
)

// members counts what a cgroup and those below hold.
func members(cgroup string) int {
	n := 0
	_ = filepath.WalkDir(cgroup, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Name() == "cgroup.procs" {
			b, _ := os.ReadFile(path)
			n += bytes.Count(b, []byte("\n"))
		}
		return nil
	})
	return n
}

// bareKill writes cgroup.kill and reads cgroup.events again until the cgroup is
// empty, with the pauses that Pinfold makes: the floor.
func bareKill(cgroup string) (time.Duration, error) {
	kill, err := syscall.Open(cgroup+"/cgroup.kill", syscall.O_WRONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return 0, os.NewSyscallError("open cgroup.kill", err)
	}
	defer syscall.Close(kill)
	events, err := syscall.Open(cgroup+"/cgroup.events", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return 0, os.NewSyscallError("open cgroup.events", err)
	}
	defer syscall.Close(events)
	start := time.Now()
	if _, err := syscall.Write(kill, []byte("1")); err != nil {
		return 0, os.NewSyscallError("write cgroup.kill", err)
	}
	for {
		var b [128]byte
		n, err := sys.Pread(events, b[:], 0)
		if err != nil {
			return 0, err
		}
		if v, ok := sys.ParseKV(b[:n], "populated"); ok && v == 0 {
			return time.Since(start), nil
		}
		sys.Nanosleep(int64(min(max(time.Since(start)/8, 20*time.Microsecond), time.Millisecond)))
	}
}

// treeKill ends a process and its descendants the way that psutil's recipe
// does: read every process's parent, descend, signal each, then ask again and
// again which are still there. What has left the tree it cannot see.
func treeKill(root int) (time.Duration, error) {
	start := time.Now()
	children, err := parents()
	if err != nil {
		return 0, err
	}
	all := []int{root}
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i]]...)
	}
	for _, pid := range all {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return 0, fmt.Errorf("kill %d: %w", pid, err)
		}
	}
	for wait := 100 * time.Microsecond; ; wait = min(2*wait, 40*time.Millisecond) {
		left := all[:0]
		for _, pid := range all {
			if syscall.Kill(pid, 0) == nil {
				left = append(left, pid)
			}
		}
		if all = left; len(all) == 0 {
			return time.Since(start), nil
		}
		sys.Nanosleep(int64(wait))
	}
}

// parents reads whose children every process of the machine has.
func parents() (map[int][]int, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	children := map[int][]int{}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		b, err := sys.ProcFile(pid, "stat")
		if err != nil {
			continue // it has ended
		}
		if s, err := sys.ParseStat(b); err == nil {
			children[s.PPID] = append(children[s.PPID], pid)
		}
	}
	return children, nil
}
