package main

import (
	"context"
	"os"
	"syscall"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys"
)

// tty runs the command on a terminal of its own, which ours stands for.
func (r *runner) tty(ctx context.Context) error {
	t := stdinTerminal()
	sigs := catchSignals(syscall.SIGPIPE)
	defer sigs.stop()
	p, err := r.startEarly(ctx, sigs)
	if err != nil {
		return err
	}
	s := &screen{runner: r, term: t, p: p, feed: true, closes: true,
		streams: []shown{{name: api.StreamStdout, to: os.Stdout}}}
	p, err = s.run(ctx, sigs)
	if err != nil {
		return &exitError{exitService, err}
	}
	return r.end(ctx, p)
}

func terminalStdio(size *api.WinSize) api.Stdio {
	pty := api.Stream{Mode: api.StdioPTY}
	return api.Stdio{Stdin: pty, Stdout: pty, Stderr: pty, PTY: size}
}

// stopGrace is how long a command that is asked to stop has for what it wants
// to do first.
const stopGrace = 100 * time.Millisecond

// suspend stops the command and us, and has both go on together. In a session of
// its own TSTP stops nobody, so STOP comes after it.
func (r *runner) suspend(ctx context.Context, p api.Process, sigs *signals) {
	r.pass(ctx, p, caught(syscall.SIGTSTP))
	time.Sleep(stopGrace)
	r.pass(ctx, p, caught(syscall.SIGSTOP))
	_ = sys.StopSelf() // where it cannot, we go on
	r.pass(ctx, p, caught(syscall.SIGCONT))
}
