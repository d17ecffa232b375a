package main

import "github.com/spf13/cobra"

func (a *app) freezeCmd() *cobra.Command {
	var epoch int64
	c := &cobra.Command{
		Use:   "freeze TURN",
		Short: "Stop every process of a turn, and its clocks",
		Long: `Stop every process of a turn, its clocks, and its processes' deadlines, until
"pinfold thaw". A frozen turn can be ended; nothing can be launched in it. Jobs
that were made of its processes run on.`,
		Args: exactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			t, err := a.client().Freeze(c.Context(), args[0], epoch)
			if err != nil {
				return err
			}
			return a.print(t, func(style) string { return "" })
		},
	}
	c.Flags().Int64Var(&epoch, "epoch", 0, "refuse unless the turn has this epoch")
	return c
}
