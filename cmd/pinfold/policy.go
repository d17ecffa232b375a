package main

import (
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"pinfold.dev/api"
)

func (a *app) policyCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "policy [TURN]",
		Short: "Show what happens to processes and jobs at each ending",
		Long: `Show, for each reason that a turn is ended for, what happens to its processes
and to its jobs: the table of a turn that says nothing, or that of one turn.

end ends them; keep leaves them running: processes as leftovers, held and listed.`,
		Args: atMostOne,
		RunE: func(c *cobra.Command, args []string) error {
			p, err := a.client().Policy(c.Context())
			if err != nil {
				return err
			}
			if len(args) == 1 {
				t, err := a.client().Turn(c.Context(), args[0])
				if err != nil {
					return err
				}
				p.Policy, p.Grade = ofTurn(p.Policy, t), t.Grade
			}
			return a.print(p, func(st style) string { return renderPolicy(p.Policy, st) })
		},
	}
}

// ofTurn is a turn's table: what it says of leftovers stands above the row for
// finished.
func ofTurn(all api.EndPolicy, t api.Turn) api.EndPolicy {
	p := all.With(t.Policy)
	r := p[api.ReasonFinished]
	if r.Processes = api.FateKeep; t.Leftovers == api.LeftoversReap {
		r.Processes = api.FateEnd
	}
	p[api.ReasonFinished] = r
	return p
}

func renderPolicy(p api.EndPolicy, st style) string {
	t := table{head: []string{"REASON", "PROCESSES", "JOBS"}}
	for _, why := range slices.Sorted(maps.Keys(p)) {
		t.add(string(why), string(p[why].Processes), string(p[why].Jobs))
	}
	return t.render(st)
}

func atMostOne(c *cobra.Command, args []string) error {
	if len(args) > 1 {
		return usageError(c, "%s takes no argument %q", c.Name(), args[1])
	}
	return nil
}
