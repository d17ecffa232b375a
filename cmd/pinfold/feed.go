package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	"pinfold.dev/api"
	"pinfold.dev/client"
)

// errLostInput tells that nobody knows whether bytes arrived.
var errLostInput = errors.New("the service went away as it took input")

// feeder writes bytes to a process's stdin.
type feeder struct {
	client        *client.Client
	turn, process string
	// lossy goes on after bytes whose arrival nobody knows: right for what a
	// person types, who sees what came of it, and wrong for everything else.
	lossy bool
	// strict tells of a stdin that nobody reads any more; else that is no error.
	strict bool
	taken  int64
}

// copy writes what in gives, as fast as the process reads, until its end, and
// with closes closes the stdin then. edit, which may be nil, sees the bytes
// first; it ends the copying by returning false.
func (f *feeder) copy(ctx context.Context, in io.Reader, closes bool, edit func([]byte) ([]byte, bool)) error {
	buf := make([]byte, 32<<10)
	for {
		n, rerr := in.Read(buf)
		b, more := buf[:n], true
		if edit != nil && n > 0 {
			b, more = edit(b)
		}
		if len(b) > 0 {
			err := f.write(ctx, b, false)
			if err != nil {
				return f.closed(err)
			}
		}
		switch {
		case !more:
			return nil
		case rerr == nil:
			continue
		case !closes:
			return nil
		}
		// An error ends it, too: a descriptor that cannot be read is at its end.
		return f.closed(f.write(ctx, nil, true))
	}
}

func (f *feeder) closed(err error) error {
	if errors.Is(err, api.ErrStdinClosed) && !f.strict {
		return nil
	}
	return err
}

// write writes all of b. It asks again where it is known how much was taken.
func (f *feeder) write(ctx context.Context, b []byte, closes bool) error {
	err := insist(ctx, func(ctx context.Context) error {
		ans, err := f.client.WriteStdin(ctx, f.turn, f.process, bytes.NewReader(b), closes)
		f.taken += ans.Bytes
		var e *api.Error
		if !errors.As(err, &e) || e.Code != api.CodeUnavailable || ctx.Err() != nil {
			return err
		}
		if n, nerr := strconv.Atoi(e.Details["bytes"]); nerr == nil && n >= 0 && n <= len(b) {
			b = b[n:]
			f.taken += int64(n)
			return err
		}
		if e.Details["socket"] != "" || e.Details["refused"] != "" {
			return err // the service did not look at it
		}
		return api.Errorf(api.CodeInternal, "%v: %v", errLostInput, err).With("lost", "true")
	})
	var e *api.Error
	if errors.As(err, &e) && e.Details["lost"] != "" {
		if f.lossy {
			return nil
		}
		return fmt.Errorf("%w: up to %d bytes may or may not have arrived", errLostInput, len(b))
	}
	return err
}
