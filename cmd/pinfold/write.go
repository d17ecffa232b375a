package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"pinfold.dev/api"
)

func (a *app) writeCmd() *cobra.Command {
	var closes, bare bool
	c := &cobra.Command{
		Use:   "write TURN PROCESS [TEXT...|-]",
		Short: "Write to a process's standard input",
		Long: `Write to the standard input of a process that was started for that: with
"run --detach --stdin pipe", with a terminal, or through the API. The words of
TEXT go with spaces between and a newline after; "-" writes standard input, as it
is. --close ends the process's input after that, and may stand alone.

It returns when the process's pipe has taken the bytes, which is as fast as the
process reads.

Exit status: 0 written; 1 nobody reads there any more; others as in
"pinfold help exit-codes".`,
		Example: `  pinfold write k3v9 p2 'print(1 + 1)'
  tar c . | pinfold write --close k3v9 p3 -`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) < 2 {
				return exactArgs(2)(c, args)
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			in := io.Reader(os.Stdin)
			switch text := args[2:]; {
			case len(text) == 0 && !closes:
				return usageError(c, "write needs TEXT, - for standard input, or --close")
			case len(text) != 1 || text[0] != "-":
				words := strings.Join(text, " ")
				if len(text) > 0 && !bare {
					words += "\n"
				}
				in = bytes.NewReader([]byte(words))
			}
			return a.write(c.Context(), args[0], args[1], in, closes)
		},
	}
	c.Flags().BoolVar(&closes, "close", false, "end the process's input after this")
	c.Flags().BoolVarP(&bare, "no-newline", "n", false, "write TEXT without a newline after it")
	return c
}

func (a *app) write(ctx context.Context, turn, proc string, in io.Reader, closes bool) error {
	cl := a.client()
	if _, err := cl.Process(ctx, turn, proc); err != nil {
		return err
	}
	f := feeder{client: cl, turn: turn, process: proc, strict: true}
	err := f.copy(ctx, in, closes, nil)
	if errors.Is(err, api.ErrStdinClosed) {
		return &exitError{exitNo, err}
	}
	if err == nil && a.asJSON {
		return writeJSON(a.stdout, api.InputAnswer{Process: proc, Bytes: f.taken, Closed: closes})
	}
	if errors.Is(err, errLostInput) {
		return &exitError{exitService, fmt.Errorf("%w; %d before these did", err, f.taken)}
	}
	return err
}
