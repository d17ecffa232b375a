package main

import (
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"pinfold.dev/api"
)

func (a *app) psCmd() *cobra.Command {
	var all bool
	var session string
	c := &cobra.Command{
		Use:   "ps",
		Short: "List turns",
		Long: `List the turns that you may see: your own, or everybody's as root.

PROCS is how many processes were started in a turn through Pinfold, ALIVE how
many it holds now, descendants included; ? when that cannot be read.`,
		Args: exactArgs(0),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := notBlank(c, "session"); err != nil {
				return err
			}
			l, err := a.client().Turns(c.Context(), all, session)
			if err != nil {
				return err
			}
			return a.print(l, func(st style) string { return renderTurns(l.Turns, time.Now(), st) })
		},
	}
	c.Flags().BoolVarP(&all, "all", "a", false, "also turns that have ended")
	c.Flags().StringVar(&session, "session", "", "only turns of this session")
	return c
}

func renderTurns(turns []api.Turn, now time.Time, st style) string {
	t := table{head: []string{"ID", "STATE", "GRADE", "OWNER", "AGE", "PROCS", "ALIVE", "LABEL"},
		right: map[int]bool{4: true, 5: true, 6: true}}
	for _, x := range turns {
		t.add(x.ID, string(x.State), string(x.Grade), owner(x.Owner), age(now.Sub(x.CreatedAt)),
			num(len(x.Processes)), alive(x.Alive), x.Label)
	}
	return t.render(st)
}

func num(n int) string { return strconv.Itoa(n) }

func alive(n int) string {
	if n < 0 {
		return "?"
	}
	return num(n)
}
