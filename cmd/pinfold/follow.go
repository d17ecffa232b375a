package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/client"
)

// drainTime is how long output is awaited after a command's end when a
// descendant may still write: one that holds the stream holds nobody up.
const drainTime = time.Second

// follower copies a kept stream to where it goes, across gaps and restarts of
// the service.
type follower struct {
	client        *client.Client
	turn, process string
	stream        api.StreamName
	to            io.Writer
	next          int64          // offset of the next byte
	follow        bool           // go on with what comes
	drain         *time.Duration // with follow: end that long after the process
	gap           func(from, to int64)

	until   int64 // without follow: where it ends
	contact bool  // the service answered
	broken  error // nobody takes the bytes any more
	missed  gaps
	shown   int64 // bytes that were copied
	dry     int   // answers in a row that brought none
	idle    bool  // the last answer ended with nothing new, or again with nothing but a gap
	quiet   int   // answers in a row that did, of a process that is over
}

// copy returns when there is no more; an error of to is returned as it is.
func (f *follower) copy(ctx context.Context) error {
	f.missed.tell = f.gap
	defer f.missed.flush()
	for {
		f.contact = false
		over := false
		err := insist(ctx, func(ctx context.Context) (err error) {
			over, err = f.once(ctx)
			if f.contact && err != nil && unreachable(err) && ctx.Err() == nil {
				return nil // it was there: our patience begins anew
			}
			return err
		})
		switch {
		case f.broken != nil:
			return f.broken
		case err != nil || over:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		}
		if f.idle {
			time.Sleep(50 * time.Millisecond)
		}
	}
}

// once reads one answer; over tells that nothing comes after it.
func (f *follower) once(ctx context.Context) (over bool, err error) {
	o, err := f.client.Output(ctx, f.turn, f.process, client.OutputQuery{Stream: f.stream, Offset: f.next, Follow: f.follow, Drain: f.drain})
	if err != nil {
		return false, err
	}
	defer o.Close()
	if f.until == 0 {
		f.until = o.Total
	}
	f.contact = true
	began, shown := f.next, f.shown
	f.skip(o.Offset)
	if err := f.take(o); err != nil {
		return false, err
	}
	if f.broken != nil {
		return true, nil // what comes after it is no gap
	}
	next, err := o.Next()
	if err != nil {
		return false, err
	}
	f.skip(next)
	if f.next != began {
		f.quiet = 0
	}
	if f.dry++; f.shown != shown {
		f.dry = 0
	}
	f.idle = f.follow && (f.next == began || f.dry > 1)
	if !f.follow {
		return f.next >= f.until || f.broken != nil, nil
	}
	return f.over(ctx, began)
}

// take copies an answer's bytes.
func (f *follower) take(o *client.Output) error {
	buf := make([]byte, 64<<10)
	for {
		n, err := o.Read(buf)
		if n > 0 {
			f.missed.flush()
			f.shown += int64(n)
			if _, werr := f.to.Write(buf[:n]); werr != nil {
				f.broken = werr
				return nil
			}
			f.next += int64(n)
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// skip goes on at an offset; what is between is a gap.
func (f *follower) skip(to int64) {
	if to <= f.next {
		return
	}
	f.missed.add(f.next, to)
	f.next = to
}

// over tells whether an answer that ended did so for good: a service that stops
// ends its answers, too.
func (f *follower) over(ctx context.Context, began int64) (bool, error) {
	if f.broken != nil {
		return true, nil
	}
	p, err := f.client.Process(ctx, f.turn, f.process)
	if err != nil {
		return false, err
	}
	st := p.Output[f.stream]
	switch {
	case f.next < st.BytesTotal:
		f.quiet = 0
		return false, nil
	case st.EOF:
		return true, nil
	case p.Status.State == api.ProcessRunning || f.next != began:
		return false, nil
	}
	f.quiet++
	return f.quiet > 1, nil
}

// tellGap says on stderr what could not be read.
func (a *app) tellGap(stream api.StreamName, eol func() string) func(from, to int64) {
	return func(from, to int64) {
		fmt.Fprintf(a.stderr, "pinfold: %d bytes of %s are not kept any more (offset %d to %d)%s", to-from, stream, from, to, eol())
	}
}

func newline() string { return "\n" }
