package hold

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/cgroup"
	"pinfold.dev/containment"
	"pinfold.dev/internal/wire"
	"pinfold.dev/pidfd"
)

// version2 is the first protocol version with operations on standard streams.
const version2 = 2

// version3 is the first one with keys of launches.
const version3 = 3

// ask calls an operation of version 2 that a process's streams need.
func (x *keeping) ask(ctx context.Context, feature string, m wire.Message) error {
	x.mu.Lock()
	k := x.link
	x.mu.Unlock()
	switch {
	case k == nil:
		return x.noKeeper()
	case k.version < version2:
		return x.unsupported(feature)
	}
	_, fds, err := k.call(ctx, m, nil)
	closeFDs(fds)
	var r *refusal
	switch {
	case errors.Is(err, errBroken):
		return keeperGone(x.turn)
	case !errors.As(err, &r):
		return err
	}
	switch r.why.Kind {
	case wire.ErrClosed, wire.ErrNotFound:
		return api.Errorf(api.CodeStdinClosed, "%s: %s", feature, r.Error())
	case wire.ErrNotTerminal:
		return api.Errorf(api.CodeBadRequest, "%s: %s", feature, r.Error())
	case wire.ErrProtocol:
		return x.unsupported(feature)
	}
	return api.Errorf(api.CodeInternal, "%s: %s", feature, r.Error())
}

// Input has the keeper write to a process's stdin.
func (x *keeping) Input(ctx context.Context, process string, data []byte, eof bool) error {
	return x.ask(ctx, "stdin", wire.Message{Op: wire.OpInput, Input: &wire.Input{Process: process, Data: data, EOF: eof}})
}

// Resize has the keeper change the size of a process's terminal.
func (x *keeping) Resize(ctx context.Context, process string, size api.WinSize) error {
	return x.ask(ctx, "resize", wire.Message{Op: wire.OpResize, Resize: &wire.Resize{Process: process,
		Size: wire.WinSize{Rows: size.Rows, Cols: size.Cols}}})
}

// EndProcess ends what is in a launch's leaf, and the launched process itself,
// wherever it is. It needs nothing but the kernel.
func (x *hold) EndProcess(ctx context.Context, process string, stop syscall.Signal, grace, bound time.Duration) error {
	out, err := x.EndLaunch(ctx, process, stop, grace, bound, false)
	if err != nil {
		return err
	}
	if n := len(out.Survivors); n > 0 {
		s := out.Survivors[0]
		return fmt.Errorf("%d processes survive, one is %d (%s) in state %s", n, s.PID, s.Comm, s.State)
	}
	return nil
}

// askProcess sends the stop signal, waits out the grace, or less, and tells how
// many were asked.
func (x *hold) askProcess(ctx context.Context, process string, stop syscall.Signal, grace time.Duration) (asked int) {
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	leaf, err := x.openLeaf(process)
	if err == nil {
		defer leaf.Close()
		asked, _ = leaf.Signal(func(string) syscall.Signal { return stop }) // what it does not reach, the kill sees
		_ = leaf.Empty(ctx)
	}
	h := x.handleOf(process)
	if h == nil || ctx.Err() != nil {
		return asked
	}
	if id, err := h.CgroupID(); err == nil && (leaf == nil || id != leaf.ID()) { // it had left
		if h.Signal(stop) == nil {
			asked = max(asked, 1)
		}
	}
	_ = h.Wait(ctx)
	return asked
}

// killLeaf kills what is in a launch's leaf; one that was removed was empty.
func (x *hold) killLeaf(ctx context.Context, process string, bound time.Duration, out *containment.Killed) error {
	leaf, err := x.openLeaf(process)
	if isRemoved(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer leaf.Close()
	k, err := leaf.Kill(ctx, bound)
	if isRemoved(err) {
		return nil
	}
	out.Mechanism, out.Rounds, out.Seen, out.KilledAt = k.Mechanism, k.Rounds, k.Seen, k.KilledAt
	out.Survivors, out.Notes = k.Survivors, append(out.Notes, k.Notes...)
	return err
}

func isRemoved(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENODEV)
}

// leafOOM is how many processes the kernel ended in a launch's leaf for want of
// memory; 0 also where that is gone, with what it had counted.
func (x *hold) leafOOM(process string) int64 {
	if x.work == nil {
		return 0
	}
	leaf, err := x.openLeaf(process)
	if err != nil {
		return 0
	}
	defer leaf.Close()
	return leafOOMKills(leaf)
}

// leafOOMKills is how many processes the kernel ended in a leaf for want of
// memory; 0 also where nobody counts.
func leafOOMKills(leaf *cgroup.Dir) int64 { return max(0, leaf.Usage().OOMKills) }

// joinedEnd is how a process ended that had joined, as far as can be told.
func joinedEnd(h *pidfd.Handle) (wire.Exit, error) {
	st, err := h.ExitStatus()
	if err != nil {
		return wire.Exit{}, err
	}
	e := wire.Exit{PID: h.PID(), EndedNS: time.Now().UnixNano()}
	if st.Signaled() {
		e.Signal, e.Core = int(st.Signal()), st.CoreDump()
	} else {
		e.Code = st.ExitStatus()
	}
	return e, nil
}
