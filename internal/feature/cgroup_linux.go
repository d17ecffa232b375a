package feature

import (
	"errors"
	"strconv"
	"syscall"
	"time"

	"pinfold.dev/internal/sys"
)

// inChild makes a cgroup below dir, lets try have it, and removes it.
func inChild(dir string, try func(fd int) error) error {
	parent, err := sys.Openat(sys.AtFDCWD, dir, sys.ODirectory)
	if err != nil {
		return err
	}
	defer sys.Close(parent)
	name := "pinfold-probe." + strconv.Itoa(syscall.Getpid()) + "." + strconv.FormatInt(time.Now().UnixNano(), 36)
	if err := sys.Mkdirat(parent, name, 0o755); err != nil {
		return err
	}
	defer remove(parent, name)
	fd, err := sys.Openat(parent, name, sys.ODirectory)
	if err != nil {
		return err
	}
	defer sys.Close(fd)
	return try(fd)
}

// remove tries for a second: a child that just ended may still be in it.
func remove(parent int, name string) {
	for range 1000 {
		if !errors.Is(sys.Rmdirat(parent, name), syscall.EBUSY) {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func tryTrustedXattr(dir string) error {
	return inChild(dir, func(fd int) error {
		return absent(sys.Fsetxattr(fd, "trusted.pinfold", []byte("probe")), syscall.EPERM, syscall.EOPNOTSUPP)
	})
}

func tryUserXattr(dir string) error {
	return inChild(dir, func(fd int) error {
		return absent(sys.Fsetxattr(fd, "user.pinfold", []byte("probe")), syscall.EOPNOTSUPP)
	})
}

// tryKill kills a cgroup that is empty. ENOENT in a fresh child means that the
// kernel has no such file; the root never has one.
func tryKill(dir string) error {
	return inChild(dir, func(fd int) error {
		return absent(sys.WriteFileAt(fd, "cgroup.kill", "1"), syscall.ENOENT)
	})
}

// errAtBirth is what comes of a launcher whose own cgroup was killed once, from
// Linux 6.14 (and stable kernels of February 2025) on: for good.
var errAtBirth = errors.New("the child was killed at birth: our own cgroup was once killed")

// tryClone starts a child into a fresh cgroup and has it execute a file that
// does not exist. That it comes as far as to say so shows that it was made, and
// lived.
func tryClone(dir string) error {
	return inChild(dir, func(fd int) error {
		pid, err := syscall.ForkExec("/proc/self/no-such-file", []string{"probe"}, &syscall.ProcAttr{
			Sys: &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: fd},
		})
		if err == nil { // it ended without having said anything
			_, _ = syscall.Wait4(pid, nil, 0, nil)
			return &absence{errAtBirth}
		}
		if errors.Is(err, syscall.ENOENT) {
			_, err = sys.InoAt(fd, "cgroup.procs") // ENOENT also for a removed cgroup
			return err
		}
		return absent(err, syscall.ENOSYS, syscall.EPERM, syscall.E2BIG, syscall.EINVAL) // the last two: Linux 5.3 to 5.6
	})
}
