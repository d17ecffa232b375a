package main

import (
	"bytes"
	"context"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"pinfold.dev/internal/sys"
)

// caught is a signal that run got.
type caught syscall.Signal

func (c caught) number() int { return int(c) }

// name is the number: every host has its own table of them, and the service
// is on this one.
func (c caught) name() string { return strconv.Itoa(int(c)) }

// stops tells whether the signal ends what does not catch it, when it comes
// before there is a command to pass it to.
func (c caught) stops() bool {
	return slices.Contains([]syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT}, syscall.Signal(c))
}

// group tells whether a terminal sends it to all of a job: so does run.
func (c caught) group() bool {
	return slices.Contains([]syscall.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGWINCH, syscall.SIGTSTP, syscall.SIGSTOP, syscall.SIGCONT}, syscall.Signal(c))
}

// signals are those that run passes on. Before there is a command to pass them
// to, one that would stop it stops run.
type signals struct {
	ch    chan os.Signal
	done  chan struct{}
	alone time.Duration // suspendAlone
	first atomic.Pointer[caught]
	kept  []caught // came before there was a command, in order; forward has them
}

// passedOn are the signals that a command gets when run does.
func passedOn() []syscall.Signal {
	return []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
		syscall.SIGWINCH, syscall.SIGTSTP, syscall.SIGCONT}
}

// catchSignals catches them, but for those that whoever started us wanted
// ignored: HUP under nohup, INT and QUIT in a script's background.
func catchSignals(more ...syscall.Signal) *signals {
	s := &signals{ch: make(chan os.Signal, 64), done: make(chan struct{}), alone: suspendAlone}
	ignored := ignoredAtStart()
	for _, sig := range append(passedOn(), more...) {
		if !ignored(sig) {
			signal.Notify(s.ch, sig)
		}
	}
	return s
}

// ignoredAtStart tells which signals our parent wanted ignored. Go's runtime
// keeps INT and HUP as they were, and those that it leaves alone; a shell that
// ignores INT for us ignores QUIT as well.
func ignoredAtStart() func(syscall.Signal) bool {
	mask, _ := strconv.ParseUint(selfStatus("SigIgn"), 16, 64)
	return func(sig syscall.Signal) bool {
		if sig == syscall.SIGQUIT {
			return signal.Ignored(syscall.SIGINT)
		}
		return signal.Ignored(sig) || mask&(1<<(sig-1)) != 0
	}
}

// selfStatus is a field of /proc/self/status; empty: it is not there.
func selfStatus(field string) string {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return ""
	}
	for line := range bytes.Lines(b) {
		if v, ok := bytes.CutPrefix(line, []byte(field+":")); ok {
			return string(bytes.TrimSpace(v))
		}
	}
	return ""
}

func (s *signals) stop() {
	signal.Stop(s.ch)
	close(s.done)
}

// drain takes, after stop, what came meanwhile: to be found by early.
func (s *signals) drain() {
	for {
		select {
		case sig := <-s.ch:
			n, _ := sig.(syscall.Signal)
			c := caught(n)
			if c.stops() {
				s.first.CompareAndSwap(nil, &c)
			}
			s.kept = append(s.kept, c)
		default:
			return
		}
	}
}

// suspendAlone is how long a TSTP waits for the command, which is to stop with us,
// to be known. Where the service does not answer, a terminal is not held up longer.
const suspendAlone = 500 * time.Millisecond

// cancelOnStop returns a context that a stopping signal ends. After the
// returned function has been called, signals are left for forward, with those
// that came before: the command may run before we are told that it does.
func (s *signals) cancelOnStop(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	over, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		var alone <-chan time.Time // when we stop without a command
		for {
			select {
			case <-over:
				return
			case <-alone:
				alone = nil
				s.kept = slices.DeleteFunc(s.kept, func(c caught) bool { return syscall.Signal(c) == syscall.SIGTSTP })
				_ = sys.StopSelf()
			case sig := <-s.ch:
				n, _ := sig.(syscall.Signal)
				c := caught(n)
				if n == syscall.SIGTSTP && alone == nil {
					alone = time.After(s.alone)
				}
				if len(s.kept) < cap(s.ch) {
					s.kept = append(s.kept, c)
				}
				if c.stops() {
					s.first.CompareAndSwap(nil, &c)
					cancel()
				}
			}
		}
	}()
	return ctx, func() {
		close(over)
		<-gone
		cancel()
	}
}

// early is the signal that came before there was a command, if one did.
func (s *signals) early() *caught { return s.first.Load() }

// forward hands each signal to pass, in order, until stop. One that came as
// the command was being started is not lost.
func (s *signals) forward(pass func(caught)) {
	for _, c := range s.kept {
		pass(c)
	}
	for {
		select {
		case <-s.done:
			return
		case sig := <-s.ch:
			if n, ok := sig.(syscall.Signal); ok {
				pass(caught(n))
			}
		}
	}
}
