package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

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
stop it; the turns go on, and the next service finds them again ("pinfold stop
--turns" ends them). HUP is ignored; so is a log that nobody reads: lines that are
not taken in time are lost, and counted there.

Under systemd a socket that a socket unit passes is used; it must be the one that
--socket names, if that is given. Where the unit has FileDescriptorStoreMax=, the
service's own socket is kept over a restart, so that no client is turned away, and
so are handles of the processes that it has launched.

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
			if err := o.meetSystemd(a.getenv, socket); err != nil {
				return &exitError{code: exitNo, err: fmt.Errorf("serve: %w", err)}
			}
			say := newBehind(os.Stdout, nil)
			defer say.flush(lastWords)
			defer o.log.flush(lastWords)
			o.Say = say
			ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			goOn()
			if err := runServe(ctx, o); err != nil {
				return &exitError{code: exitNo, err: fmt.Errorf("serve: %w", err)}
			}
			return nil
		},
	}
	f.register(c.Flags())
	return c
}

// lastWords is how long a service that ends waits for its log to be taken.
const lastWords = time.Second

// goOn has a terminal that hangs up, and a log's reader that has gone, not end
// the service. They are caught, not ignored, so that no child inherits that.
func goOn() { signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGPIPE) }
