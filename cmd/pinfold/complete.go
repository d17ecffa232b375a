package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pinfold.dev/client"
)

// completeTime is how long a shell waits for the service: a person has typed TAB.
const completeTime = time.Second

// complete has the shell complete what a command's usage line calls TURN, PROCESS,
// JOB, SIGNAL or DIR, and flags that take a turn, a grade or known words. Without a service
// there is nothing to offer, which is no error.
func (a *app) complete(c *cobra.Command) {
	words := strings.Fields(c.Use)[1:]
	if len(words) > 0 && a.offers(words[0]) != nil {
		c.ValidArgsFunction = func(c *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			return a.offer(c, slot(words, len(args)), args)
		}
	}
	c.Flags().VisitAll(func(f *pflag.Flag) {
		offerValues(c, f)
		if kind := map[string]string{"turn": "TURN", "min-grade": "GRADE"}[f.Name]; kind != "" && f.Value.Type() == "string" {
			_ = c.RegisterFlagCompletionFunc(f.Name, func(c *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
				return a.offer(c, kind, nil)
			})
		}
	})
	for _, sub := range c.Commands() {
		a.complete(sub)
	}
}

// slot is what the usage line calls the argument of that number.
func slot(words []string, n int) string {
	words = slices.DeleteFunc(slices.Clone(words), func(w string) bool { return w == "[flags]" })
	if at := slices.Index(words, "|"); at >= 0 { // others are flags
		words = words[:at]
	}
	if n >= len(words) && (len(words) == 0 || !strings.HasSuffix(words[len(words)-1], "...")) {
		return ""
	}
	return strings.Trim(strings.TrimSuffix(words[min(n, len(words)-1)], "..."), "[]")
}

// offers is what can be offered for such a word; nil: nothing is known of it.
func (a *app) offers(word string) func(ctx context.Context, args []string) []cobra.Completion {
	switch strings.Trim(strings.TrimSuffix(word, "..."), "[]") {
	case "TURN":
		return a.offerTurns
	case "PROCESS":
		return a.offerProcesses
	case "JOB":
		return a.offerJobs
	case "SIGNAL":
		return func(context.Context, []string) []cobra.Completion {
			return []string{"TERM", "INT", "HUP", "QUIT", "KILL", "STOP", "CONT", "USR1", "USR2"}
		}
	case "GRADE":
		return func(context.Context, []string) []cobra.Completion { return gradeNames() }
	case "DIR":
		return func(context.Context, []string) []cobra.Completion { return nil }
	}
	return nil
}

func (a *app) offer(c *cobra.Command, kind string, args []string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if kind == "DIR" {
		return nil, cobra.ShellCompDirectiveFilterDirs
	}
	offers := a.offers(kind)
	if offers == nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(c.Context(), completeTime)
	defer cancel()
	return offers(ctx, args), cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
}

func (a *app) offerTurns(ctx context.Context, _ []string) (out []cobra.Completion) {
	l, err := a.client().Turns(ctx, false, "")
	if err != nil {
		return nil
	}
	for _, t := range slices.Backward(l.Turns) { // the newest is meant most often
		out = append(out, cobra.CompletionWithDesc(t.ID, strings.TrimSpace(string(t.State)+" "+clean(t.Label))))
	}
	return out
}

func (a *app) offerProcesses(ctx context.Context, args []string) (out []cobra.Completion) {
	if len(args) == 0 {
		return nil
	}
	l, err := a.client().Processes(ctx, args[0])
	if err != nil {
		return nil
	}
	for _, p := range l.Processes {
		out = append(out, cobra.CompletionWithDesc(p.ID, string(p.Status.State)+" "+clean(strings.Join(p.Argv, " "))))
	}
	return out
}

func (a *app) offerJobs(ctx context.Context, args []string) (out []cobra.Completion) {
	l, err := a.client().Jobs(ctx, client.JobQuery{})
	if err != nil {
		return nil
	}
	for _, j := range slices.Backward(l.Jobs) {
		if !slices.Contains(args, j.ID) {
			out = append(out, cobra.CompletionWithDesc(j.ID, strings.TrimSpace(string(j.State)+" "+clean(j.Name))))
		}
	}
	return out
}
