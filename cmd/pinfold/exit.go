package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"pinfold.dev/api"
)

// The exit codes, as docs/exit-codes.md lists them. run and wait answer with
// the command's own instead, and leave to Pinfold what docker run leaves to
// docker: 125, 126 and 127.
const (
	exitNo       = 1   // it was done, and the answer is no: incomplete, unkillable, not usable
	exitUsage    = 2   // the command line is wrong
	exitNotFound = 3   // no such turn, process or receipt
	exitRefused  = 4   // the service will not: forbidden, over, no such grade or limit
	exitTimeout  = 124 // --timeout ran out, as timeout(1) has it
	exitService  = 125 // the service cannot be reached, or failed
	exitNotExec  = 126 // run: the command was found but cannot be executed
	exitNoExec   = 127 // run: the command was not found
)

// exitError says how to exit. A nil err exits without a word.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// status exits with code, silently; 0 is no error at all.
func status(code int) error {
	if code == 0 {
		return nil
	}
	return &exitError{code: code}
}

// usageError is a mistake in the command line of c.
func usageError(c *cobra.Command, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return &exitError{code: exitUsage, err: api.Errorf(api.CodeBadRequest, "%s", err).
		WithRemedy("%s --help", c.CommandPath())}
}

// notBlank refuses flags that are given and say nothing: a filter that is blank,
// from a variable that is not set, would mean everything.
func notBlank(c *cobra.Command, names ...string) error {
	for _, name := range names {
		if v := c.Flag(name).Value.String(); c.Flags().Changed(name) && (v == "" || v == "[]") {
			return usageError(c, "--%s is blank", name)
		}
	}
	return nil
}

func exactArgs(n int) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		switch {
		case len(args) < n:
			return usageError(c, "%s needs %s", c.Name(), strings.TrimPrefix(c.Use, c.Name()+" "))
		case len(args) > n:
			return usageError(c, "%s takes no argument %q", c.Name(), args[n])
		}
		return nil
	}
}

func noSuchCommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	c.SuggestionsMinimumDistance = 1 // letters that may be wrong: cobra leaves that at none
	if len(args[0]) > 4 {
		c.SuggestionsMinimumDistance = 2 // as when two have changed places
	}
	if near := slices.Sorted(slices.Values(c.SuggestionsFor(args[0]))); len(near) > 0 {
		return usageError(c, "no command %q; did you mean %s?", args[0], strings.Join(near, " or "))
	}
	return usageError(c, "no command %q", args[0])
}

// exitCode tells the error, if there is one to tell, and returns the code.
func (a *app) exitCode(err error) int {
	if err == nil {
		return 0
	}
	var e *exitError
	if errors.As(err, &e) {
		if e.err != nil {
			a.complain(e.err)
		}
		return e.code
	}
	a.complain(err)
	return codeOf(err)
}

// codeOf maps an error of the service to an exit code.
func codeOf(err error) int {
	var e *api.Error
	if !errors.As(err, &e) {
		return exitService
	}
	switch e.Code {
	case api.CodeNotFound:
		return exitNotFound
	case api.CodeTimeout:
		return exitTimeout
	case api.CodeBadRequest, api.CodeForbidden, api.CodePeerUnverifiable, api.CodeTurnOver,
		api.CodeStaleEpoch, api.CodeConflict, api.CodeTooLarge, api.CodeLaunchRefused, api.CodeExecFailed,
		api.CodeGradeUnavailable, api.CodeLimitUnavailable, api.CodeAdoptRefused:
		return exitRefused
	}
	return exitService
}

// complain writes what happened and, on a line of its own, what to do; with
// --json it writes the error, or the first of several, as the API has it.
func (a *app) complain(err error) {
	e := asAPIError(err)
	if a.asJSON {
		_ = writeJSON(a.stderr, e)
		return
	}
	if all, ok := err.(interface{ Unwrap() []error }); ok { // of several streams
		for _, err := range all.Unwrap() {
			a.complain(err)
		}
		return
	}
	what := strings.Replace(err.Error(), e.Error(), e.Message, 1)
	fmt.Fprintf(a.stderr, "pinfold: %s\n", clean(what))
	if e.Remedy != "" {
		fmt.Fprintf(a.stderr, "  try: %s\n", clean(e.Remedy))
	}
}

func asAPIError(err error) *api.Error {
	var e *api.Error
	if errors.As(err, &e) {
		return e
	}
	return api.Errorf(api.CodeUnavailable, "%s", err)
}
