package token

import (
	"errors"
	"fmt"
	"syscall"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys"
	"pinfold.dev/pidfd"
)

// process is an open handle.
type process struct {
	pid int
	h   *sys.WinProcess
}

func open(pid int) (target, error) {
	h, err := sys.OpenWinProcess(pid)
	if errors.Is(err, sys.ErrNoEntry) {
		return nil, pidfd.ErrGone
	}
	if err != nil {
		return nil, err
	}
	return &process{pid, h}, nil
}

// boot is nothing: a creation time is of the calendar.
func boot() string { return "" }

func (p *process) exact() bool { return true }

func (p *process) close() error { return p.h.Close() }

func (p *process) read() (api.Identity, pidfd.Life, error) {
	id := api.Identity{PID: p.pid}
	var err error
	if id.Created, err = p.h.Created(); err != nil {
		return id, pidfd.Unknown, err
	}
	exited, err := p.h.Exited()
	switch {
	case err != nil:
		return id, pidfd.Unknown, err
	case exited:
		return id, pidfd.Exited, nil
	}
	return id, pidfd.Alive, nil
}

// signal ends it. One that has exited refuses that as if it were forbidden.
func (p *process) signal(sig syscall.Signal) error {
	if sig != syscall.SIGKILL {
		return fmt.Errorf("signal process %d: %w: Windows can only end it", p.pid, errors.ErrUnsupported)
	}
	err := p.h.Terminate()
	if err != nil {
		if exited, e := p.h.Exited(); e == nil && exited {
			return pidfd.ErrGone
		}
	}
	return err
}

// parentOf is the number of the process that made pid, or 0 when that cannot be
// told: also when whoever has the number now is younger, so not the one.
func parentOf(pid int) int {
	child, err := sys.OpenWinProcess(pid)
	if err != nil {
		return 0
	}
	defer child.Close()
	n, err := child.Parent()
	if err != nil || n == pid {
		return 0
	}
	parent, err := sys.OpenWinProcess(n)
	if err != nil {
		return 0
	}
	defer parent.Close()
	older, err := parent.Created()
	younger, err2 := child.Created()
	if err != nil || err2 != nil || older > younger {
		return 0
	}
	return n
}

// refuseHere refuses the number of the kernel's own process.
func refuseHere(pid int) error {
	const system = 4
	if pid == system {
		return fmt.Errorf("signal pid %d: %w: System", pid, pidfd.ErrRefused)
	}
	return nil
}

func foreignRecord(rec api.Identity) string {
	switch {
	case rec.Created != 0:
		return ""
	case rec.Boot != "":
		return "recorded on another system"
	}
	return "no creation time recorded"
}
