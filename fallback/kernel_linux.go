package fallback

import (
	"context"
	"errors"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"pinfold.dev/internal/sys"
	"pinfold.dev/pidfd"
)

// linux is the kernel that we run on.
type linux struct {
	at       pidfd.Here
	loc      *pidfd.Locator
	opens    bool // pidfd_open(2) works
	sends    bool // pidfd_send_signal(2) works, on a pidfd or a /proc/pid directory
	childLog bool // /proc/pid/task/tid/children is there (CONFIG_PROC_CHILDREN)
	info     bool // PIDFD_GET_INFO works
	highest  atomic.Int64
}

// newKernel tries everything on ourselves.
func newKernel() *linux {
	k := &linux{at: pidfd.ReadHere(), loc: new(pidfd.Locator)}
	if fd, err := sys.PidfdOpen(os.Getpid(), 0); err == nil {
		k.opens = true
		k.sends = sys.PidfdSendSignal(fd, 0, 0) == nil
		in, err := sys.PidfdGetInfo(fd, sys.PidfdInfoPID)
		k.info = err == nil && in.Mask&sys.PidfdInfoPID != 0
		_ = sys.Close(fd)
	}
	if dir, err := sys.Openat(sys.AtFDCWD, "/proc/self", sys.ODirectory); err == nil {
		k.sends = sys.PidfdSendSignal(dir, 0, 0) == nil
		_ = sys.Close(dir)
	}
	_, err := sys.ProcFile(0, "task/"+strconv.Itoa(os.Getpid())+"/children")
	k.childLog = err == nil && k.at.Proc
	return k
}

func (k *linux) here() pidfd.Here { return k.at }

func (k *linux) ownGroup() int { return syscall.Getpgrp() }

func (k *linux) waitChannel(pid int) string {
	b, err := sys.ProcFile(pid, "wchan")
	if err != nil || !k.at.Proc || string(b) == "0" {
		return ""
	}
	return string(b)
}

func (k *linux) now() time.Time { return time.Now() }

func (k *linux) sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (k *linux) refuse(pid int) error {
	if err := pidfd.RefusePID(pid, os.Getpid()); err != nil {
		return err
	}
	return pidfd.RefuseAncestor(pid)
}

// open prefers a pidfd, if it is good for signals as well.
func (k *linux) open(pid int) (ref, error) {
	if k.opens && k.sends {
		h, err := pidfd.Open(pid)
		if err != nil {
			return nil, err
		}
		return &pidfdRef{h: h, at: k.at, loc: k.loc, own: true}, nil
	}
	return k.openDir(pid)
}

// numbers lists the numbers to look at, processes' and, without /proc, maybe
// threads': those of /proc, or all that there can be. Threads and free numbers
// are told apart by opening them.
func (k *linux) numbers(ctx context.Context, yield func(pid int)) error {
	if k.at.Proc {
		dir, err := os.Open("/proc")
		if err != nil {
			return err
		}
		defer dir.Close()
		names, err := dir.Readdirnames(-1)
		for _, name := range names {
			if n, e := strconv.Atoi(name); e == nil && n > 1 {
				yield(n)
			}
		}
		return err
	}
	const most, few = 1 << 22, 1 << 15 // PID_MAX_LIMIT, and the usual pid_max of small hosts
	end := most
	if h := int(k.highest.Load()); h > 0 { // a full pass was made
		end = min(most, max(few, 2*h))
	}
	seen := 1
	for n := 2; n < end; n++ {
		if n%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		if _, err := syscall.Getpgid(n); err == nil {
			seen = n
			yield(n)
		}
	}
	k.highest.Store(int64(seen))
	return nil
}

func (k *linux) parents(ctx context.Context) (map[int][]int, []int, error) {
	if !k.at.Proc && !k.info {
		return nil, nil, errNoParents
	}
	below := map[int][]int{}
	var blind []int
	err := k.numbers(ctx, func(pid int) {
		parent, err := k.parentOf(pid)
		switch {
		case errors.Is(err, pidfd.ErrGone):
		case err != nil:
			blind = append(blind, pid)
		default:
			below[parent] = append(below[parent], pid)
		}
	})
	return below, blind, err
}

var errNoParents = errors.New("whose child a process is cannot be read: no /proc of our PID namespace, no PIDFD_GET_INFO (requires Linux 6.13)")

// parentOf is a hint: the number may change hands right after.
func (k *linux) parentOf(pid int) (int, error) {
	if k.at.Proc {
		b, err := sys.ProcFile(pid, "stat")
		if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ESRCH) {
			return 0, pidfd.ErrGone // or hidden, and then it was not in the list
		}
		if err != nil {
			return 0, err
		}
		s, err := sys.ParseStat(b)
		return s.PPID, err
	}
	fd, err := sys.PidfdOpen(pid, 0)
	if err != nil {
		return 0, pidfd.ErrGone // free by now, or a thread
	}
	defer sys.Close(fd)
	in, err := sys.PidfdGetInfo(fd, sys.PidfdInfoPID)
	if errors.Is(err, syscall.ESRCH) {
		return 0, pidfd.ErrGone
	}
	return in.PPID, err
}

func (k *linux) members(pgid int) ([]int, error) {
	var out []int
	err := k.numbers(context.Background(), func(pid int) {
		if g, err := syscall.Getpgid(pid); err == nil && g == pgid {
			out = append(out, pid)
		}
	})
	return out, err
}

func (k *linux) groupEmpty(pgid int) (bool, error) {
	if err := pidfd.RefuseGroup(pgid, syscall.Getpgrp()); err != nil {
		return false, err
	}
	err := killNumber(-pgid, 0)
	switch {
	case errors.Is(err, syscall.ESRCH):
		return true, nil
	case err == nil || errors.Is(err, syscall.EPERM):
		return false, nil
	}
	return false, err
}

// children reads the lists of all threads, the main thread's last. The kernel
// gives an orphan to the first thread that lives, which is the main one: so once
// nothing forks any more in the others, an empty answer was true when the last
// list was read.
func (k *linux) children(r ref) ([]int, error) {
	if !k.childLog {
		return nil, errors.ErrUnsupported
	}
	pid := r.pid()
	tasks := "/proc/" + strconv.Itoa(pid) + "/task"
	dir, err := os.Open(tasks)
	if err != nil {
		return nil, err
	}
	names, err := dir.Readdirnames(-1)
	dir.Close()
	if err != nil {
		return nil, err
	}
	var out []int
	read := func(tid string) error {
		b, err := sys.ReadFileAt(sys.AtFDCWD, tasks+"/"+tid+"/children")
		if err != nil {
			return err
		}
		list, err := sys.ParseNumbers(b)
		out = append(out, list...)
		return err
	}
	main := strconv.Itoa(pid)
	for _, tid := range names {
		if tid == main {
			continue
		}
		err := read(tid)
		if err != nil && !errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.ESRCH) { // a thread that ended hands its children on
			return nil, err
		}
	}
	if err := read(main); err != nil {
		return nil, err
	}
	if r.life() == pidfd.Reaped {
		return nil, pidfd.ErrGone
	}
	return out, nil
}
