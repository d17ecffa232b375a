package main

import (
	"github.com/spf13/cobra"

	"pinfold.dev/api"
)

func (a *app) abandonCmd() *cobra.Command {
	var reason, grace string
	var epoch int64
	var leftovers bool
	c := &cobra.Command{
		Use:   "abandon TURN",
		Short: "End a turn: every process of it, nothing else",
		Long: `End a turn: every process of it, and nothing else. Waits until the turn is
seen empty, and prints the receipt. A second call prints the first receipt.

Exit status: 0 only when the receipt is complete; 1 when something could not be
ended, or not be seen, or when what the turn left running is still held, since it
had finished before or its policy keeps processes; others as in "pinfold help exit-codes".`,
		Example: `  pinfold abandon k3v9
  pinfold abandon --grace 0 k3v9          # KILL at once
  pinfold abandon --leftovers k3v9        # what a finished turn left running`,
		Args: exactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			req := api.AbandonRequest{Reason: api.Reason(reason), Epoch: epoch, Leftovers: leftovers}
			var err error
			if req.GraceMS, err = graceMS(c, grace); err != nil {
				return err
			}
			r, err := a.client().Abandon(c.Context(), args[0], req)
			if err := a.ended(r, err); err != nil {
				return err
			}
			return stillHeld(r)
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "recorded in the receipt: stop (default), superseded, idle, wall, client_gone, lease_expired, limit, operator")
	c.Flags().StringVar(&grace, "grace", "", "time between TERM and KILL; 0 kills at once (default the turn's)")
	c.Flags().Int64Var(&epoch, "epoch", 0, "refuse unless the turn has this epoch")
	c.Flags().BoolVar(&leftovers, "leftovers", false, "end what a finished turn left running")
	return c
}

// stillHeld tells that leftovers run on, of a turn that had finished before or
// whose policy keeps them.
func stillHeld(r api.Receipt) error {
	if len(r.Leftovers) == 0 || r.LeftoversEndedAt != nil {
		return nil
	}
	what := "had finished before"
	if r.State == api.StateAbandoned {
		what = "is abandoned by a rule that keeps processes"
	}
	return &exitError{exitNo, api.Errorf(api.CodeTurnOver, "turn %s %s, and what it left running is still held", r.Turn, what).
		WithRemedy("pinfold abandon --leftovers %s", r.Turn)}
}
