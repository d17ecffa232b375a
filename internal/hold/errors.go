package hold

import (
	"context"
	"errors"
	"strconv"
	"syscall"

	"pinfold.dev/api"
	"pinfold.dev/containment"
	"pinfold.dev/internal/wire"
)

func keeperGone(turn string) *api.Error {
	return api.Errorf(api.CodeKeeperLost, "the keeper of turn %s is gone", turn).
		WithRemedy("abandon the turn and begin another")
}

// noKeeper is the answer while there is no connection to the keeper.
func (x *keeping) noKeeper() *api.Error {
	if !x.unreached.Load() {
		return keeperGone(x.turn)
	}
	return x.silent()
}

func (x *keeping) silent() *api.Error {
	return api.Errorf(api.CodeUnavailable, "the keeper of turn %s lives, and does not answer", x.turn).
		WithRemedy("try again; if it stays so, something has stopped or frozen process %d: let it go on, or abandon the turn", x.facts.Keeper.PID)
}

// Reached is nil, or that the keeper lives and has not answered.
func (x *keeping) Reached() error {
	if !x.unreached.Load() {
		return nil
	}
	return x.silent()
}

// launchError tells a caller what the keeper refused, and what to do.
func (x *keeping) launchError(l containment.Launch, err error) error {
	var r *refusal
	switch {
	case errors.Is(err, errBroken):
		return keeperGone(x.turn)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return api.Errorf(api.CodeTimeout, "the keeper of turn %s did not answer a launch of %s in time", x.turn, l.Argv[0]).
			WithRemedy("look with `pinfold show %s` whether it runs", x.turn)
	case errors.As(err, &r) && (r.why.Kind == wire.ErrUsed ||
		r.why.Kind == wire.ErrCgroup && syscall.Errno(r.why.Errno) == syscall.EEXIST): // a leaf that a join had made
		return containment.ErrUsed
	case !errors.As(err, &r):
		return api.Errorf(api.CodeInternal, "launch %s: %v", l.Argv[0], err)
	}
	e := api.Errorf(api.CodeLaunchRefused, "launch %s: %s", l.Argv[0], r.Error()).With("step", r.why.Kind)
	switch r.why.Kind {
	case wire.ErrExec:
		e.Code = api.CodeExecFailed
		e = e.With("path", l.Argv[0]).WithRemedy("%s", execRemedy(syscall.Errno(r.why.Errno)))
	case wire.ErrCwd:
		e = e.With("path", l.Cwd).WithRemedy("make the directory %s, or name one that the user may enter", l.Cwd)
	case wire.ErrUser:
		e = e.WithRemedy("the service must be root to launch as another user")
	case wire.ErrFork:
		e = e.WithRemedy("the turn or the host is at its limit of processes; raise the limit or end something")
	case wire.ErrCgroup:
		e = e.WithRemedy("the turn's cgroup was removed, or cannot hold another; abandon the turn and begin another")
	case wire.ErrAttribute:
		e = e.WithRemedy("the kernel does not allow it the service; ask for less, or nothing")
	case wire.ErrStdio:
		e = e.WithRemedy("free descriptors, terminals or disk space, or pass descriptors instead")
	case wire.ErrFrozen:
		e = e.WithRemedy("thaw the turn first: a launch into a frozen cgroup would hang")
	case wire.ErrFenced:
		e.Code = api.CodeTurnOver
		e = e.WithRemedy("begin another turn")
	case wire.ErrProtocol, wire.ErrInternal, wire.ErrJournal, wire.ErrNotFound:
		e.Code = api.CodeInternal
	}
	if r.why.Path != "" {
		e = e.With("path", r.why.Path)
	}
	if r.why.Errno != 0 {
		e = e.With("errno", strconv.Itoa(r.why.Errno)).With("errno_name", errnoName(syscall.Errno(r.why.Errno)))
	}
	return e
}

func execRemedy(errno syscall.Errno) string {
	switch errno {
	case syscall.ENOENT:
		return "give an absolute path, or a PATH in env that has it; a script's #! interpreter may be missing, too"
	case syscall.EACCES:
		return "make it executable for the user it runs as, and its directories searchable"
	case syscall.ENOEXEC:
		return "it is no executable and has no #! line; run it through its interpreter"
	case syscall.E2BIG:
		return "argv and env together are more than the kernel takes"
	case syscall.ETXTBSY:
		return "somebody has the program open for writing; ask again when that is closed"
	case syscall.EAGAIN:
		return "the user it runs as is at its limit of processes (RLIMIT_NPROC); raise that or end something"
	}
	return "see execve(2)"
}

// errnoNames are those that a launch can meet.
var errnoNames = map[syscall.Errno]string{
	syscall.E2BIG: "E2BIG", syscall.EACCES: "EACCES", syscall.EAGAIN: "EAGAIN", syscall.EBADF: "EBADF",
	syscall.EBUSY: "EBUSY", syscall.EEXIST: "EEXIST", syscall.EFAULT: "EFAULT", syscall.EINVAL: "EINVAL",
	syscall.EIO: "EIO", syscall.EISDIR: "EISDIR", syscall.ELIBBAD: "ELIBBAD", syscall.ELOOP: "ELOOP",
	syscall.EMFILE: "EMFILE", syscall.ENAMETOOLONG: "ENAMETOOLONG", syscall.ENFILE: "ENFILE",
	syscall.ENODEV: "ENODEV", syscall.ENOENT: "ENOENT", syscall.ENOEXEC: "ENOEXEC", syscall.ENOMEM: "ENOMEM",
	syscall.ENOSPC: "ENOSPC", syscall.ENOSYS: "ENOSYS", syscall.ENOTDIR: "ENOTDIR", syscall.EOPNOTSUPP: "EOPNOTSUPP",
	syscall.EPERM: "EPERM", syscall.EROFS: "EROFS", syscall.ETXTBSY: "ETXTBSY", syscall.ESTALE: "ESTALE",
}

func errnoName(e syscall.Errno) string {
	if n, ok := errnoNames[e]; ok {
		return n
	}
	return "errno " + strconv.Itoa(int(e))
}
