package main

import (
	"time"

	"github.com/spf13/cobra"

	"pinfold.dev/api"
)

func (a *app) touchCmd() *cobra.Command {
	var epoch int64
	c := &cobra.Command{
		Use:   "touch TURN",
		Short: "Say that a turn is wanted: renew its lease",
		Long: `Say that a turn is wanted. Its lease is renewed, and it is not idle. The clocks
are printed as they stand then.`,
		Args: exactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			ans, err := a.client().Touch(c.Context(), args[0], epoch)
			if err != nil {
				return err
			}
			return a.print(ans, func(st style) string { return renderClocks(ans.Clocks, st) })
		},
	}
	c.Flags().Int64Var(&epoch, "epoch", 0, "refuse unless the turn has this epoch")
	return c
}

func renderClocks(clocks []api.Clock, st style) string {
	if len(clocks) == 0 {
		return "no clocks\n"
	}
	t := table{head: []string{"CLOCK", "LIMIT", "LEFT", "ENDS"}, right: map[int]bool{1: true, 2: true}}
	for _, k := range clocks {
		t.add(string(k.Name), ageMS(k.LimitMS), ageMS(k.LeftMS), dueText(k))
	}
	return t.render(st)
}

func dueText(k api.Clock) string {
	if k.DueAt == nil {
		return "stands still"
	}
	return k.DueAt.Local().Format(time.DateTime)
}
