package main

import (
	"fmt"
	"os/user"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"pinfold.dev/api"
)

// abandonFlags are what abandon says.
type abandonFlags struct {
	reason, grace, session, owner string
	labels                        []string
	epoch                         int64
	leftovers, jobs, rehearsal    bool
}

func (a *app) abandonCmd() *cobra.Command {
	var f abandonFlags
	c := &cobra.Command{
		Use:   "abandon TURN | --session SESSION | --meta KEY=VALUE | --owner USER",
		Short: "End a turn: every process of it, nothing else",
		Long: `End a turn: every process of it, and nothing else. Waits until the turn is
seen empty, and prints the receipt. A second call waits for the ending that was asked
for first, and prints its receipt; with a shorter --grace it cuts that of the first
short. With --session, --meta or --owner, which may not be blank, end each turn that
it names.

With --dry-run nothing is touched: what would be ended is listed, on what
evidence, and what would be kept or refused.

Exit status: 0 only when the receipt is complete; 1 when something could not be
ended, or not be seen, or when what the turn left running is still held, since it
had finished before or its policy keeps processes; others as in "pinfold help exit-codes".`,
		Example: `  pinfold abandon k3v9
  pinfold abandon --grace 0 k3v9          # KILL at once
  pinfold abandon --leftovers k3v9        # what a finished turn left running
  pinfold abandon --dry-run k3v9
  pinfold abandon --session chat-42 --reason superseded`,
		RunE: func(c *cobra.Command, args []string) error { return a.abandon(c, args, f) },
	}
	fs := c.Flags()
	fs.StringVar(&f.reason, "reason", "", "recorded in the receipt: stop (default), superseded, idle, wall, client_gone, lease_expired, limit, operator")
	fs.StringVar(&f.grace, "grace", "", "time between TERM and KILL; 0 kills at once (default the turn's)")
	fs.Int64Var(&f.epoch, "epoch", 0, "refuse unless the turn has this epoch")
	fs.BoolVar(&f.leftovers, "leftovers", false, "end what a finished turn left running")
	fs.BoolVar(&f.jobs, "jobs", false, "end its jobs, too")
	fs.BoolVarP(&f.rehearsal, "dry-run", "n", false, "tell what would be done, and do nothing")
	fs.StringVar(&f.session, "session", "", "each open turn of this session")
	fs.StringArrayVar(&f.labels, "meta", nil, "each open turn with this KEY=VALUE (repeatable: all of them)")
	fs.StringVar(&f.owner, "owner", "", "each open turn of this user")
	return c
}

func (a *app) abandon(c *cobra.Command, args []string, f abandonFlags) error {
	grace, err := graceMS(c, f.grace)
	if err != nil {
		return err
	}
	if c.Flags().Changed("session") || c.Flags().Changed("meta") || c.Flags().Changed("owner") {
		if len(args) > 0 || f.leftovers || f.epoch != 0 {
			return usageError(c, "a turn, --leftovers and --epoch are for one turn; --session, --meta and --owner name others")
		}
		return a.abandonMany(c, f, grace)
	}
	if err := exactArgs(1)(c, args); err != nil {
		return err
	}
	req := api.AbandonRequest{Reason: api.Reason(f.reason), Epoch: f.epoch, Leftovers: f.leftovers, Jobs: f.jobs, GraceMS: grace}
	if f.rehearsal {
		p, err := a.client().Plan(c.Context(), args[0], req)
		if err != nil {
			return err
		}
		return a.print(p, func(st style) string { return renderPlan(p, st) })
	}
	r, err := a.client().Abandon(c.Context(), args[0], req)
	if err := a.ended(r, err); err != nil {
		return err
	}
	return stillHeld(r)
}

// abandonMany ends the turns that a flag names.
func (a *app) abandonMany(c *cobra.Command, f abandonFlags, grace *int64) error {
	req := api.AbandonManyRequest{Session: f.session, Reason: api.Reason(f.reason), GraceMS: grace, Jobs: f.jobs, DryRun: f.rehearsal}
	var err error
	if req.Labels, err = pairs(c, "meta", f.labels); err != nil {
		return err
	}
	if f.owner != "" {
		if req.Owner, err = uidOf(c, f.owner); err != nil {
			return err
		}
	}
	r, err := a.client().AbandonMany(c.Context(), req)
	if err != nil {
		return err
	}
	if err := a.print(r, func(st style) string { return renderMany(r, st) }); err != nil {
		return err
	}
	if len(r.Refused) > 0 || slices.ContainsFunc(r.Receipts, func(x api.Receipt) bool { return !x.Complete }) {
		return status(exitNo)
	}
	return nil
}

// uidOf is the uid of a user by name or number.
func uidOf(c *cobra.Command, name string) (*uint32, error) {
	id := name
	if u, err := user.Lookup(name); err == nil {
		id = u.Uid
	}
	n, err := strconv.ParseUint(id, 10, 32)
	if err != nil {
		return nil, usageError(c, "--owner: %q is no user of this host", name)
	}
	uid := uint32(n)
	return &uid, nil
}

func renderMany(r api.AbandonManyAnswer, st style) string {
	var b strings.Builder
	for _, x := range r.Receipts {
		b.WriteString(renderReceipt(x, st))
	}
	for _, p := range r.Plans {
		b.WriteString(renderPlan(p, st))
	}
	for _, j := range r.Jobs {
		fmt.Fprintf(&b, "job %s is %s\n", clean(j.ID), j.State)
	}
	for _, x := range r.Refused {
		fmt.Fprintf(&b, "%s: %s\n", clean(x.ID), clean(x.Error.Error()))
	}
	if b.Len() == 0 {
		return "nothing is open that this names\n"
	}
	return b.String()
}

// stillHeld tells that leftovers run on, of a turn that had finished before or
// whose policy keeps them.
func stillHeld(r api.Receipt) error {
	if len(r.Leftovers) == 0 || r.LeftoversEndedAt != nil {
		return nil
	}
	what := "had finished before"
	if r.State == api.StateAbandoned {
		what = "is abandoned by a rule that keeps processes"
	}
	return &exitError{exitNo, api.Errorf(api.CodeTurnOver, "turn %s %s, and what it left running is still held", r.Turn, what).
		WithRemedy("pinfold abandon --leftovers %s", r.Turn)}
}
