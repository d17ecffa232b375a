package token

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"pinfold.dev/api"
	"pinfold.dev/pidfd"
)

// Process is one process that is held by what it was recorded by. It is not
// safe for concurrent use.
type Process struct {
	t   target
	rec api.Identity
}

// target is a process, or what can be had of one on this system.
type target interface {
	// read reads what the process is known by. Reaped: nobody has the number.
	// An error is why not all of that could be read.
	read() (api.Identity, pidfd.Life, error)
	// signal is called right after a read; exact tells that it can reach
	// nobody else.
	signal(sig syscall.Signal) error
	exact() bool
	close() error
}

// Hold holds the process that has a number now; who it is, the caller must
// know. pidfd.ErrGone: nobody has the number, pidfd.ErrRefused: it may never be
// signalled. Other errors: it cannot be told, or not be held. Where there is
// only ps(1) it waits until the second is over in which the process started,
// so that no other one can have the same number and second.
func Hold(pid int) (*Process, error) {
	if err := refuse(pid); err != nil {
		return nil, err
	}
	t, err := open(pid)
	if err != nil {
		return nil, fmt.Errorf("hold process %d: %w", pid, err)
	}
	id, life, err := settle(t.read)
	switch {
	case err != nil:
	case life == pidfd.Reaped:
		err = pidfd.ErrGone
	case life == pidfd.Unknown:
		err = errors.New("cannot tell whether it lives")
	}
	if err != nil {
		_ = t.close()
		return nil, fmt.Errorf("hold process %d: %w", pid, err)
	}
	return &Process{t, id}, nil
}

// Recall holds the recorded process. It is nil unless the verdict is owned.
func Recall(rec api.Identity) (*Process, api.Verdict, []string) {
	if why := foreignRecord(rec); why != "" {
		return nil, api.VerdictUnverifiable, []string{why}
	}
	if err := refuse(rec.PID); err != nil {
		return nil, api.VerdictUnverifiable, []string{err.Error()}
	}
	t, err := open(rec.PID)
	if errors.Is(err, pidfd.ErrGone) {
		v, why := pidfd.CompareStart(rec, api.Identity{PID: rec.PID, Boot: boot()}, pidfd.Reaped)
		return nil, v, why
	}
	if err != nil {
		return nil, api.VerdictUnverifiable, []string{err.Error()}
	}
	p := &Process{t, rec}
	v, why := p.Verify()
	if v != api.VerdictOwned {
		_ = t.close()
		return nil, v, why
	}
	return p, v, why
}

// Identity is what it was recorded by.
func (p *Process) Identity() api.Identity { return p.rec }

// Close lets go of it.
func (p *Process) Close() error { return p.t.close() }

// Verify compares what has its number with what was recorded.
func (p *Process) Verify() (api.Verdict, []string) {
	now, life, err := p.t.read()
	v, why := pidfd.CompareStart(p.rec, now, life)
	if err != nil {
		why = append(why, err.Error())
	}
	return v, why
}

// Signal verifies and signals, and verifies again where somebody else may have
// been reached. The signal was sent if and only if the verdict is owned and the
// error nil. Windows knows none but SIGKILL (TerminateProcess), and 0, which
// only verifies: errors.ErrUnsupported. pidfd.ErrRefused: it may never be
// signalled.
func (p *Process) Signal(sig syscall.Signal) (api.Verdict, []string, error) {
	if err := refuse(p.rec.PID); err != nil {
		return api.VerdictUnverifiable, []string{err.Error()}, err
	}
	v, why := p.Verify()
	if v != api.VerdictOwned || sig == 0 {
		return v, why, nil
	}
	err := p.t.signal(sig)
	switch {
	case errors.Is(err, pidfd.ErrGone):
		return api.VerdictGone, append(why, "it went before the signal"), nil
	case err != nil:
		return v, append(why, err.Error()), err
	case p.t.exact():
		return v, append(why, "through its handle"), nil
	}
	after, _ := p.Verify()
	return v, append(why, "right after the signal: "+string(after)), nil
}

// refuse tells who may never be signalled, whatever a record says.
func refuse(pid int) error {
	if err := pidfd.RefusePID(pid, os.Getpid()); err != nil {
		return err
	}
	const deepest = 1000 // parents are read one by one: numbers may go in circles
	for n, a := 0, os.Getppid(); n < deepest && a > 1; n, a = n+1, parentOf(a) {
		if a == pid {
			return fmt.Errorf("signal pid %d: %w: we descend from it", pid, pidfd.ErrRefused)
		}
	}
	return refuseHere(pid)
}
