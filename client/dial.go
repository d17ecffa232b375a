package client

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
	"time"

	"pinfold.dev/api"
)

func (c *Client) dial(ctx context.Context) (net.Conn, error) {
	path := c.socketPath()
	dial := c.Dial
	if dial == nil {
		dial = func(ctx context.Context, path string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		}
	}
	nc, err := dial(ctx, path)
	if err != nil && !over(ctx) {
		return nil, unreachable(path, err)
	}
	if err != nil {
		return nil, err
	}
	return &sender{Conn: nc}, nil
}

// over tells whether the time to ask is over. Who dials goes by the deadline, and may
// see it a moment before the context does: that one is waited for.
func over(ctx context.Context) bool {
	if at, ok := ctx.Deadline(); ok && !time.Now().Before(at) {
		<-ctx.Done()
	}
	return ctx.Err() != nil
}

// unreachable says why there is no connection, and what to do.
func unreachable(path string, err error) *api.Error {
	say := func(what, remedy string) *api.Error {
		return api.Errorf(api.CodeUnavailable, "connect to %s: %s", path, what).WithRemedy("%s", remedy).With("socket", path)
	}
	const start = "start it with `systemctl start pinfold` or `pinfold serve`"
	switch {
	case errors.Is(err, os.ErrNotExist):
		return say("there is no such socket; the service is not running, or listens elsewhere",
			start+", or name its socket with --socket or PINFOLD_SOCKET")
	case errors.Is(err, syscall.ECONNREFUSED):
		return say("nobody listens; the service is not running", start)
	case errors.Is(err, os.ErrPermission):
		return say("permission denied", "ask an administrator for access to the socket, or run a service of your own with `pinfold serve`")
	case errors.Is(err, syscall.EAGAIN):
		return say("the service is too busy to answer", "try again")
	case errors.Is(err, syscall.ENOTSOCK), errors.Is(err, syscall.EPROTOTYPE):
		return say("that is not a service's socket", "name it with --socket or PINFOLD_SOCKET")
	case errors.Is(err, syscall.EINVAL) && len(path) > 107:
		return say("the path is too long for a socket", "use one of at most 107 bytes")
	}
	var op *net.OpError
	if errors.As(err, &op) {
		err = op.Err
	}
	return say(err.Error(), start)
}
