package hold

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"

	"pinfold.dev/api"
	"pinfold.dev/containment"
	"pinfold.dev/fallback"
	"pinfold.dev/internal/sys"
	"pinfold.dev/pidfd"
)

// recoverBare finds a turn again by its keeper. Without that, launched processes
// that are proved to be there still are held by their handles; what else the turn
// had is not to be found. At grade pidns nobody outlives the keeper.
func (h *Host) recoverBare(ctx context.Context, turn string, facts containment.Facts, hooks containment.Hooks) (containment.Hold, api.Verdict, error) {
	x := h.newBare(turn, facts, hooks)
	keeper, v, why := h.openKeeper(ctx, turn, facts.Keeper)
	if keeper != nil {
		x.keeper = keeper
		h.mind(turn, facts)
		if err := x.meet(ctx, x.reachSoon); err != nil {
			x.loseKeeper(fmt.Sprintf("it does not answer: %v", err))
		}
		return x, api.VerdictOwned, nil
	}
	if slices.Contains(why, noKeeperOfIt) { // then it says nothing of where the keeper is
		v = api.VerdictUnverifiable
	}
	if v == api.VerdictUnverifiable {
		return nil, v, errors.Join(errors.New(join(why)), x.Close())
	}
	gone := fmt.Sprintf("it is %s (%s)", v, join(why))
	x.loseKeeper(gone)
	if facts.Grade != api.GradePIDNS && x.anyHeld() || anyLives(facts.Adopted) {
		return x, api.VerdictOwned, nil
	}
	return x, api.VerdictGone, errors.Join(fmt.Errorf("its keeper is gone: %s", gone), x.Close())
}

// hedge holds a launch by what is known of it, where no handle can be opened; or
// notes why it is not held.
func (x *keeping) hedge(process string, rec api.Identity, why []string) {
	k, v, more := x.host.fb.Recall(rec)
	if pidfd.Contradicts(why) {
		v = api.VerdictUnverifiable
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	p := x.procs[process]
	switch {
	case p == nil || p.exit != nil:
		if k != nil {
			k.Close()
		}
	case v == api.VerdictOwned:
		p.known = k
	case v == api.VerdictUnverifiable:
		p.unsure = &api.Refused{PID: rec.PID, Process: process, Verdict: v, Evidence: append(why, more...)}
	}
}

// knownOf is what a launch is held by that has no handle; nil: nothing.
func (x *keeping) knownOf(process string) *fallback.Process {
	x.mu.Lock()
	defer x.mu.Unlock()
	if p := x.procs[process]; p != nil {
		return p.known
	}
	return nil
}

// unheld are the launches that have not ended and have no handle: those that are
// known by their identity, and those that cannot be verified.
func (x *keeping) unheld() (known map[string]*fallback.Process, unsure []api.Refused) {
	x.mu.Lock()
	defer x.mu.Unlock()
	known = map[string]*fallback.Process{}
	for _, id := range x.order {
		switch p := x.procs[id]; {
		case p.exit != nil || p.lost != "" || p.handle != nil:
		case p.known != nil:
			known[id] = p.known
		case p.unsure != nil:
			unsure = append(unsure, *p.unsure)
		}
	}
	return known, unsure
}

// anyHeld tells whether a launched process is proved to live.
func (x *bare) anyHeld() bool {
	for _, h := range x.held() {
		if over, err := h.Exited(); err == nil && !over {
			return true
		}
	}
	known, unsure := x.unheld()
	return len(known)+len(unsure) > 0
}

// anyLives tells whether one of those that were adopted, which no keeper has below it,
// may live.
func anyLives(adopted []api.Identity) bool {
	for _, id := range adopted {
		h, v, _ := pidfd.OpenVerified(id)
		if h != nil {
			h.Close()
		}
		if v == api.VerdictOwned || v == api.VerdictUnverifiable {
			return true
		}
	}
	return false
}

// meet reaches a keeper, now or in the background.
func (x *keeping) meet(ctx context.Context, reach func(context.Context) error) error {
	err := reach(ctx)
	if err != nil && errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil && !x.keeperDead() {
		x.host.log.Warn("a keeper does not answer yet", "turn", x.turn, "error", err)
		x.unreached.Store(true)
		go x.reachLater(ctx)
		return nil
	}
	return err
}

// answering is a handle on who answers at a turn's socket, in our own directory, if
// it is the recorded process: for hosts that do not tell the boot, whose /proc does
// not tell what it was started as, or that open no handles. A keeper listens anew
// when it starts, so that it is the peer.
func answering(ctx context.Context, dir string, rec api.Identity) (*pidfd.Handle, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "unix", socketPath(d))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return nil, err
	}
	fd, perr := -1, error(nil)
	if err := raw.Control(func(s uintptr) { fd, perr = sys.PeerPidfd(int(s)) }); err != nil || perr != nil {
		return nil, errors.Join(err, perr)
	}
	p, err := pidfd.FromPeer(fd)
	if err != nil {
		return nil, err
	}
	now, err := p.Identity()
	switch {
	case err != nil:
	case rec.Ino != 0 && now.Ino != 0 && rec.Ino != now.Ino:
		err = errors.New("its pidfs inode is another")
	case rec.PID != now.PID || rec.StartTicks != now.StartTicks && rec.StartTicks != 0 && now.StartTicks != 0:
		err = fmt.Errorf("it is process %d, which is another", now.PID)
	case rec.Boot != "" && now.Boot != "" && rec.Boot != now.Boot:
		err = errors.New("it is of another boot")
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}
