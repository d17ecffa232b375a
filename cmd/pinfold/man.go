//go:build man

package main

import (
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// buildCommands has the command that writes the man pages, for make man. It is
// in builds with -tags man only: the packages that it needs would add 0.3 ms to
// the start of every pinfold (GODEBUG=inittrace=1), where true takes 1 ms.
func (a *app) buildCommands() []*cobra.Command {
	return []*cobra.Command{{
		Use:    "man DIRECTORY",
		Short:  "Write the man pages into a directory",
		Hidden: true,
		Args:   exactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return &exitError{code: exitNo, err: err}
			}
			h := &doc.GenManHeader{Title: "PINFOLD", Section: "1", Source: "pinfold " + version, Manual: "Pinfold"}
			c.Root().DisableAutoGenTag = true
			if err := doc.GenManTree(c.Root(), h, args[0]); err != nil {
				return &exitError{code: exitNo, err: err}
			}
			return nil
		},
	}}
}
