package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/client"
)

// patience is how long run keeps trying when the service has gone away: a
// restart or an upgrade takes less.
const patience = 30 * time.Second

// brief is how long it keeps trying when all that is left to do is to leave
// nothing behind: somebody may be waiting for the prompt.
const brief = 3 * time.Second

// runner runs one command for run.
type runner struct {
	*app
	client *client.Client
	turn   string // given, or begun
	own    bool   // begun by us
	stays  bool   // in the directory that we are in: it may have no name, nor let us in again
	begin  api.BeginRequest
	must   bool // be bound to us, where that is possible or not
	launch api.LaunchRequest
}

// detached starts the command and leaves it.
func (r *runner) detached(ctx context.Context) error {
	p, err := r.start(ctx)
	if err != nil {
		return err
	}
	return r.print(p, func(style) string { return fmt.Sprintf("%s %s\n", p.Turn, p.ID) })
}

// attached runs the command with our streams, and exits as it does.
func (r *runner) attached(ctx context.Context) error {
	r.launch.Stdio = api.Stdio{
		Stdin:  api.Stream{Mode: api.StdioPass, FD: 0},
		Stdout: api.Stream{Mode: api.StdioPass, FD: 1},
		Stderr: api.Stream{Mode: api.StdioPass, FD: 2},
	}
	sigs := catchSignals()
	defer sigs.stop()
	// A closed stream of ours is /dev/null by now: Go's runtime sees to that.
	p, err := r.startEarly(ctx, sigs, os.Stdin, os.Stdout, os.Stderr)
	if err != nil {
		return err
	}
	go sigs.forward(func(s caught) {
		if syscall.Signal(s) == syscall.SIGTSTP {
			r.suspend(ctx, p, sigs)
			return
		}
		r.pass(ctx, p, s)
	})
	p, err = r.wait(ctx, p)
	if err != nil {
		return &exitError{exitService, err}
	}
	return r.end(ctx, p)
}

// end finishes our own turn and exits as its command did.
func (r *runner) end(ctx context.Context, p api.Process) error {
	if r.own {
		r.finish(ctx)
	}
	if r.asJSON {
		// Standard output is the command's.
		if err := writeJSON(r.stderr, p); err != nil {
			return err
		}
	}
	return exitAs(p)
}

// startEarly is start, which a stopping signal ends.
func (r *runner) startEarly(ctx context.Context, sigs *signals, files ...*os.File) (api.Process, error) {
	early, cancel := sigs.cancelOnStop(ctx)
	p, err := r.start(early, files...)
	cancel()
	if s := sigs.early(); s != nil && err != nil {
		return p, status(128 + s.number())
	}
	return p, err
}

// start begins the turn, if it is ours to begin, and launches into it. A turn
// whose only command could not be started is ended again.
func (r *runner) start(ctx context.Context, files ...*os.File) (api.Process, error) {
	if r.turn == "" {
		if err := r.open(ctx); err != nil {
			return api.Process{}, &exitError{exitService, err}
		}
	}
	p, err := r.client.Launch(ctx, r.turn, r.launch, files...)
	if err == nil {
		return p, nil
	}
	if r.own {
		r.drop(ctx)
	}
	return p, launchError(err)
}

// open begins the turn. Where nobody can watch this process, and nobody has said that
// it is to be watched, the turn is not bound to it.
func (r *runner) open(ctx context.Context) error {
	t, err := r.client.Begin(ctx, r.begin)
	if !r.must && (errors.Is(err, api.ErrUnsupported) || errors.Is(err, api.ErrPeerUnverifiable)) && r.begin.Client.Bind != "" {
		r.warn([]string{"if this command is killed, what it runs goes on: " + err.Error()})
		r.begin.Client = api.Client{}
		t, err = r.client.Begin(ctx, r.begin)
	}
	if err == nil {
		r.turn, r.own = t.ID, true
	}
	return err
}

// drop ends a turn of ours whose only command could not be started, also when
// ctx has ended.
func (r *runner) drop(ctx context.Context) {
	now := int64(0)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	err := insistFor(ctx, brief, func(ctx context.Context) error {
		_, err := r.client.Abandon(ctx, r.turn, api.AbandonRequest{GraceMS: &now})
		return err
	})
	if err != nil {
		fmt.Fprint(r.stderr, r.stillOpen(err, ""))
	}
}

// stillOpen tells that our own turn could not be ended. One that is bound to us is
// ended by the service all the same, with what it holds: we go now.
func (r *runner) stillOpen(err error, try string) string {
	if r.begin.Client.Bind != "" {
		return fmt.Sprintf("pinfold: the turn %s is still open: %s; the service ends it, with what it left running, since this one has gone (--on-client-gone)\n", r.turn, clean(err.Error()))
	}
	if try != "" {
		try = "\n  try: " + try
	}
	return fmt.Sprintf("pinfold: the turn %s is still open: %s%s\n", r.turn, clean(err.Error()), try)
}

// launchError gives a failed launch the exit code that a shell gives it.
func launchError(err error) error {
	var e *api.Error
	if !errors.As(err, &e) || e.Code != api.CodeExecFailed {
		return &exitError{exitService, err}
	}
	if e.Details["errno_name"] == "ENOENT" {
		return &exitError{exitNoExec, err}
	}
	return &exitError{exitNotExec, err}
}

// pass sends a signal that we got to the command.
func (r *runner) pass(ctx context.Context, p api.Process, s caught) {
	err := insist(ctx, func(ctx context.Context) error {
		_, err := r.client.Signal(ctx, p.Turn, p.ID, api.SignalRequest{Signal: s.name(), Group: s.group()})
		return err
	})
	if err != nil {
		fmt.Fprintf(r.stderr, "pinfold: signal %s is not passed on: %s\n", s.name(), clean(err.Error()))
	}
}

// wait waits for the end of p, across restarts of the service.
func (r *runner) wait(ctx context.Context, p api.Process) (api.Process, error) {
	var last api.Process
	err := insist(ctx, func(ctx context.Context) (err error) {
		last, err = r.client.WaitProcess(ctx, p.Turn, p.ID)
		return err
	})
	if err == nil {
		return last, nil
	}
	if unreachable(err) {
		e := api.Errorf(api.CodeUnavailable, "the service went away and has not come back for %s: %v", patience, err)
		if r.begin.Client.Bind != "" {
			return p, e.WithRemedy("the command may still run: the service, started again, ends it, since this one has gone (--on-client-gone)")
		}
		return p, e.WithRemedy("the command may still run: start the service again, then pinfold wait %s %s", p.Turn, p.ID)
	}
	return p, fmt.Errorf("wait for %s of turn %s: %w", p.ID, p.Turn, err)
}

// finish ends our own turn once its command has ended, and tells what is left.
func (r *runner) finish(ctx context.Context) {
	var rec api.Receipt
	err := insist(ctx, func(ctx context.Context) (err error) {
		rec, err = r.client.Finish(ctx, r.turn, api.FinishRequest{})
		return err
	})
	var e *api.Error
	switch n := len(rec.Leftovers); {
	case errors.As(err, &e) && e.Code == api.CodeTurnOver:
		// Somebody ended the turn, and with it the command: that is told by its status.
	case err != nil:
		fmt.Fprint(r.stderr, r.stillOpen(err, "pinfold finish "+r.turn))
	case !rec.Complete:
		fmt.Fprintf(r.stderr, "pinfold: the turn's ending is not complete; see: pinfold receipt %s\n", r.turn)
	case n > 0:
		fmt.Fprintf(r.stderr, "pinfold: %s of this turn still running; list: pinfold tree %s; end: pinfold abandon --leftovers %s\n",
			count(n, "process"), r.turn, r.turn)
	}
}

// insist repeats call while the service cannot be reached, for as long as our
// patience lasts. A call that held for a while starts the count anew.
func insist(ctx context.Context, call func(context.Context) error) error {
	return insistFor(ctx, patience, call)
}

func insistFor(ctx context.Context, patience time.Duration, call func(context.Context) error) error {
	var giveUp time.Time
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		began := time.Now()
		err := call(ctx)
		if err == nil || !unreachable(err) {
			return err
		}
		if giveUp.IsZero() || wasThere(time.Since(began), err) {
			giveUp = time.Now().Add(patience)
		}
		if ctx.Err() != nil || time.Now().Add(pause).After(giveUp) {
			return err
		}
		time.Sleep(pause)
	}
}

// wasThere tells that the service had a call that failed, and for a while: it has
// gone away anew. One that was not even connected to is no such thing.
func wasThere(held time.Duration, err error) bool {
	var e *api.Error
	return held > time.Second && !(errors.As(err, &e) && e.Details["socket"] != "")
}

// unreachable tells errors of the way to the service from the service's own.
func unreachable(err error) bool {
	var e *api.Error
	return !errors.As(err, &e) || e.Code == api.CodeUnavailable
}
