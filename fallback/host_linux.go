package fallback

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"pinfold.dev/api"
	"pinfold.dev/pidfd"
)

// How tells by what a process is held.
type How string

// From the exact to the one with a gap. ByPidfd (Linux 5.3) and ByProcDir (an
// open /proc/pid directory, which pidfd_send_signal(2) takes from 5.1 on) name
// one process whatever becomes of its number. ByToken has its number alone for
// signals: verified before, and again after.
const (
	ByPidfd   How = "pidfd"
	ByProcDir How = "procfs directory"
	ByToken   How = "start token"
)

// Host holds processes by the best that this host has, found out by trying. It
// is safe for concurrent use.
type Host struct{ k kernel }

// NewHost looks at what the host has.
func NewHost() *Host { return &Host{k: newKernel()} }

// kernel is what decisions need of a system. A ref is made by open, and means
// one process until it is closed.
type kernel interface {
	here() pidfd.Here
	// open returns pidfd.ErrGone where the kernel says that the number is free,
	// and other errors where that cannot be told.
	open(pid int) (ref, error)
	// children lists a process's children, zombies included, its main thread's
	// last. errors.ErrUnsupported: such lists are not to be had.
	children(r ref) ([]int, error)
	// parents lists the numbers in use by that of their parent: hints, each of
	// them stale by the time that it is read. Those that could not be looked at
	// are in blind.
	parents(ctx context.Context) (below map[int][]int, blind []int, err error)
	// members lists the numbers in use by process group: hints as well.
	members(pgid int) ([]int, error)
	// groupEmpty tells whether the kernel knows no member of a group.
	groupEmpty(pgid int) (bool, error)
	// refuse returns pidfd.ErrRefused for a process that may never be signalled.
	refuse(pid int) error
	// ownGroup is our own process group.
	ownGroup() int
	// waitChannel is where in the kernel the process of a number waits, if it says.
	waitChannel(pid int) string
	clock
}

// ref means one process. It is not safe for concurrent use with close.
type ref interface {
	how() How
	pid() int
	// read returns what was its own: it was there after the reading, too.
	read() (pidfd.Seen, error)
	life() pidfd.Life
	signal(sig syscall.Signal) error
	wait(ctx context.Context) error
	close() error
}

// Process is one process that is held, with what it is known by. Identity was
// read or verified once, by what it is held by, and is not read again: that
// means the same process until it is closed, so from then on to verify is to ask
// whether it lives.
type Process struct {
	k   kernel
	ref ref
	rec api.Identity // what it is held to be
}

// Hold holds the process that has a number now; who it is, the caller must
// know. pidfd.ErrGone: nobody has the number, pidfd.ErrRefused: it may never be
// signalled. Other errors: it cannot be told, or not be held.
func (h *Host) Hold(pid int) (*Process, error) {
	if err := h.k.refuse(pid); err != nil {
		return nil, err
	}
	r, err := h.k.open(pid)
	if err != nil {
		return nil, err
	}
	seen, err := r.read()
	if err != nil {
		_ = r.close()
		return nil, fmt.Errorf("hold process %d: %w", pid, err)
	}
	return &Process{h.k, r, seen.Identity}, nil
}

// HoldHandle holds the process behind a pidfd handle, which stays the caller's.
func (h *Host) HoldHandle(p *pidfd.Handle) (*Process, error) {
	id, err := p.IdentityIn(h.k.here())
	if err != nil {
		return nil, err
	}
	return &Process{h.k, newHandleRef(p, h.k.here()), id}, nil
}

// Recall holds the recorded process. It is nil unless the verdict is owned.
func (h *Host) Recall(rec api.Identity) (*Process, api.Verdict, []string) {
	if v, why := pidfd.NumberMeans(rec, h.k.here()); v != "" {
		return nil, v, why
	}
	if err := h.k.refuse(rec.PID); err != nil {
		return nil, api.VerdictUnverifiable, []string{err.Error()}
	}
	r, err := h.k.open(rec.PID)
	switch {
	case errors.Is(err, pidfd.ErrGone):
		return nil, api.VerdictGone, []string{"same boot", "no process has its number"}
	case err != nil:
		return nil, api.VerdictUnverifiable, []string{err.Error()}
	}
	v, why := compare(rec, r)
	if v != api.VerdictOwned {
		_ = r.close()
		return nil, v, why
	}
	return &Process{h.k, r, rec}, v, why
}

// Identity is what it was recorded by.
func (p *Process) Identity() api.Identity { return p.rec }

// How tells by what it is held.
func (p *Process) How() How { return p.ref.how() }

// Close lets go of it.
func (p *Process) Close() error { return p.ref.close() }

// Wait waits until it has exited, or ctx is done. Without a pidfd it looks every
// few milliseconds.
func (p *Process) Wait(ctx context.Context) error { return p.ref.wait(ctx) }

// compare tells whether what is held is what was recorded.
func compare(rec api.Identity, r ref) (api.Verdict, []string) {
	seen, err := r.read()
	life := r.life()
	if err != nil && life != pidfd.Reaped {
		return api.VerdictUnverifiable, []string{err.Error()}
	}
	if err != nil { // gone, and so is what there was to read
		seen.Identity = api.Identity{PID: r.pid(), Boot: rec.Boot, PIDNS: rec.PIDNS}
	}
	v, why := pidfd.Compare(rec, seen.Identity, life)
	return v, append(why, "held by "+string(r.how()))
}

// Verify tells whether it lives. It says owned, gone, or unverifiable where that
// cannot be told.
func (p *Process) Verify() (api.Verdict, []string) {
	by := "held by " + string(p.ref.how())
	switch p.ref.life() {
	case pidfd.Alive:
		return api.VerdictOwned, []string{by, "it is alive"}
	case pidfd.Exited:
		return api.VerdictGone, []string{by, "it has exited"}
	case pidfd.Reaped:
		return api.VerdictGone, []string{by, "it was reaped"}
	}
	return api.VerdictUnverifiable, []string{by, "one cannot tell whether it lives"}
}

// look is Verify, with what can be read of it.
func (p *Process) look() (pidfd.Seen, api.Verdict, []string) {
	seen, err := p.ref.read()
	v, why := p.Verify()
	if err != nil {
		why = append(why, err.Error())
	}
	return seen, v, why
}

// Signal verifies and signals, and verifies again where it is held by a token
// alone. The signal was sent if and only if the verdict is owned and the error
// nil. pidfd.ErrRefused: it may never be signalled.
func (p *Process) Signal(sig syscall.Signal) (api.Verdict, []string, error) {
	if err := p.k.refuse(p.rec.PID); err != nil {
		return api.VerdictUnverifiable, []string{err.Error()}, err
	}
	v, why := p.Verify()
	if v != api.VerdictOwned {
		return v, why, nil
	}
	err := p.ref.signal(sig)
	switch {
	case errors.Is(err, pidfd.ErrGone):
		return api.VerdictGone, append(why, "it went before the signal"), nil
	case err != nil:
		return v, append(why, err.Error()), err
	case p.ref.how() != ByToken:
		return v, why, nil
	}
	if p.ref.life() == pidfd.Reaped { // it had its number to the end, or somebody has it now
		return v, append(why, "gone right after the signal: its number cannot be vouched for"), nil
	}
	return v, append(why, "still the same after the signal"), nil
}
