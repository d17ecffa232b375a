package hold

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"pinfold.dev/api"
	"pinfold.dev/containment"
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
		if err := x.meet(ctx, x.reachSoon); err != nil {
			x.loseKeeper(fmt.Sprintf("it does not answer: %v", err))
		}
		return x, api.VerdictOwned, nil
	}
	if v == api.VerdictUnverifiable {
		return nil, v, errors.Join(errors.New(join(why)), x.Close())
	}
	gone := fmt.Sprintf("it is %s (%s)", v, join(why))
	x.loseKeeper(gone)
	if facts.Grade != api.GradePIDNS && x.anyHeld() {
		return x, api.VerdictOwned, nil
	}
	return x, api.VerdictGone, errors.Join(fmt.Errorf("its keeper is gone: %s", gone), x.Close())
}

// anyHeld tells whether a launched process is proved to live.
func (x *bare) anyHeld() bool {
	for _, h := range x.held() {
		if over, err := h.Exited(); err == nil && !over {
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

// answersAs tells whether who answers at a turn's socket, in our own directory, is
// the recorded process: where /proc does not tell what it was started as.
func answersAs(ctx context.Context, dir string, rec api.Identity) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "unix", socketPath(d))
	if err != nil {
		return err
	}
	defer c.Close()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return err
	}
	fd, perr := -1, error(nil)
	if err := raw.Control(func(s uintptr) { fd, perr = sys.PeerPidfd(int(s)) }); err != nil || perr != nil {
		return errors.Join(err, perr)
	}
	p, err := pidfd.FromPeer(fd)
	if err != nil {
		return err
	}
	defer p.Close()
	return isRecorded(p, rec)
}
