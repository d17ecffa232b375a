package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"pinfold.dev/api"
)

func (a *app) gcCmd() *cobra.Command {
	var req api.GCRequest
	c := &cobra.Command{
		Use:   "gc",
		Short: "Remove what is left over of turns, and is ours",
		Long: `Remove empty cgroups that bear the service's mark and belong to no turn,
directories of turns that never had a record, and records that cannot be read and
of whose turn nothing is left. It tells why, for each, and why it leaves the rest.
Turns of other instances in the same place, whose service does not run, are told
with what to do about them, and left alone. Nobody is signalled.

Exit status: 0 when what was to go has gone; 1 otherwise; others as in
"pinfold help exit-codes".`,
		Example: `  pinfold gc --dry-run`,
		Args:    exactArgs(0),
		RunE: func(c *cobra.Command, _ []string) error {
			g, err := a.client().GC(c.Context(), req)
			if err != nil {
				return err
			}
			if err := a.print(g, func(st style) string { return renderLeftOver(g.LeftOver, st) }); err != nil {
				return err
			}
			for _, l := range g.LeftOver {
				if l.Remove && !l.Removed && !req.DryRun {
					return status(exitNo)
				}
			}
			return nil
		},
	}
	c.Flags().BoolVar(&req.DryRun, "dry-run", false, "only tell what would be removed")
	return c
}

func renderLeftOver(all []api.LeftOver, st style) string {
	if len(all) == 0 {
		return "nothing is left over\n"
	}
	var b strings.Builder
	for _, l := range all {
		what := "kept"
		switch {
		case l.Removed:
			what = "removed"
		case l.Remove:
			what = "to remove"
		}
		fmt.Fprintf(&b, "%s %s %s\n    %s\n", st.paint(bold, what), l.Kind, clean(l.Path), clean(l.Why))
	}
	return b.String()
}
