package hold

import (
	"context"
	"errors"
	"syscall"

	"pinfold.dev/api"
	"pinfold.dev/fallback"
	"pinfold.dev/pidfd"
)

// leader is a keeper's process: a *pidfd.Handle, or, where none can be opened, what
// is known of it.
type leader interface {
	PID() int
	Exited() (bool, error)
	Signal(sig syscall.Signal) error
	Wait(ctx context.Context) error
	Identity() (api.Identity, error)
	CgroupID() (uint64, error)
	CgroupPath() (string, error)
	Dup() (int, error)
	Close() error
}

// known is a leader that is known by its identity alone. What needs a handle is
// errors.ErrUnsupported.
type known struct{ p *fallback.Process }

func (k known) PID() int { return k.p.Identity().PID }

// Exited is an error where nobody can tell.
func (k known) Exited() (bool, error) {
	switch v, why := k.p.Verify(); v {
	case api.VerdictOwned:
		return false, nil
	case api.VerdictGone, api.VerdictForeign:
		return true, nil
	default:
		return false, errors.New("tell whether the keeper lives: " + join(why))
	}
}

func (k known) Signal(sig syscall.Signal) error {
	v, why, err := k.p.Signal(sig)
	switch {
	case err != nil || v == api.VerdictOwned:
		return err
	case v == api.VerdictUnverifiable:
		return errors.New("verify the keeper: " + join(why))
	}
	return pidfd.ErrGone
}

func (k known) Wait(ctx context.Context) error { return k.p.Wait(ctx) }

func (k known) Identity() (api.Identity, error) { return k.p.Identity(), nil }

func (k known) CgroupID() (uint64, error) { return 0, errors.ErrUnsupported }

func (k known) CgroupPath() (string, error) { return "", errors.ErrUnsupported }

func (k known) Dup() (int, error) { return -1, errors.ErrUnsupported }

func (k known) Close() error { return k.p.Close() }

// sandboxed tells that a signal was refused as a sandbox refuses the system call.
func sandboxed(err error) bool {
	return errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.EPERM)
}
