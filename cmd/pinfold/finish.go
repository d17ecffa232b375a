package main

import (
	"github.com/spf13/cobra"

	"pinfold.dev/api"
)

func (a *app) finishCmd() *cobra.Command {
	var leftovers, grace string
	var epoch int64
	c := &cobra.Command{
		Use:   "finish TURN",
		Short: "Say that a turn's work is done",
		Long: `Say that a turn's work is done, and print its receipt.

What still runs is kept, held and listed (--leftovers keep), or ended
(--leftovers reap). To end kept leftovers later: pinfold abandon --leftovers TURN.

Exit status: 0 when the receipt is complete, also with leftovers kept;
1 when it is not; others as in "pinfold help exit-codes".`,
		Args: exactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			req := api.FinishRequest{Epoch: epoch}
			var err error
			if req.Leftovers, err = leftoverPolicy(c, leftovers); err != nil {
				return err
			}
			if req.GraceMS, err = graceMS(c, grace); err != nil {
				return err
			}
			r, err := a.client().Finish(c.Context(), args[0], req)
			return a.ended(r, err)
		},
	}
	c.Flags().StringVar(&leftovers, "leftovers", "", "keep or reap what still runs (default the turn's policy)")
	c.Flags().StringVar(&grace, "grace", "", "with reap: time between TERM and KILL (default the turn's)")
	c.Flags().Int64Var(&epoch, "epoch", 0, "refuse unless the turn has this epoch")
	return c
}

// ended prints a receipt, and exits by what it says.
func (a *app) ended(r api.Receipt, err error) error {
	if err != nil {
		return err
	}
	if err := a.print(r, func(st style) string { return renderReceipt(r, st) }); err != nil {
		return err
	}
	if !r.Complete {
		return status(exitNo)
	}
	return nil
}
