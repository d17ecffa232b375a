package hold

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/containment"
	"pinfold.dev/internal/ownfile"
)

// selfTestTime bounds the self-test of one grade.
const selfTestTime = 15 * time.Second

// selfTest holds, uses and ends a turn at each grade that seems possible, and
// gives up those that fail. Kernels since 6.14, and older ones with the same
// fix, kill at birth what a process clones into another cgroup once its own
// was killed; where that shows, launches go through the gate.
//
// One that was cut short, since the service is to stop, tells nothing.
func (h *Host) selfTest(ctx context.Context) {
	if h.mgr != nil {
		if err := h.prove(ctx, api.GradeScope); err != nil && ctx.Err() == nil {
			h.scopeErr = fmt.Errorf("self-test: %w", err)
			h.log.Warn("grade scope fails its self-test", "error", err)
			h.mgr.Close()
			h.mgr = nil
		}
	}
	if h.parent != nil && ctx.Err() == nil {
		if err := h.prove(ctx, api.GradeCgroup); err != nil && ctx.Err() == nil {
			h.groupErr = fmt.Errorf("self-test: %w", err)
			h.log.Warn("grade cgroup fails its self-test", "error", err)
			h.parent.Close()
			h.parent = nil
		}
	}
}

// errSlow marks a self-test that was not refused anything, but did not get on.
var errSlow = errors.New("the host did not get to it: it is very busy, or frozen")

// errNoRoom marks a self-test that failed where nothing can be written.
var errNoRoom = errors.New("there is no room left in the runtime directory")

// errFull marks a self-test that failed where a limit or the host left nothing.
var errFull = errors.New("there are no processes, memory or descriptors left")

// inconclusive: it says nothing about the grade.
func inconclusive(err error) bool {
	return errors.Is(err, errSlow) || errors.Is(err, errNoRoom) || errors.Is(err, errFull)
}

// exhausted tells of an error that says no more than that nothing is left; a
// keeper's has its errno by name.
func exhausted(err error) bool {
	var told *api.Error
	errors.As(err, &told)
	for _, e := range []syscall.Errno{syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE} {
		if errors.Is(err, e) || told != nil && told.Details["errno_name"] == errnoName(e) {
			return true
		}
	}
	return false
}

// noRoom tells whether less can be written than a keeper writes at its start.
func (h *Host) noRoom() bool {
	path := filepath.Join(h.cfg.RuntimeDir, "room")
	f, err := ownfile.Create(path)
	if err == nil {
		_, err = f.Write(make([]byte, 64<<10))
		err = errors.Join(err, f.Close())
	}
	_ = os.Remove(path)
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// prove tries a grade. A test that only did not get on, or found no room for
// its records, does not outweigh one that was passed in this boot: the turns
// that are there can be ended without a disk.
func (h *Host) prove(ctx context.Context, g api.Grade) error {
	err := h.tryGrade(ctx, g)
	switch {
	case err == nil:
		h.keepProof(g)
	case h.goByProof(ctx, g, err):
		return nil
	}
	return err
}

// goByProof tells whether an earlier self-test speaks for a grade of which the one
// at this start, which ended with err, says nothing.
func (h *Host) goByProof(ctx context.Context, g api.Grade, err error) bool {
	if !inconclusive(err) || ctx.Err() != nil || !h.useProof(g) {
		return false
	}
	h.log.Warn("the self-test did not get to its end; going by an earlier one of this boot", "grade", g, "error", err)
	h.unproven[g] = fmt.Sprintf("an earlier self-test of this boot was passed; the one at this service's start did not get to its end: %v", err)
	return true
}

func (h *Host) tryGrade(ctx context.Context, g api.Grade) error {
	err := h.tryOnce(ctx, g)
	if inconclusive(err) {
		return err // nothing died at birth
	}
	if err != nil && g == api.GradeCgroup { // what dies at birth when we clone it need not when a keeper does
		h.moves = true
		if h.tryOnce(ctx, g) == nil {
			return nil
		}
		h.moves = false
	}
	if err == nil || h.gate {
		return err
	}
	h.gate = true
	if gated := h.tryOnce(ctx, g); gated != nil {
		h.gate = false
		return err // the gate is no help: what failed first says more
	}
	h.notes = append(h.notes, fmt.Sprintf("launches go through a gate, not by CLONE_INTO_CGROUP: %v", err))
	return nil
}

// tryOnce is a whole turn: begin, a process that ends by itself, one that is
// killed, release.
func (h *Host) tryOnce(ctx context.Context, g api.Grade) (err error) {
	above := ctx
	ctx, cancel := context.WithTimeout(above, selfTestTime)
	defer cancel()
	defer func() {
		var frozen *frozenError
		if err != nil && (errors.As(err, &frozen) || errors.Is(ctx.Err(), context.DeadlineExceeded)) {
			err = fmt.Errorf("%w: %w", errSlow, err)
		} else if err != nil && exhausted(err) {
			err = fmt.Errorf("%w: %w", errFull, err)
		} else if err != nil && h.noRoom() {
			err = fmt.Errorf("%w: %w", errNoRoom, err)
		}
	}()
	exits := make(chan containment.Exit, 2)
	hooks := containment.Hooks{Save: func(containment.Facts) error { return nil },
		Exit: func(e containment.Exit) { exits <- e }, KeeperLost: func(string) {}}
	id := selfTestID()
	x, err := h.beginAt(ctx, containment.Spec{Turn: id, Label: "start-up self-test"}, hooks, g, nil)
	if err != nil {
		return err
	}
	defer os.RemoveAll(filepath.Join(h.cfg.RuntimeDir, "turns", id))
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(above), selfTestTime) // also of a test that had no time left
		defer cancel()
		rerr := x.Release(end)
		if rerr == nil {
			rerr = x.Remove(end)
		}
		if rerr != nil {
			err = errors.Join(err, fmt.Errorf("release: %w", rerr))
			x.Close()
		}
	}()
	if err := h.tryExit(ctx, x, exits); err != nil {
		return err
	}
	return h.tryKill(ctx, x, exits)
}

// selfTestID looks like a turn's, so that a restart finds what a killed
// self-test may have left.
func selfTestID() string { return fmt.Sprintf("%016x", time.Now().UnixNano()) }

func (h *Host) tryExit(ctx context.Context, x containment.Hold, exits <-chan containment.Exit) error {
	if _, err := x.Launch(ctx, containment.Launch{Process: "p1", Argv: []string{h.cfg.Init, "selftest"}, Cwd: "/"}, nil); err != nil {
		return err
	}
	select {
	case e := <-exits:
		if e.Status.State != api.ProcessExited || e.Status.Code != 0 {
			return fmt.Errorf("what was launched into a fresh cgroup ended with %s %d instead of exit code 0", e.Status.Signal, e.Status.Code)
		}
		return nil
	case <-ctx.Done():
		return errors.New("what was launched into a fresh cgroup did not end in time")
	}
}

func (h *Host) tryKill(ctx context.Context, x containment.Hold, exits <-chan containment.Exit) error {
	if _, err := x.Launch(ctx, containment.Launch{Process: "p2", Argv: []string{h.cfg.Init, "selftest", "--wait"}, Cwd: "/"}, nil); err != nil {
		return err
	}
	if err := x.Fence(ctx); err != nil {
		return err
	}
	b, isBare := x.(*bare)
	if isBare {
		if err := b.fits(ctx); err != nil {
			return err
		}
	}
	k, err := x.Kill(ctx, selfTestTime/2)
	switch {
	case err != nil:
		return err
	case k.EmptyAt.IsZero():
		return fmt.Errorf("a turn that was killed (%s) is not empty", k.Mechanism)
	case isBare:
		return b.fitsEnding(k)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mechanism = k.Mechanism
	return nil
}

// defaultPIDs is the pids.max of a turn that asks for none: a fork bomb must
// not eat every pid of the host.
func (h *Host) defaultPIDs() int64 {
	if h.cfg.PIDs > 0 {
		return h.cfg.PIDs
	}
	const most = 16384
	b, err := os.ReadFile("/proc/sys/kernel/pid_max")
	if err != nil {
		return most
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil || n/2 > most {
		return most
	}
	return n / 2
}
