package main

import (
	"github.com/spf13/cobra"

	"pinfold.dev/api"
)

func (a *app) beginCmd() *cobra.Command {
	var f turnFlags
	var life lifeFlags
	c := &cobra.Command{
		Use:   "begin",
		Short: "Open a turn and print its id",
		Long: `Open a turn and print its id. Nothing runs in it yet: start processes with
"pinfold run --turn ID", and end it with finish or abandon. What the host could
not give this turn is told on stderr, and by "pinfold show".

Clocks end it by themselves (--wall, --lease, --idle); a client that is bound to
it, when that goes. What then happens to its processes says "pinfold policy".

Exit status: see "pinfold help exit-codes".`,
		Example: `  t=$(pinfold begin --label "fix the build")
  pinfold run --turn $t -- make
  pinfold finish $t`,
		Args: exactArgs(0),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := notBlank(c, "session", "key"); err != nil {
				return err
			}
			req, err := f.request(c)
			if err == nil {
				err = life.enter(c, &req)
			}
			if err != nil {
				return err
			}
			t, err := a.client().Begin(c.Context(), req)
			if err != nil {
				return err
			}
			a.warn(t.Degraded)
			return a.print(t, func(style) string { return t.ID + "\n" })
		},
	}
	f.register(c)
	life.register(c)
	return c
}

// turnFlags are what begin and run say of a new turn.
type turnFlags struct {
	label, session, minGrade, leftovers string
	labels                              []string
	grace                               string
	outputMax, onOutputMax              string
	allowPIDNS                          bool
	limits                              limitFlags
}

func (f *turnFlags) register(c *cobra.Command) {
	fs := c.Flags()
	fs.StringVarP(&f.label, "label", "L", "", "text for people: what this turn is about")
	fs.StringArrayVar(&f.labels, "meta", nil, "your own KEY=VALUE, kept with the turn (repeatable)")
	fs.StringVar(&f.session, "session", "", "the session that this turn belongs to")
	fs.StringVar(&f.minGrade, "min-grade", "", "refuse where the host holds turns less well: scope, cgroup, pidns, subreaper or token")
	fs.BoolVar(&f.allowPIDNS, "allow-pidns", false, "let the turn have a PID namespace of its own, which shows in it, where there is nothing better")
	fs.StringVar(&f.leftovers, "leftovers", "", "what finish does with processes still running: keep (default) or reap")
	fs.StringVar(&f.grace, "grace", "", "time between TERM and KILL when it is ended (default the service's)")
	fs.StringVar(&f.outputMax, "output-max", "", "bytes that the kept output of the whole turn may come to, such as 1G")
	fs.StringVar(&f.onOutputMax, "on-output-max", "", "what happens at --output-max: drop (default) keeps no more, stop ends the turn")
	f.limits.register(c)
}

func (f *turnFlags) request(c *cobra.Command) (api.BeginRequest, error) {
	req := api.BeginRequest{Label: f.label, Session: f.session, MinGrade: api.Grade(f.minGrade), AllowPIDNS: f.allowPIDNS}
	var err error
	if req.Labels, err = pairs(c, "meta", f.labels); err != nil {
		return req, err
	}
	if !isGrade(req.MinGrade) {
		return req, usageError(c, "--min-grade: %q is not a grade", f.minGrade)
	}
	if req.Leftovers, err = leftoverPolicy(c, f.leftovers); err != nil {
		return req, err
	}
	if req.GraceMS, err = graceMS(c, f.grace); err != nil {
		return req, err
	}
	if req.OutputMax, err = parseBytes(f.outputMax); err != nil {
		return req, usageError(c, "--output-max: %v", err)
	}
	switch req.OnOutputMax = api.OutputPolicy(f.onOutputMax); req.OnOutputMax {
	case "", api.OutputDrop, api.OutputStop:
	default:
		return req, usageError(c, "--on-output-max: %q is neither drop nor stop", f.onOutputMax)
	}
	req.Limits, err = f.limits.limits(c)
	return req, err
}
