package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pinfold.dev/api"
	"pinfold.dev/client"
)

func (a *app) eventsCmd() *cobra.Command {
	var q client.EventQuery
	var kinds []string
	c := &cobra.Command{
		Use:   "events",
		Short: "Print what happened, in order",
		Long: `Print what happened to the turns that you may see: your own, or everybody's as
root. Each event has a number, which only rises; --after goes on after one, also
when the service was restarted meanwhile. What is not kept any more is told as a
gap.

With --consumer, begin after what that consumer has acknowledged with "pinfold
events ack". An event of a turn that was being stopped, or had been, is marked
"stopped": nothing that waits for it is to be woken.

With --json, print each event as a line of JSON, as the API has it.

Exit status: 0 printed; others as in "pinfold help exit-codes".`,
		Example: `  pinfold events -f --kinds exit,ended
  pinfold events --after 1200 --turn k3v9
  pinfold events -f --consumer mailer --json`,
		Args: exactArgs(0),
		RunE: func(c *cobra.Command, _ []string) error {
			if c.Flags().Changed("after") && q.Consumer != "" {
				return usageError(c, "--after and --consumer are both given")
			}
			if err := notBlank(c, "turn", "session", "consumer", "kinds"); err != nil {
				return err
			}
			for _, k := range kinds {
				q.Kinds = append(q.Kinds, api.EventKind(k))
			}
			return a.events(c.Context(), q)
		},
	}
	fs := c.Flags()
	fs.BoolVarP(&q.Follow, "follow", "f", false, "go on with what comes")
	fs.Int64Var(&q.After, "after", 0, "begin after this number; -1: with what happens from now on")
	fs.StringVar(&q.Turn, "turn", "", "only of this turn")
	fs.StringVar(&q.Session, "session", "", "only of this session")
	fs.StringVar(&q.Consumer, "consumer", "", "begin after what this consumer has acknowledged")
	fs.StringSliceVar(&kinds, "kinds", nil, "only of these kinds, such as exit,ended")
	c.AddCommand(a.eventsAckCmd())
	return c
}

func (a *app) eventsAckCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "ack CONSUMER SEQ",
		Short: "Say that a consumer has dealt with every event up to a number",
		Long: `Say that a consumer has dealt with every event up to a number. The name is
anything of 1 to 64 letters, digits, dots, dashes and underscores, and belongs to
your uid. When several say the same, one of them is told that it was the first.

Exit status: 0 it is noted, by us; 1 it was noted before; others as in "pinfold
help exit-codes".`,
		Example: `  pinfold events ack mailer 1207 && send-the-mail`,
		Args:    exactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			seq, err := strconv.ParseInt(args[1], 10, 64)
			if err != nil {
				return usageError(c, "%q is not the number of an event", args[1])
			}
			r, err := a.client().AckEvents(c.Context(), args[0], seq)
			if err != nil {
				return err
			}
			err = a.print(r, func(style) string {
				if r.Repeated {
					return fmt.Sprintf("%s had acknowledged events up to %d\n", r.Consumer, r.Seq)
				}
				return fmt.Sprintf("%s has acknowledged events up to %d\n", r.Consumer, r.Seq)
			})
			if err == nil && r.Repeated {
				err = status(exitNo)
			}
			return err
		},
	}
}

// events prints events, across restarts of the service.
func (a *app) events(ctx context.Context, q client.EventQuery) error {
	p := eventPrinter{app: a, client: a.client(), q: q}
	err := p.once(ctx) // patience is for a service that goes away, not for none
	for p.broken == nil && !p.over && (err == nil || p.heard) {
		if err != nil && !unreachable(err) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
		p.heard = false
		err = insist(ctx, func(ctx context.Context) error {
			if err := p.once(ctx); err != nil && (!p.heard || !unreachable(err)) {
				return err
			}
			return nil // it is there: what went wrong after that begins anew
		})
		p.heard = err == nil
	}
	return cmp.Or(p.broken, err)
}

type eventPrinter struct {
	app    *app
	client *client.Client
	q      client.EventQuery // for the rest
	heard  bool              // the service answered
	over   bool              // that was all
	broken error             // nobody takes what we print
}

// once prints one answer.
func (p *eventPrinter) once(ctx context.Context) error {
	es, err := p.client.Events(ctx, p.q)
	if err != nil {
		return err
	}
	defer es.Close()
	p.heard = true
	for {
		e, err := es.Next()
		p.q = es.Rest()
		switch {
		case errors.Is(err, io.EOF):
			p.over = !p.q.Follow
			return nil
		case err != nil:
			return err
		}
		if p.broken = p.app.printEvent(e); p.broken != nil {
			return nil
		}
	}
}

func (a *app) printEvent(e api.Event) error {
	if !a.asJSON {
		_, err := io.WriteString(a.stdout, renderEvent(e, a.style()))
		return err
	}
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.stdout, "%s\n", b)
	return err
}

// renderEvent is an event as one line: events come one by one, so their columns
// have fixed widths.
func renderEvent(e api.Event, st style) string {
	where := e.Turn
	switch {
	case e.Job != "":
		where = e.Job
	case e.Process != "":
		where += "/" + e.Process
	}
	var what []string
	if e.Status != nil {
		what = append(what, statusText(*e.Status))
	}
	for _, s := range []string{string(e.Reason), clean(e.Message)} {
		if s != "" {
			what = append(what, s)
		}
	}
	if e.Kind == api.EventEnded && string(e.State) != string(e.Reason) {
		what = append([]string{string(e.State)}, what...)
	}
	line := fmt.Sprintf("%6d  %s  %-11s  %-20s  %s", e.Seq, stamp(e.At), e.Kind, clean(where), strings.Join(what, ", "))
	if e.Stopped {
		line += st.paint(faint, " (stopped)")
	}
	return strings.TrimRight(line, " ") + "\n"
}
