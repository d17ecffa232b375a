package main

import (
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// manCmd writes the man pages; make man calls it.
func (a *app) manCmd() *cobra.Command {
	return &cobra.Command{
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
	}
}
