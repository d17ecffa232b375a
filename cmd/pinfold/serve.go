package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func (a *app) serveCmd() *cobra.Command {
	var f serveFlags
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run the service",
		Long: `Run the service: hold turns, and answer HTTP on a unix socket.

Each flag can also be set by a variable: --runtime-dir by PINFOLD_RUNTIME_DIR,
and so on. A flag wins over its variable.

The service prints one line when it is ready, and tells systemd. TERM and INT
stop it; the turns go on, and the next service finds them again.

Exit status: 0 stopped as asked; 1 it could not start or go on; 2 usage.`,
		Example: `  pinfold serve
  pinfold serve --runtime-dir /tmp/p/run --state-dir /tmp/p/state --grade cgroup`,
		Args: exactArgs(0),
		RunE: func(c *cobra.Command, _ []string) error {
			source := overlay(c.LocalNonPersistentFlags(), a.getenv)
			socket := a.socket
			if socket == "" {
				socket = a.getenv("PINFOLD_SOCKET")
			}
			o, err := f.options(source, socket, dirsFor(os.Getuid(), a.getenv), a.stderr)
			if err != nil {
				return usageError(c, "%v", err)
			}
			if o.Init, err = findInit(f.init, source["init"]); err != nil {
				return &exitError{code: exitNo, err: fmt.Errorf("serve: %w", err)}
			}
			ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			if err := runServe(ctx, o); err != nil {
				return &exitError{code: exitNo, err: fmt.Errorf("serve: %w", err)}
			}
			return nil
		},
	}
	f.register(c.Flags())
	return c
}
