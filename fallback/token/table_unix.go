//go:build darwin || freebsd

package token

import (
	"errors"
	"os"
	"syscall"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys"
	"pinfold.dev/pidfd"
)

// number is a process's number: all that there is to reach it by.
type number struct{ pid int }

func open(pid int) (target, error) { return number{pid}, nil }

func boot() string { return sys.BootID() }

func (n number) exact() bool { return false }

func (n number) close() error { return nil }

// read asks the kernel's table, and ps(1) when that is refused.
func (n number) read() (api.Identity, pidfd.Life, error) {
	id := api.Identity{PID: n.pid, Boot: boot()}
	e, err := sys.ReadEntry(n.pid)
	if err == nil && e.PID == n.pid {
		id.StartUS = e.StartUS
		return id, life(e), nil
	}
	if err == nil {
		err = sys.ErrParse
	}
	if !errors.Is(err, sys.ErrNoEntry) {
		table := err
		if e, err = readPS(n.pid); err == nil {
			id.StartS = e.StartUS / 1e6
			return id, life(e), nil
		}
		err = errors.Join(table, err)
	}
	if errors.Is(err, sys.ErrNoEntry) && sys.TableWhole() && errors.Is(killNumber(n.pid, 0), syscall.ESRCH) {
		return id, pidfd.Reaped, nil
	}
	return id, pidfd.Unknown, err
}

func life(e sys.ProcEntry) pidfd.Life {
	if e.Zombie {
		return pidfd.Exited
	}
	return pidfd.Alive
}

func (n number) signal(sig syscall.Signal) error {
	err := killNumber(n.pid, sig)
	if errors.Is(err, syscall.ESRCH) {
		return pidfd.ErrGone
	}
	return err
}

// killNumber is kill(2) with a number that was stored: the one place for these
// systems. Its callers have just verified who has the number, and will again.
func killNumber(pid int, sig syscall.Signal) error {
	if err := pidfd.RefusePID(pid, os.Getpid()); err != nil {
		return err
	}
	return os.NewSyscallError("kill", syscall.Kill(pid, sig))
}

func parentOf(pid int) int {
	e, err := sys.ReadEntry(pid)
	if err != nil || e.PID != pid {
		return 0
	}
	return e.PPID
}

func refuseHere(pid int) error { return nil }

func foreignRecord(rec api.Identity) string {
	if rec.Created != 0 {
		return "recorded on another system"
	}
	return ""
}
