package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"pinfold.dev/api"
)

// runFlags are what run says of the process; turnFlags, of its own turn.
type runFlags struct {
	turn, user, cwd, stopSignal string
	env                         []string
	clearEnv, detach            bool
	epoch                       int64
}

func (a *app) runCmd() *cobra.Command {
	var f runFlags
	var tf turnFlags
	c := &cobra.Command{
		Use:   "run [flags] [--] COMMAND [ARG...]",
		Short: "Run a command in a turn of its own, or in an open one",
		Long: `Run a command, with this command's standard streams, environment and directory.

By default it gets a turn of its own, which is finished when the command has
ended. What it leaves running then is kept, held and listed; --leftovers reap
ends it. With --turn the command joins an open turn, which stays open.

TERM, INT, HUP, QUIT, USR1 and USR2 are passed on to the command. It runs in a
session of its own. If "pinfold run" itself is killed, the command and its turn
go on: end them with "pinfold abandon". Flags end at the first word that is none.

Exit status: the command's; 128+n when signal n ended it; 125 when Pinfold or
the request failed; 126 when the command cannot be executed; 127 when it was
not found; 2 when the command line is wrong.`,
		Example: `  pinfold run -- make -j4
  pinfold run --leftovers reap --grace 2s -- ./agent --task 7
  pinfold run --turn k3v9 --detach -- npm run dev`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError(c, "run needs a command")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			launch, err := f.request(c, args)
			if err != nil {
				return err
			}
			r := &runner{app: a, client: a.client(), turn: f.turn, launch: launch}
			if f.turn == "" {
				if r.begin, err = tf.request(c); err != nil {
					return err
				}
			}
			if f.detach {
				return r.detached(c.Context())
			}
			return r.attached(c.Context())
		},
	}
	c.Flags().SetInterspersed(false)
	tf.register(c)
	own := ownTurnOnly(c)
	f.register(c)
	c.PreRunE = func(c *cobra.Command, _ []string) error {
		for _, name := range own {
			if f.turn != "" && c.Flags().Changed(name) {
				return usageError(c, "--%s is for a turn of the command's own: the turn %s has its own already", name, f.turn)
			}
		}
		return nil
	}
	return c
}

func (f *runFlags) register(c *cobra.Command) {
	fs := c.Flags()
	fs.StringVarP(&f.turn, "turn", "t", "", "join this open turn instead of a new one")
	fs.BoolVarP(&f.detach, "detach", "d", false, "print turn and process id and leave; the streams are /dev/null, and the turn stays open")
	fs.StringVarP(&f.user, "user", "u", "", "run as this user (only root may name another)")
	fs.StringVarP(&f.cwd, "cwd", "C", "", "directory to run in (default: this one)")
	fs.StringArrayVarP(&f.env, "env", "e", nil, "set NAME=VALUE, or pass NAME on, in the command's environment (repeatable)")
	fs.BoolVar(&f.clearEnv, "clear-env", false, "pass nothing of this environment; only what --env says")
	fs.StringVar(&f.stopSignal, "stop-signal", "", "what asks the command to stop when its turn is ended (default TERM)")
	fs.Int64Var(&f.epoch, "epoch", 0, "with --turn: refuse unless the turn has this epoch")
}

// ownTurnOnly names the flags that c has so far.
func ownTurnOnly(c *cobra.Command) []string {
	var names []string
	for _, name := range []string{"label", "meta", "session", "leftovers", "grace", "memory", "swap", "pids", "cpu"} {
		if c.Flags().Lookup(name) != nil {
			names = append(names, name)
		}
	}
	return names
}

func (f *runFlags) request(c *cobra.Command, argv []string) (api.LaunchRequest, error) {
	minGrade, _ := c.Flags().GetString("min-grade")
	req := api.LaunchRequest{Argv: argv, Cwd: f.cwd, User: f.user, StopSignal: f.stopSignal,
		MinGrade: api.Grade(minGrade), Epoch: f.epoch}
	if !isGrade(req.MinGrade) {
		return req, usageError(c, "--min-grade: %q is not a grade", minGrade)
	}
	if req.Cwd == "" {
		wd, err := os.Getwd()
		if err != nil {
			return req, &exitError{exitService, fmt.Errorf("find the current directory: %w; name one with --cwd", err)}
		}
		req.Cwd = wd
	}
	base := carried(os.Environ(), c.ErrOrStderr())
	if f.clearEnv {
		base = []string{}
	} else if f.user != "" {
		base = asUser(base, f.user)
	}
	var err error
	req.Env, err = withEnv(c, base, f.env)
	return req, err
}

// carried is env without what JSON cannot carry, which is told.
func carried(env []string, told io.Writer) []string {
	return slices.DeleteFunc(env, func(kv string) bool {
		if utf8.ValidString(kv) {
			return false
		}
		name, _, _ := strings.Cut(kv, "=")
		fmt.Fprintf(told, "pinfold: note: %s is not UTF-8 and is not passed on\n", clean(name))
		return true
	})
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
