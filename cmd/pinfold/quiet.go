package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"pinfold.dev/api"
)

func (a *app) quietCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "quiet DIR",
		Short: "Tell whether no process of a turn or job uses a directory",
		Long: `Tell whether a directory can be taken away without pulling it from under a
process: none of any turn or job that you may see has its directory, its root, its
program, or an open or mapped file at or below it. Symbolic links are followed.

Exit status: 0 it is quiet; 1 it is in use, or something could not be looked at;
others as in "pinfold help exit-codes".`,
		Example: `  pinfold quiet /srv/work/task-7 && rm -r /srv/work/task-7`,
		Args:    exactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			dir, err := absolute(args[0])
			if err != nil {
				return err
			}
			q, err := a.client().Quiet(c.Context(), dir)
			if err != nil {
				return err
			}
			if err := a.print(q, func(st style) string { return renderQuiet(q, st) }); err != nil {
				return err
			}
			if !q.Quiet {
				return status(exitNo)
			}
			return nil
		},
	}
}

// absolute makes a path one without the links in it being taken away by their
// "..", as filepath.Abs does.
func absolute(path string) (string, error) {
	if path == "" || filepath.IsAbs(path) {
		return path, nil
	}
	dir, err := os.Getwd()
	return dir + "/" + path, err
}

func renderQuiet(q api.Quiet, st style) string {
	if q.Quiet {
		return ""
	}
	var b strings.Builder
	t := table{head: []string{"TURN", "JOB", "PROCESS", "PID", "COMMAND", "HOW", "PATH"}, right: map[int]bool{3: true}}
	for _, u := range q.Uses {
		t.add(u.Turn, u.Job, u.Process, num(u.PID), u.Comm, u.How, u.Path)
	}
	if len(q.Uses) > 0 {
		b.WriteString(t.render(st))
	}
	for _, u := range q.Unseen {
		fmt.Fprintf(&b, "could not be looked at: %s\n", clean(u))
	}
	return b.String()
}
