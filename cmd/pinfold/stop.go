package main

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/spf13/cobra"

	"pinfold.dev/api"
	"pinfold.dev/client"
)

// stopFlags are what stop says.
type stopFlags struct {
	turns, rehearsal bool
	grace            string
}

func (a *app) stopCmd() *cobra.Command {
	var f stopFlags
	c := &cobra.Command{
		Use:   "stop --turns",
		Short: "End every turn and job; the service goes on",
		Long: `End every turn, what finished turns have left running, and every job: your own,
or everybody's as root or as a member of the admin group. The service goes on, and
new turns may begin.

To stop the service is systemd's: "systemctl stop pinfold" ends the service and
nothing else. Turns and jobs go on, held by their cgroups, and the next service
finds them again. So that nothing of Pinfold runs any more: "pinfold stop --turns",
then "systemctl stop pinfold.socket pinfold.service".

Exit status: 0 when everything is seen gone; 1 when something could not be ended,
or not be seen, or when clients begin turns faster than they are ended; others as
in "pinfold help exit-codes".`,
		Example: `  pinfold stop --turns --dry-run
  pinfold stop --turns --grace 2s`,
		Args: exactArgs(0),
		RunE: func(c *cobra.Command, _ []string) error {
			if !f.turns {
				return usageError(c, "say --turns, which ends every turn and job; the service itself is stopped by systemctl, and leaves them running")
			}
			return a.stop(c, f)
		},
	}
	c.Flags().BoolVar(&f.turns, "turns", false, "end every turn and job that you may end")
	c.Flags().StringVar(&f.grace, "grace", "", "time between TERM and KILL; 0 kills at once (default each turn's)")
	c.Flags().BoolVarP(&f.rehearsal, "dry-run", "n", false, "tell what would be ended, and do nothing")
	return c
}

// stopRounds is how often is looked for what began meanwhile.
const stopRounds = 5

func (a *app) stop(c *cobra.Command, f stopFlags) error {
	grace, err := graceMS(c, f.grace)
	if err != nil {
		return err
	}
	s := stopper{client: a.client(), grace: grace, dry: f.rehearsal, tried: map[string]bool{},
		told: api.AbandonManyAnswer{Receipts: []api.Receipt{}, Refused: []api.RefusedEnd{}}}
	more := true
	for round := 0; more && round < stopRounds && (round == 0 || !f.rehearsal); round++ {
		if more, err = s.round(c.Context()); err != nil {
			return err
		}
	}
	if err := a.print(s.told, func(st style) string { return renderMany(s.told, st) }); err != nil {
		return err
	}
	switch {
	case f.rehearsal:
	case more:
		return &exitError{exitNo, errors.New("new turns begin all the time: stop the clients, or have systemd stop the service first")}
	case len(s.told.Refused) > 0 || slices.ContainsFunc(s.told.Receipts, unfinished) || slices.ContainsFunc(s.told.Jobs, lives):
		return status(exitNo)
	}
	return nil
}

func unfinished(r api.Receipt) bool { return !r.Complete }

func lives(j api.Job) bool { return j.State != api.JobEnded }

// stopper ends turns and jobs, each once.
type stopper struct {
	client *client.Client
	grace  *int64
	dry    bool
	tried  map[string]bool

	mu   sync.Mutex
	told api.AbandonManyAnswer
}

// round ends what there is now, and tells whether there was anything new.
func (s *stopper) round(ctx context.Context) (more bool, err error) {
	turns, err := s.client.Turns(ctx, true, "")
	if err != nil {
		return false, err
	}
	s.told.Grade = turns.Grade
	var todo []func()
	for _, t := range turns.Turns {
		if holds(t) && s.fresh(t.ID) {
			todo = append(todo, func() { s.endTurn(ctx, t.ID) })
		}
	}
	atOnce(todo)
	jobs, err := s.client.Jobs(ctx, client.JobQuery{})
	if err != nil {
		return false, err
	}
	ends := len(todo)
	todo = nil
	for _, j := range jobs.Jobs {
		if lives(j) && s.fresh(j.ID) {
			todo = append(todo, func() { s.endJob(ctx, j) })
		}
	}
	atOnce(todo)
	return ends+len(todo) > 0, nil
}

// holds tells whether a turn is to be ended. What it has alive may be unknown, in
// one that is over, too.
func holds(t api.Turn) bool { return !t.State.Terminal() || t.Alive != 0 }

// fresh tells whether it is met for the first time.
func (s *stopper) fresh(id string) bool {
	first := !s.tried[id]
	s.tried[id] = true
	return first
}

func (s *stopper) endTurn(ctx context.Context, id string) {
	req := api.AbandonRequest{Reason: api.ReasonOperator, GraceMS: s.grace, Leftovers: true}
	if s.dry {
		p, err := s.client.Plan(ctx, id, req)
		s.tell(id, err, func() { s.told.Plans = append(s.told.Plans, p) })
		return
	}
	r, err := s.client.Abandon(ctx, id, req)
	s.tell(id, err, func() { s.told.Receipts = append(s.told.Receipts, r) })
}

func (s *stopper) endJob(ctx context.Context, j api.Job) {
	var err error
	if !s.dry {
		j, err = s.client.StopJob(ctx, j.ID, api.StopJobRequest{Reason: api.ReasonOperator, GraceMS: s.grace})
	}
	s.tell(j.ID, err, func() { s.told.Jobs = append(s.told.Jobs, j) })
}

// tell enters how one ending went. One that has gone meanwhile is none.
func (s *stopper) tell(id string, err error, enter func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var e *api.Error
	switch {
	case err == nil:
		enter()
	case errors.Is(err, api.ErrNotFound):
	case errors.As(err, &e):
		s.told.Refused = append(s.told.Refused, api.RefusedEnd{ID: id, Error: e})
	default:
		s.told.Refused = append(s.told.Refused, api.RefusedEnd{ID: id, Error: api.Errorf(api.CodeUnavailable, "%v", err)})
	}
}

// endsAtOnce bounds the endings that wait at a time.
const endsAtOnce = 16

// atOnce calls all, some at a time, and waits for them.
func atOnce(all []func()) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, endsAtOnce)
	for _, f := range all {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			f()
		})
	}
	wg.Wait()
}
