package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"pinfold.dev/api"
)

func (a *app) signalCmd() *cobra.Command {
	var epoch int64
	var group bool
	c := &cobra.Command{
		Use:   "signal TURN PROCESS SIGNAL",
		Short: "Send a signal to a process that was started in a turn",
		Long: `Send a signal to one process that was started through Pinfold, through its
handle: never to a stranger that has got its number since.

Exit status: 0 sent; 1 it had ended already; others as in
"pinfold help exit-codes".`,
		Example: `  pinfold signal k3v9 p1 TERM
  pinfold signal k3v9 p2 USR1`,
		Args: exactArgs(3),
		RunE: func(c *cobra.Command, args []string) error {
			ans, err := a.client().Signal(c.Context(), args[0], args[1], api.SignalRequest{Signal: args[2], Group: group, Epoch: epoch})
			if err != nil {
				return err
			}
			err = a.print(ans, func(style) string {
				if ans.Verdict == api.VerdictOwned {
					return ""
				}
				return fmt.Sprintf("%s not sent to %s: %s\n", ans.Signal, ans.Process, ans.Verdict)
			})
			if err == nil && ans.Verdict != api.VerdictOwned {
				return status(exitNo)
			}
			return err
		},
	}
	c.Flags().BoolVarP(&group, "group", "g", false, "send it to the process's group, as a terminal does")
	c.Flags().Int64Var(&epoch, "epoch", 0, "refuse unless the turn has this epoch")
	return c
}
