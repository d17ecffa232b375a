package reaper

import (
	"syscall"

	"pinfold.dev/internal/sys"
)

// wakeFD is the event counter that the signal handler adds to: a handler has no
// other way to be told. It is set once, before the handler is installed.
var wakeFD int32

// handler gives the addresses of the signal handler and of its way back.
func handler() (entry, restorer uintptr)

// catchSignals installs a handler for every signal but those that cannot be
// caught and those that are the Go runtime's: faults, which it makes panics of,
// and URG, with which it preempts. For CHLD it wakes the loop, which reaps; for
// all others it makes a stray signal harmless. It is not os/signal's, because
// that one takes a goroutine and a thread switch for each signal.
func catchSignals() (wake int, err error) {
	if wake, err = sys.Eventfd(); err != nil {
		return -1, err
	}
	wakeFD = int32(wake)
	entry, restorer := handler()
	for s := syscall.Signal(1); s <= 64; s++ {
		switch s {
		case syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGURG, syscall.SIGBUS, syscall.SIGFPE, syscall.SIGSEGV:
			continue
		}
		if err := sys.RawSigaction(s, entry, restorer); err != nil {
			return -1, err
		}
	}
	return wake, sys.UnblockSignal(syscall.SIGCHLD) // an ancestor may have blocked it
}

// reaping is the source behind wakeFD.
type reaping struct{}

func (reaping) ready(k *keeper, _ uint32) {
	var b [8]byte
	_, _ = syscall.Read(int(wakeFD), b[:])
	k.reapDue = true
}
