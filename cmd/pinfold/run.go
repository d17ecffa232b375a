package main

import (
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

const runHelp = `Run a command, with this command's standard streams, environment, directory and
umask.

By default it gets a turn of its own, which is finished when the command has
ended. What it leaves running then is kept, held and listed; --leftovers reap
ends it. With --turn the command joins an open turn, which stays open.

TERM, INT, HUP, QUIT, USR1, USR2, WINCH and CONT are passed on to the command,
unless whoever started this wanted them ignored, as nohup does. Those that a
terminal sends to a whole job (INT, QUIT, WINCH, CONT) go to the command's process
group. When TSTP stops this, it stops that group as well. The command runs in a
session of its own. If "pinfold run" itself is killed, as by a timeout's KILL, its
turn is abandoned; with --on-client-gone detach, or in a turn that was open before,
the command goes on. Flags end at the first word that is none.

With -t the command gets a terminal of its own. Where standard input is a
terminal, its keys, ^C and ^Z too, go to the command as they are typed, and its
size is the command's. Where it is none, its bytes are typed, and at its end the
end-of-file character is. What the command writes, to stdout or stderr, comes out
of stdout. TSTP stops only this, not the command.

With --detach the output is kept: "pinfold logs" reads it, "pinfold attach" shows
it, and with --stdin pipe "pinfold write" writes to the command.

With --in-place this very process moves into the turn and then executes the
command: parent, session, terminal, environment and exit status are those of a
command that was started without Pinfold. A turn of its own is finished by the
service when the command has ended.

Exit status: the command's; 128+n when signal n ended it; 125 when Pinfold or
the request failed; 126 when the command cannot be executed; 127 when it was
not found; 2 when the command line is wrong.`

func (a *app) runCmd() *cobra.Command {
	var f runFlags
	var tf turnFlags
	c := &cobra.Command{
		Use:   "run [flags] [--] COMMAND [ARG...]",
		Short: "Run a command in a turn of its own, or in an open one",
		Long:  runHelp,
		Example: `  pinfold run -- make -j4
  pinfold run -t -- bash
  pinfold run --leftovers reap --grace 2s -- ./agent --task 7
  pinfold run --turn k3v9 --detach -- npm run dev
  pinfold run --in-place --leftovers reap -- npx some-mcp-server`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError(c, "run needs a command")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			r, err := a.runner(c, &f, &tf, args)
			if err != nil {
				return err
			}
			switch ctx := c.Context(); {
			case f.inPlace:
				return r.inPlace(ctx)
			case f.detach:
				return r.detached(ctx)
			case f.tty:
				return r.tty(ctx)
			default:
				return r.attached(ctx)
			}
		},
	}
	c.Flags().SetInterspersed(false)
	tf.register(c)
	own := ownTurnOnly(c)
	f.register(c)
	c.PreRunE = func(c *cobra.Command, _ []string) error {
		if err := notBlank(c, "turn", "session", "key"); err != nil { // it would run in a turn of its own, or twice
			return err
		}
		return f.check(c, own)
	}
	return c
}

func (a *app) runner(c *cobra.Command, f *runFlags, tf *turnFlags, args []string) (*runner, error) {
	r := &runner{app: a, client: a.client(), turn: f.turn, stays: f.stays()}
	var err error
	if r.launch, err = f.request(c, args); err != nil {
		return nil, err
	}
	if f.turn == "" {
		if r.begin, err = tf.request(c); err != nil {
			return nil, err
		}
		if r.begin.Client, err = f.bind(c); err != nil {
			return nil, err
		}
		r.must = f.onClientGone != ""
	}
	r.launch.Stdio, err = f.keptStdio(c)
	return r, err
}

// ownTurnOnly names the flags that c has so far.
func ownTurnOnly(c *cobra.Command) []string {
	var names []string
	for _, name := range []string{"label", "meta", "session", "allow-pidns", "leftovers", "grace", "memory", "swap", "pids", "cpu", "output-max", "on-output-max"} {
		if c.Flags().Lookup(name) != nil {
			names = append(names, name)
		}
	}
	return names
}

// withEnv lays NAME=VALUE words, and the values of plain NAMEs, over an
// environment.
func withEnv(c *cobra.Command, env, words []string) ([]string, error) {
	for _, w := range words {
		name, _, ok := strings.Cut(w, "=")
		if name == "" {
			return nil, usageError(c, "--env: %q is not NAME=VALUE", w)
		}
		if !ok {
			v, set := os.LookupEnv(name)
			if !set {
				continue
			}
			w = name + "=" + v
		}
		env = append(dropEnv(env, name), w)
	}
	return env, nil
}

func dropEnv(env []string, name string) []string {
	return slices.DeleteFunc(env, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
}
