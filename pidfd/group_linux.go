package pidfd

import (
	"errors"
	"fmt"
	"syscall"

	"pinfold.dev/internal/sys"
)

// SignalGroup sends sig to the process group that this process leads, also when
// it has been reaped itself: a handle names the group exactly. ErrGone: the group
// has no member. ErrNotSupported: before Linux 6.9.
func (h *Handle) SignalGroup(sig syscall.Signal) error {
	if err := h.guard(); err != nil {
		return err
	}
	if err := RefuseGroup(h.pid, syscall.Getpgrp()); err != nil {
		return err
	}
	return h.use(func(fd int) error {
		err := sys.PidfdSendSignal(fd, sig, sys.PidfdSignalProcessGroup)
		if errors.Is(err, syscall.EINVAL) {
			err = &Unsupported{"signals to a process group by handle", "6.9", err}
		}
		if err != nil {
			return fmt.Errorf("signal group %d: %w", h.pid, gone(err))
		}
		return nil
	})
}
