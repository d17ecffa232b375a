package server

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/containment"
)

// stdin hands the body on as fast as the process reads, in pieces of bounded
// size. The kernel's buffers of the connection hold back the client.
func stdin(ctx context.Context, c *call) (api.InputAnswer, error) {
	closes, err := c.flag("close", false)
	if err != nil {
		return api.InputAnswer{}, err
	}
	epoch, err := c.number("epoch", 0, 1<<62)
	if err != nil {
		return api.InputAnswer{}, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	rc := http.NewResponseController(c.w)
	_ = rc.SetReadDeadline(time.Time{}) // it may be typed by hand
	defer context.AfterFunc(c.s.stopping, func() {
		cancel(errStopping)
		_ = rc.SetReadDeadline(time.Now())
	})()
	c.watch.start()
	a := api.InputAnswer{Process: c.proc, Closed: closes}
	// An empty piece first: it tells whether there is anybody to read.
	if a.Grade, err = c.s.cfg.Engine.Input(ctx, c.turn, c.proc, epoch, nil, false); err != nil {
		return a, inputError(ctx, err, 0)
	}
	buf := make([]byte, containment.MaxInput)
	for {
		n, rerr := c.piece(buf)
		end := errors.Is(rerr, io.EOF)
		if n > 0 || end && closes {
			if _, err := c.s.cfg.Engine.Input(ctx, c.turn, c.proc, epoch, buf[:n], end && closes); err != nil {
				return a, inputError(ctx, err, a.Bytes)
			}
			a.Bytes += int64(n)
		}
		switch {
		case end:
			c.read = true
			return a, nil
		case rerr != nil:
			return a, inputError(ctx, asAPI(rerr, api.CodeBadRequest, "read the body"), a.Bytes)
		}
	}
}

// piece reads what is handed on at once. A request that tells its length, and is
// no longer than one piece, is read whole before: nobody else's bytes get in
// between, and nothing comes of one that was cut off.
func (c *call) piece(buf []byte) (int, error) {
	if c.r.ContentLength <= 0 || c.r.ContentLength > int64(len(buf)) {
		return c.r.Body.Read(buf)
	}
	n, err := io.ReadFull(c.r.Body, buf[:c.r.ContentLength])
	if err != nil {
		return 0, err
	}
	return n, io.EOF
}

// inputError tells how much was taken before it.
func inputError(ctx context.Context, err error, taken int64) error {
	if context.Cause(ctx) == errStopping {
		err = api.Errorf(api.CodeUnavailable, "the service is stopping; turns go on").WithRemedy("go on when it is back")
	}
	return asAPI(err, api.CodeInternal, "write to stdin").With("bytes", strconv.FormatInt(taken, 10))
}
