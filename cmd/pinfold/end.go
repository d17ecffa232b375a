package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"pinfold.dev/api"
)

func (a *app) endCmd() *cobra.Command {
	var req api.EndProcessRequest
	var grace string
	c := &cobra.Command{
		Use:   "end TURN PROCESS",
		Short: "End one process of a turn with all that it has forked",
		Long: `End one process that was started in a turn, with all that it has forked. The
turn goes on. With --descendants the process itself is spared: a shell that keeps
its directory and environment while its command goes. Where turns have no cgroup,
a descendant that has lost its parent is not told apart: it ends with the turn.

Exit status: 0 all are seen gone; 1 something survives; others as in "pinfold
help exit-codes".`,
		Example: `  pinfold end k3v9 p2
  pinfold end k3v9 p1 --descendants --grace 0
  pinfold end k3v9 p1 --dry-run`,
		Args: exactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			var err error
			if req.GraceMS, err = graceMS(c, grace); err != nil {
				return err
			}
			r, err := a.client().EndProcess(c.Context(), args[0], args[1], req)
			if err != nil {
				return err
			}
			if err := a.print(r, func(st style) string { return renderEnd(r, req.DryRun, st) }); err != nil {
				return err
			}
			if !r.Complete && !req.DryRun {
				return status(exitNo)
			}
			return nil
		},
	}
	fs := c.Flags()
	fs.BoolVar(&req.DescendantsOnly, "descendants", false, "spare the process itself")
	fs.StringVar(&grace, "grace", "", "time between TERM and KILL; 0 kills at once (default the turn's)")
	fs.BoolVar(&req.DryRun, "dry-run", false, "list what would be ended, and touch nothing")
	fs.Int64Var(&req.Epoch, "epoch", 0, "refuse unless the turn has this epoch")
	return c
}

func renderEnd(r api.EndProcessAnswer, dry bool, st style) string {
	if dry {
		return targetsText(r.Targets, st)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d ended; %s is %s\n", clean(r.Turn), r.Ended, clean(r.Process), statusText(r.Status))
	b.WriteString(survivorsText(r.Survivors, st))
	return b.String()
}
