package main

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"pinfold.dev/client"
)

// app is what every command has: its streams, its environment and the two
// flags that all of them take.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	getenv         func(string) string
	socket         string // --socket
	asJSON         bool   // --json
}

// runMain runs the command line and returns its exit code.
func runMain(args []string) int {
	a := &app{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, getenv: os.Getenv}
	root := a.rootCmd()
	if len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) {
		a.complete(root) // it is a shell that asks
	}
	root.SetArgs(args)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	return a.exitCode(root.ExecuteContext(context.Background()))
}

func (a *app) rootCmd() *cobra.Command {
	root := &cobra.Command{
		Use:   "pinfold",
		Short: "Hold every process of an agent turn, and end exactly those",
		Long: `Pinfold launches agent turns, holds every process that a turn creates, and
ends exactly those - all of them, nothing else - when the turn is abandoned.

A turn is the unit: begin one, run processes in it, then finish or abandon it.
"pinfold run -- command" does all of that for one command.`,
		Example: `  pinfold serve &                 # the service; usually a systemd unit
  pinfold run -- make test        # a turn of its own, with the command's exit code
  t=$(pinfold begin)              # or step by step
  pinfold run --turn $t -- ./agent
  pinfold abandon $t`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noSuchCommand,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return usageError(c, "%v", err) })
	root.PersistentFlags().StringVar(&a.socket, "socket", "",
		"the service's socket (default $PINFOLD_SOCKET, then the user's own service, then the system's, then a container's)")
	root.PersistentFlags().BoolVar(&a.asJSON, "json", false, "print the API's JSON, one document, instead of text")
	for _, c := range slices.Concat(a.commands(), topics(), a.buildCommands()) {
		root.AddCommand(c)
	}
	strictHelp(root)
	return root
}

// strictHelp makes "help" of something unknown the usage error that it is.
func strictHelp(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	help, _, _ := root.Find([]string{"help"})
	help.Run = nil
	help.RunE = func(_ *cobra.Command, args []string) error {
		c, rest, err := root.Find(args)
		if err != nil || len(rest) > 0 {
			return usageError(root, "no help for %q", strings.Join(args, " "))
		}
		return c.Help()
	}
}

// commands lists the commands in the order of a turn's life.
func (a *app) commands() []*cobra.Command {
	return []*cobra.Command{
		a.serveCmd(),
		a.beginCmd(), a.runCmd(), a.finishCmd(), a.abandonCmd(),
		a.psCmd(), a.treeCmd(), a.showCmd(), a.waitCmd(), a.signalCmd(),
		a.touchCmd(), a.takeCmd(), a.freezeCmd(), a.thawCmd(), a.policyCmd(),
		a.logsCmd(), a.attachCmd(), a.writeCmd(),
		a.jobsCmd(), a.jobCmd(), a.adoptCmd(), a.endCmd(), a.stopCmd(), a.whyCmd(), a.quietCmd(),
		a.receiptCmd(), a.receiptsCmd(), a.eventsCmd(),
		a.doctorCmd(), a.gcCmd(), a.versionCmd(),
	}
}

// client speaks to the service that --socket names, or the one that the client
// finds.
func (a *app) client() *client.Client { return &client.Client{Socket: a.socket} }

// print writes v as one JSON document with --json, and text otherwise.
func (a *app) print(v any, text func(style) string) error {
	if !a.asJSON {
		_, err := io.WriteString(a.stdout, text(a.style()))
		return err
	}
	return writeJSON(a.stdout, v)
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
