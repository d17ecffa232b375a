package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"pinfold.dev/api"
)

func (a *app) waitCmd() *cobra.Command {
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "wait TURN [PROCESS]",
		Short: "Wait until a process, or a whole turn, has ended",
		Long: `Wait until a process has ended and exit as it did; or, without PROCESS, until
the turn has ended.

Exit status: of a process, its own code, 128+n when signal n ended it, 125 when
nobody knows its status, or Pinfold could not tell it. Of a turn: 0 finished;
1 abandoned, unkillable or lost; others as in "pinfold help exit-codes". 124 when
--timeout ran out before an end was seen.`,
		Example: `  pinfold wait k3v9 p1
  pinfold wait --timeout 30s k3v9`,
		Args: func(c *cobra.Command, args []string) error {
			return exactArgs(min(max(len(args), 1), 2))(c, args)
		},
		RunE: func(c *cobra.Command, args []string) error {
			ctx := c.Context()
			if timeout > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeoutCause(ctx, timeout, errWaitTimeout)
				defer cancel()
			}
			if len(args) == 2 {
				return a.waitProcess(ctx, args[0], args[1], timeout)
			}
			return a.waitTurn(ctx, args[0], timeout)
		},
	}
	c.Flags().DurationVar(&timeout, "timeout", 0, "give up after this time (exit status 124)")
	return c
}

var errWaitTimeout = errors.New("wait timed out")

func (a *app) waitProcess(ctx context.Context, turn, proc string, timeout time.Duration) error {
	var p api.Process
	cl := a.client()
	// Patience is for a service that goes away while we wait, not for none.
	_, err := cl.Process(ctx, turn, proc)
	if err == nil {
		err = insist(ctx, func(ctx context.Context) (err error) {
			p, err = cl.WaitProcess(ctx, turn, proc)
			return err
		})
	}
	if err != nil {
		return waitFailed(ctx, timeout, &exitError{exitService, err})
	}
	if a.asJSON {
		if err := writeJSON(a.stdout, p); err != nil {
			return err
		}
	}
	return exitAs(p)
}

// waitFailed is err, or that the time was over. All that is known then is that no
// end was seen; where the service was away, that is told as well.
func waitFailed(ctx context.Context, timeout time.Duration, err error) error {
	if !errors.Is(context.Cause(ctx), errWaitTimeout) {
		return err
	}
	var e *api.Error
	if !errors.As(err, &e) || e.Code == api.CodeTimeout {
		return api.Errorf(api.CodeTimeout, "no end was seen within %s", timeout).
			WithRemedy("wait again, or for longer: what runs goes on")
	}
	if e.Code != api.CodeUnavailable {
		return err
	}
	return &exitError{exitTimeout, fmt.Errorf("no end was seen within %s: %w", timeout, err)}
}

// exitAs exits as the process did.
func exitAs(p api.Process) error { return exitWith("process "+p.ID, p.Status) }

// exitWith exits as a status says. One that nobody saw is no code: it is told as
// Pinfold's failure.
func exitWith(what string, s api.Status) error {
	switch s.State {
	case api.ProcessExited, api.ProcessSignaled, api.ProcessOOM:
		return status(s.ShellCode())
	case api.ProcessLost:
		return &exitError{exitService, fmt.Errorf("%s ended, and nobody saw its status: %s", what, s.Why)}
	}
	return &exitError{exitService, fmt.Errorf("%s: the service says %q", what, s.State)}
}

func (a *app) waitTurn(ctx context.Context, turn string, timeout time.Duration) error {
	cl := a.client()
	t, err := cl.Turn(ctx, turn)
	if err == nil {
		err = insist(ctx, func(ctx context.Context) (err error) {
			t, err = cl.WaitTurn(ctx, turn)
			return err
		})
	}
	if err != nil {
		return waitFailed(ctx, timeout, err)
	}
	if err := a.print(t, func(style) string { return string(t.State) + "\n" }); err != nil {
		return err
	}
	if t.State != api.StateFinished {
		return status(exitNo)
	}
	return nil
}
