package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pinfold.dev/api"
)

func (a *app) whyCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "why TURN",
		Short: "Tell why a turn is as it is, and what would end it",
		Long: `Tell why a turn is in its state, in words: who ended it and for what, what keeps
it open, what would end it and when, which processes it holds and on what
evidence, which of them others use, and which use daemons outside the turn.

Exit status: see "pinfold help exit-codes".`,
		Example: `  pinfold why k3v9
  pinfold why k3v9 --json | jq .ends`,
		Args: exactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			w, err := a.client().Why(c.Context(), args[0])
			if err != nil {
				return err
			}
			return a.print(w, func(st style) string { return renderWhy(w, st) })
		},
	}
}

func renderWhy(w api.Why, st style) string {
	var b strings.Builder
	fmt.Fprintf(&b, "turn %s is %s", st.paint(bold, clean(w.Turn)), w.State)
	if w.Reason != "" {
		fmt.Fprintf(&b, " (%s)", clean(string(w.Reason)))
	}
	b.WriteString("\n")
	for _, s := range w.Because {
		fmt.Fprintf(&b, "  %s\n", clean(s))
	}
	if len(w.Ends) > 0 {
		b.WriteString("what would end it\n")
		t := table{indent: "  "}
		for _, e := range w.Ends {
			t.add(string(e.Reason), e.When)
		}
		b.WriteString(t.render(st))
	}
	for _, d := range w.Degraded {
		fmt.Fprintf(&b, "note: %s\n", clean(d))
	}
	if len(w.Jobs) > 0 {
		fmt.Fprintf(&b, "jobs: %s\n", clean(strings.Join(w.Jobs, " ")))
	}
	if len(w.Targets) > 0 {
		b.WriteString("what it holds, and what an ending would do\n" + targetsText(w.Targets, st))
	}
	return b.String()
}

func targetsText(gs []api.Target, st style) string {
	t := table{indent: "  ", head: []string{"PID", "PROCESS", "AGE", "MEMORY", "VERDICT", "WOULD BE", "COMMAND", "EVIDENCE"}, right: map[int]bool{0: true, 2: true, 3: true}}
	for _, g := range gs {
		what := command(g.Argv)
		if len(g.Argv) == 0 {
			what = g.Comm
		}
		evidence := g.Evidence
		if g.Why != "" {
			evidence += "; " + g.Why
		}
		t.add(num(g.PID), g.Process, age(time.Duration(g.AgeMS)*time.Millisecond), size(g.RSS), string(g.Verdict), g.Would, what, evidence)
	}
	return t.render(st)
}

func renderPlan(p api.Plan, st style) string {
	var b strings.Builder
	fmt.Fprintf(&b, "turn %s is %s", st.paint(bold, clean(p.Turn)), p.State)
	if p.Mechanism != "none" {
		fmt.Fprintf(&b, "; to end it for the reason %s would use %s", p.Reason, clean(p.Mechanism))
		if p.GraceMS > 0 {
			fmt.Fprintf(&b, " after a grace of %s", time.Duration(p.GraceMS)*time.Millisecond)
		}
	}
	b.WriteString(". Nothing was touched.\n")
	if len(p.Targets) > 0 {
		b.WriteString(targetsText(p.Targets, st))
	}
	for _, s := range p.Servers {
		fmt.Fprintf(&b, "  process %d (%s) serves %s to %d processes outside the turn\n", s.PID, clean(s.Comm), clean(s.Socket), len(s.Clients))
	}
	for _, s := range p.ServedBy {
		fmt.Fprintf(&b, "  %s\n", clean(s.Words()))
	}
	for _, n := range p.Notes {
		fmt.Fprintf(&b, "note: %s\n", clean(n))
	}
	return b.String()
}
