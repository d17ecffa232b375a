package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"pinfold.dev/api"
)

// attachFlags are what attach takes.
type attachFlags struct {
	output          outputFlags
	noStdin, closes bool
	keys            string
	leaveBy         []byte
}

func (a *app) attachCmd() *cobra.Command {
	var f attachFlags
	c := &cobra.Command{
		Use:   "attach TURN PROCESS",
		Short: "Show a running process's output, and type to it",
		Long: `Show what a process writes from now on, and pass standard input on to it, where
it was started with a terminal or with stdin of mode pipe. Its output must be
kept: see "pinfold logs". Any number may be attached at once; all see the same,
and what they type is mixed.

On a process's terminal ours is raw meanwhile, and gives it its size. The keys
ctrl-p ctrl-q, one after the other, leave it; the process goes on. The end of
standard input leaves the process's open, unless --close is given.

Signals end attach, not the process.

Exit status: the process's, as of "pinfold wait"; 0 when it was left.`,
		Example: `  pinfold attach k3v9 p1
  pinfold attach --tail 20 --no-stdin k3v9 p1`,
		Args: exactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			if err := f.output.check(c); err != nil {
				return err
			}
			var err error
			if f.leaveBy, err = parseKeys(f.keys); err != nil {
				return usageError(c, "--detach-keys: %v", err)
			}
			if !c.Flags().Changed("since-offset") && f.output.n < 0 {
				f.output.n = 0
			}
			return a.attach(c.Context(), args[0], args[1], f)
		},
	}
	f.output.register(c)
	c.Flags().BoolVar(&f.noStdin, "no-stdin", false, "only look")
	c.Flags().BoolVar(&f.closes, "close", false, "the end of standard input is the end of the process's")
	c.Flags().StringVar(&f.keys, "detach-keys", "ctrl-p,ctrl-q", "keys that leave a terminal: letters and ctrl-LETTER, with commas; none if empty")
	return c
}

func (a *app) attach(ctx context.Context, turn, proc string, f attachFlags) error {
	r := &runner{app: a, client: a.client(), turn: turn}
	p, err := r.client.Process(ctx, turn, proc)
	if err != nil {
		return &exitError{exitService, err}
	}
	s := &screen{runner: r, term: stdinTerminal(), p: p, watch: true, closes: f.closes, feed: !f.noStdin && p.Stdin != ""}
	for name, to := range map[api.StreamName]*os.File{api.StreamStdout: os.Stdout, api.StreamStderr: os.Stderr} {
		if _, kept := p.Output[name]; !kept {
			continue
		}
		from, err := f.output.start(ctx, r.client, p, name)
		if err != nil {
			return &exitError{exitService, err}
		}
		s.streams = append(s.streams, shown{name, to, from})
	}
	if len(s.streams) == 0 && !s.feed {
		return &exitError{exitService, api.Errorf(api.CodeBadRequest, "process %s in turn %s has nothing to attach to", proc, turn).
			WithRemedy("start it with pinfold run --detach")}
	}
	if p.Terminal && s.term.real && len(f.leaveBy) > 0 {
		k := keys{want: f.leaveBy}
		s.edit = func(b []byte) ([]byte, bool) {
			out, found := k.find(b)
			s.left.Store(found)
			return out, !found
		}
	}
	sigs := catchSignals(syscall.SIGPIPE)
	defer sigs.stop()
	p, err = s.run(ctx, sigs)
	switch n := s.stopped.Load(); {
	case n != 0:
		return status(128 + int(n))
	case s.left.Load():
		fmt.Fprintf(a.stderr, "\npinfold: left; again: pinfold attach %s %s\n", turn, proc)
		return nil
	case err != nil:
		return &exitError{exitService, err}
	}
	return exitAs(p)
}

// parseKeys reads "ctrl-p,q": what those keys type.
func parseKeys(s string) ([]byte, error) {
	if s == "" {
		return nil, nil
	}
	var all []byte
	for _, w := range strings.Split(s, ",") {
		c, ctrl := strings.CutPrefix(strings.ToLower(w), "ctrl-")
		switch {
		case ctrl && len(c) == 1 && c[0] >= '@' && c[0] <= 'z':
			all = append(all, c[0]&0x1f)
		case !ctrl && len(w) == 1 && w[0] < 0x80:
			all = append(all, w[0])
		default:
			return nil, fmt.Errorf("%q is neither a letter nor ctrl- and a letter", w)
		}
	}
	return all, nil
}

// keys finds what leaves among what is typed. The first of the keys are held
// back until it is known what they are.
type keys struct {
	want []byte
	had  int // of want
}

func (k *keys) find(b []byte) (out []byte, found bool) {
	for _, c := range b {
		for c != k.want[k.had] && k.had > 0 {
			// What was held back is typed after all, but for its end that may be
			// the keys' beginning.
			n := k.had
			for k.had--; k.had > 0 && !bytes.Equal(k.want[n-k.had:n], k.want[:k.had]); k.had-- {
			}
			out = append(out, k.want[:n-k.had]...)
		}
		if c != k.want[k.had] {
			out = append(out, c)
			continue
		}
		if k.had++; k.had == len(k.want) {
			return out, true
		}
	}
	return out, false
}
