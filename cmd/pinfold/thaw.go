package main

import "github.com/spf13/cobra"

func (a *app) thawCmd() *cobra.Command {
	var epoch int64
	c := &cobra.Command{
		Use:   "thaw TURN",
		Short: "Let a frozen turn go on",
		Long:  `Let the processes of a frozen turn go on, and its clocks where they stood.`,
		Args:  exactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			t, err := a.client().Thaw(c.Context(), args[0], epoch)
			if err != nil {
				return err
			}
			return a.print(t, func(style) string { return "" })
		},
	}
	c.Flags().Int64Var(&epoch, "epoch", 0, "refuse unless the turn has this epoch")
	return c
}
