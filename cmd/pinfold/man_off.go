//go:build !man

package main

import "github.com/spf13/cobra"

// buildCommands are commands for the build itself: none, see man.go.
func (a *app) buildCommands() []*cobra.Command { return nil }
