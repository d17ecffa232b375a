package main

import "github.com/spf13/cobra"

// exitCodesHelp is also the first part of docs/exit-codes.md; a test holds the
// two together.
const exitCodesHelp = `The exit codes are stable.

  0    done; finish and abandon: the receipt is complete
  1    the answer is no: receipt incomplete, turn unkillable, signal not
       needed, nobody reads what write writes, directory in use, event
       acknowledged before, host not usable; wait TURN: not finished but ended
       otherwise
  2    the command line is wrong
  3    no such turn, process or receipt
  4    refused: not yours, already over, stale epoch, no such grade or limit
  124  --timeout ran out, or the service gave up waiting
  125  the service cannot be reached, or failed

run, attach, wait TURN PROCESS and job wait answer with the command's own code:

  n    the command exited with n
  128+n  signal n ended it (137: KILL, 143: TERM)
  125  anything of Pinfold: service, request, or a status that nobody saw
  126  run: the command was found but cannot be executed
  127  run: the command was not found
`

// topics are help pages that are not commands.
func topics() []*cobra.Command {
	return []*cobra.Command{{
		Use:   "exit-codes",
		Short: "The exit codes of every command",
		Long:  exitCodesHelp,
	}}
}
