package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

func (a *app) takeCmd() *cobra.Command {
	var epoch int64
	c := &cobra.Command{
		Use:   "take TURN",
		Short: "Give a turn a new client and a new epoch, and print that",
		Long: `Give a turn a new client and a new epoch, and print the epoch. Calls that carry
an older epoch are refused from then on, so what its former client does late
touches nothing.

A turn that is bound to a connection has its time for somebody to hold it, again.
One that is bound to a process is bound to this command, which ends at once:
take such a turn from the process itself, through the API.`,
		Args: exactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			t, err := a.client().Take(c.Context(), args[0], epoch)
			if err != nil {
				return err
			}
			return a.print(t, func(style) string { return fmt.Sprintf("%d\n", t.Epoch) })
		},
	}
	c.Flags().Int64Var(&epoch, "epoch", 0, "refuse unless the turn has this epoch: of two that take it, one does")
	return c
}
