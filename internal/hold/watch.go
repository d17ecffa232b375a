package hold

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"pinfold.dev/api"
	"pinfold.dev/containment"
	"pinfold.dev/internal/sys"
	"pinfold.dev/pidfd"
)

// Watch opens a turn's client and calls gone, once, when it has exited. After stop
// has returned gone is not called any more, unless it is under way.
func (h *Host) Watch(c containment.Client, gone func()) (api.Identity, func(), api.Verdict, error) {
	p, v, err := openClient(c)
	if err != nil || v != api.VerdictOwned {
		return api.Identity{}, func() {}, v, err
	}
	id, err := p.Identity()
	if err != nil {
		p.Close()
		return api.Identity{}, func() {}, api.VerdictUnverifiable, fmt.Errorf("identify the client: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer p.Close()
		if p.Wait(ctx) == nil && ctx.Err() == nil {
			gone()
		}
	}()
	return id, cancel, api.VerdictOwned, nil
}

// openClient opens it by the peer's pidfd, or by what was recorded of it.
func openClient(c containment.Client) (*pidfd.Handle, api.Verdict, error) {
	if c.FD < 0 {
		p, v, why := pidfd.OpenVerified(c.Recorded)
		if v != api.VerdictOwned {
			return nil, v, errors.New(strings.Join(why, "; "))
		}
		return p, v, nil
	}
	fd, err := sys.Dup(c.FD)
	if err != nil {
		return nil, api.VerdictUnverifiable, fmt.Errorf("take the client's handle: %w", err)
	}
	over, xerr := sys.PidfdExited(fd)
	p, err := pidfd.FromPeer(fd)
	switch {
	case xerr == nil && over:
		if p != nil {
			p.Close()
		}
		return nil, api.VerdictGone, errors.New("the client has exited")
	case err != nil:
		return nil, api.VerdictUnverifiable, err
	}
	return p, api.VerdictOwned, nil
}
