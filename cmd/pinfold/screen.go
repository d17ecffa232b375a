package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys"
)

// screen is our terminal, or whatever stands for it, on a process: what is typed
// goes there, what it writes comes here.
type screen struct {
	*runner
	term    *terminal
	p       api.Process
	streams []shown
	feed    bool // standard input goes to the process
	closes  bool // the end of standard input is the end of the process's
	edit    func([]byte) ([]byte, bool)
	watch   bool // signals are ours, not the process's

	resizes chan struct{}
	hurry   chan struct{} // closed: nobody waits for output any more
	leave   context.CancelFunc
	left    atomic.Bool  // by the keys for it
	stopped atomic.Int32 // with watch: the signal that ended us
	ended   atomic.Bool
}

// shown is a kept stream, and where it is shown from some offset on.
type shown struct {
	name api.StreamName
	to   io.Writer
	from int64
}

// run returns when the process has ended and what it wrote is shown, or when we
// leave it. The terminal is raw meanwhile, and as it was afterwards.
func (s *screen) run(ctx context.Context, sigs *signals) (api.Process, error) {
	defer s.term.guard()
	defer s.term.leave()
	ctx, s.leave = context.WithCancel(ctx)
	defer s.leave()
	s.resizes, s.hurry = make(chan struct{}, 1), make(chan struct{})
	if s.p.Terminal && s.feed {
		if err := s.term.raw(); err != nil {
			fmt.Fprintf(s.stderr, "pinfold: %v\n", err)
		}
	}
	s.aside(func() { sigs.forward(func(c caught) { s.signal(ctx, c, sigs) }) })
	s.aside(func() { s.resize(ctx) })
	s.resizeSoon() // it may have changed since, or be another than before
	over := make(chan error, 1)
	s.aside(func() { over <- s.show(ctx) })
	if s.feed {
		s.aside(func() { s.take(ctx) })
	}
	p, err := s.wait(ctx, s.p)
	s.ended.Store(true)
	if err != nil {
		return p, err
	}
	select {
	case err = <-over:
	case <-s.hurry:
	}
	return p, err
}

// aside runs f beside us.
func (s *screen) aside(f func()) {
	go func() {
		defer s.term.guard()
		f()
	}()
}

// show shows all streams.
func (s *screen) show(ctx context.Context) error {
	var wg sync.WaitGroup
	errs := make([]error, len(s.streams))
	for i, st := range s.streams {
		wg.Add(1)
		s.aside(func() {
			defer wg.Done()
			errs[i] = s.showOne(ctx, st)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (s *screen) showOne(ctx context.Context, st shown) error {
	drain := drainTime
	f := follower{client: s.client, turn: s.p.Turn, process: s.p.ID, stream: st.name, to: st.to, next: st.from,
		follow: true, drain: &drain, gap: s.tellGap(st.name, s.term.eol)}
	err := f.copy(ctx)
	switch {
	case err == nil, ctx.Err() != nil:
		return nil
	case f.broken == nil:
		return fmt.Errorf("show %s of %s in turn %s: %w", st.name, s.p.ID, s.p.Turn, err)
	case !errors.Is(err, syscall.EPIPE): // which is told by nobody
		fmt.Fprintf(s.stderr, "pinfold: what the command writes is not shown: %s%s", clean(err.Error()), s.term.eol())
	}
	switch {
	case s.watch:
		s.stopped.Store(int32(syscall.SIGPIPE))
		s.leave()
	default: // our screen is gone: the command hears what a terminal's end tells
		s.pass(ctx, s.p, caught(syscall.SIGHUP))
	}
	return nil
}

// take passes standard input on.
func (s *screen) take(ctx context.Context) {
	f := feeder{client: s.client, turn: s.p.Turn, process: s.p.ID, lossy: s.term.real}
	err := f.copy(ctx, os.Stdin, s.closes, s.edit)
	if s.left.Load() {
		s.leave()
	}
	if err != nil && ctx.Err() == nil && !s.ended.Load() {
		fmt.Fprintf(s.stderr, "pinfold: input is not passed on: %s%s", clean(err.Error()), s.term.eol())
	}
}

// signal does with a signal what is to be done: some are about our own
// terminal, the others are the command's.
func (s *screen) signal(ctx context.Context, c caught, sigs *signals) {
	switch n := syscall.Signal(c); {
	case n == syscall.SIGPIPE: // the write tells
	case n == syscall.SIGWINCH:
		s.resizeSoon()
	case n == syscall.SIGTSTP:
		raw := s.term.restore()
		_ = sys.StopSelf() // where it cannot, we go on
		s.comeBack(raw)
	case n == syscall.SIGCONT:
		s.comeBack(s.term.isRaw())
	case s.ended.Load():
		if c.stops() {
			s.stopWaiting()
		}
	case s.watch:
		if c.stops() {
			s.stopped.Store(int32(c))
			s.leave()
		}
	default:
		s.pass(ctx, s.p, c)
	}
}

func (s *screen) stopWaiting() {
	select {
	case <-s.hurry:
	default:
		close(s.hurry)
	}
}

// comeBack takes the terminal again after we were stopped.
func (s *screen) comeBack(raw bool) {
	if !raw {
		return
	}
	if err := s.term.raw(); err != nil {
		fmt.Fprintf(s.stderr, "pinfold: %v%s", err, s.term.eol())
	}
	s.resizeSoon()
}

func (s *screen) resizeSoon() {
	select {
	case s.resizes <- struct{}{}:
	default:
	}
}

// resize gives the process's terminal the size of ours, each time that it
// changes.
func (s *screen) resize(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.resizes:
		}
		size := s.term.size()
		if size == nil || !s.p.Terminal || !s.feed || s.ended.Load() {
			continue
		}
		_ = insist(ctx, func(ctx context.Context) error {
			_, err := s.client.Resize(ctx, s.p.Turn, s.p.ID, api.ResizeRequest{Rows: size.Rows, Cols: size.Cols})
			return err // a terminal that was closed has no size to be wrong
		})
	}
}
