package main

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
)

// caught is a signal that run got.
type caught syscall.Signal

func (c caught) number() int { return int(c) }

// name is the number: every host has its own table of them, and the service
// is on this one.
func (c caught) name() string { return strconv.Itoa(int(c)) }

// signals are those that run passes on. Before there is a command to pass them
// to, one that would stop it stops run.
type signals struct {
	ch    chan os.Signal
	done  chan struct{}
	first atomic.Pointer[caught]
}

func catchSignals() *signals {
	s := &signals{ch: make(chan os.Signal, 32), done: make(chan struct{})}
	signal.Notify(s.ch, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	return s
}

func (s *signals) stop() {
	signal.Stop(s.ch)
	close(s.done)
}

// cancelOnStop returns a context that a stopping signal ends. After the
// returned function has been called, signals are left for forward.
func (s *signals) cancelOnStop(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	over, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		for {
			select {
			case <-over:
				return
			case sig := <-s.ch:
				n, _ := sig.(syscall.Signal)
				if !slices.Contains([]syscall.Signal{syscall.SIGUSR1, syscall.SIGUSR2}, n) {
					c := caught(n)
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
	if c := s.early(); c != nil {
		pass(*c)
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
