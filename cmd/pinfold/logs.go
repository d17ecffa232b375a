package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/spf13/cobra"

	"pinfold.dev/api"
	"pinfold.dev/client"
)

func (a *app) logsCmd() *cobra.Command {
	var f outputFlags
	var follow bool
	var stream string
	c := &cobra.Command{
		Use:   "logs TURN PROCESS",
		Short: "Print what a process has written",
		Long: `Print the kept output of a process: its stdout to stdout, its stderr to stderr.
Kept is what was started with "run --detach", "run --tty", or through the API
with mode spool or pty: the first quarter of a bounded room, and the latest rest.
What was between is told on stderr, in a line that begins with "pinfold:".

With -f, print what comes as well, until nobody can write any more: what the
process has left running counts.

With --json, print each piece as a line of JSON, as the API has it.

Exit status: 0 printed; others as in "pinfold help exit-codes".`,
		Example: `  pinfold logs k3v9 p1
  pinfold logs -f --tail 20 k3v9 p1
  pinfold logs --stream stdout --since-offset 1048576 k3v9 p1`,
		Args: exactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			if err := f.check(c); err != nil {
				return err
			}
			p, err := a.client().Process(c.Context(), args[0], args[1])
			if err != nil {
				return err
			}
			names, err := keptStreams(c, p, stream)
			if err != nil {
				return err
			}
			return a.logs(c.Context(), p, names, f, follow)
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what comes")
	c.Flags().StringVar(&stream, "stream", "both", "stdout, stderr or both")
	f.register(c)
	return c
}

// keptStreams are the streams of a process that were asked for.
func keptStreams(c *cobra.Command, p api.Process, stream string) ([]api.StreamName, error) {
	var names []api.StreamName
	switch stream {
	case "both":
		for _, n := range []api.StreamName{api.StreamStdout, api.StreamStderr} {
			if _, ok := p.Output[n]; ok {
				names = append(names, n)
			}
		}
		if len(names) == 0 {
			return nil, api.Errorf(api.CodeBadRequest, "nothing is kept of what process %s in turn %s writes", p.ID, p.Turn).
				WithRemedy("start it with pinfold run --detach, or through the API with mode spool or pty")
		}
		return names, nil
	case string(api.StreamStdout), string(api.StreamStderr):
		return []api.StreamName{api.StreamName(stream)}, nil
	}
	return nil, usageError(c, "--stream: %q is not stdout, stderr or both", stream)
}

// logs prints streams side by side when they are followed, and else one after
// the other.
func (a *app) logs(ctx context.Context, p api.Process, names []api.StreamName, f outputFlags, follow bool) error {
	cl := a.client()
	errs := make([]error, len(names))
	one := func(i int) { errs[i] = a.logStream(ctx, cl, p, names[i], f, follow) }
	if !follow {
		for i := range names {
			one(i)
		}
		return errors.Join(errs...)
	}
	var wg sync.WaitGroup
	for i := range names {
		wg.Go(func() { one(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (a *app) logStream(ctx context.Context, cl *client.Client, p api.Process, name api.StreamName, f outputFlags, follow bool) error {
	from, err := f.start(ctx, cl, p, name)
	if err != nil {
		return err
	}
	if a.asJSON {
		return a.logLines(ctx, cl, p, name, from, follow)
	}
	to := io.Writer(os.Stdout)
	if name == api.StreamStderr {
		to = os.Stderr
	}
	x := follower{client: cl, turn: p.Turn, process: p.ID, stream: name, to: to, next: from, follow: follow,
		gap: a.tellGap(name, newline)}
	return x.copy(ctx)
}

// logLine is the API's line with the name of its stream.
type logLine struct {
	Stream api.StreamName `json:"stream"`
	api.OutputLine
}

func (a *app) logLines(ctx context.Context, cl *client.Client, p api.Process, name api.StreamName, from int64, follow bool) error {
	lines, err := cl.OutputLines(ctx, p.Turn, p.ID, client.OutputQuery{Stream: name, Offset: from, Follow: follow})
	if err != nil {
		return err
	}
	defer lines.Close()
	for {
		l, err := lines.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return api.Errorf(api.CodeUnavailable, "read %s of process %s in turn %s: %v", name, p.ID, p.Turn, err)
		}
		b, err := json.Marshal(logLine{name, l})
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(a.stdout, "%s\n", b); err != nil {
			return err
		}
	}
}
