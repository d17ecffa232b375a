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
1 abandoned or lost; others as in "pinfold help exit-codes". 124 when --timeout
ran out.`,
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
			var err error
			if len(args) == 2 {
				err = a.waitProcess(ctx, args[0], args[1])
			} else {
				err = a.waitTurn(ctx, args[0])
			}
			if errors.Is(context.Cause(ctx), errWaitTimeout) {
				return &exitError{exitTimeout, fmt.Errorf("still running after %s", timeout)}
			}
			return err
		},
	}
	c.Flags().DurationVar(&timeout, "timeout", 0, "give up after this time (exit status 124)")
	return c
}

var errWaitTimeout = errors.New("wait timed out")

func (a *app) waitProcess(ctx context.Context, turn, proc string) error {
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
		return &exitError{exitService, err}
	}
	if a.asJSON {
		if err := writeJSON(a.stdout, p); err != nil {
			return err
		}
	}
	return exitAs(p)
}

// exitAs exits as the process did. A status that nobody saw is no code: it is
// told as Pinfold's failure.
func exitAs(p api.Process) error {
	switch p.Status.State {
	case api.ProcessExited, api.ProcessSignaled, api.ProcessOOM:
		return status(p.Status.ShellCode())
	case api.ProcessLost:
		return &exitError{exitService, fmt.Errorf("process %s ended, and nobody saw its status: %s", p.ID, p.Status.Why)}
	}
	return &exitError{exitService, fmt.Errorf("process %s: the service says %q", p.ID, p.Status.State)}
}

func (a *app) waitTurn(ctx context.Context, turn string) error {
	cl := a.client()
	t, err := cl.Turn(ctx, turn)
	if err == nil {
		err = insist(ctx, func(ctx context.Context) (err error) {
			t, err = cl.WaitTurn(ctx, turn)
			return err
		})
	}
	if err != nil {
		return err
	}
	if err := a.print(t, func(style) string { return string(t.State) + "\n" }); err != nil {
		return err
	}
	if t.State != api.StateFinished {
		return status(exitNo)
	}
	return nil
}
