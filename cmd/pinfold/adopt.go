package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"pinfold.dev/api"
	"pinfold.dev/pidfd"
)

func (a *app) adoptCmd() *cobra.Command {
	var req api.AdoptRequest
	var tags []string
	var grade string
	c := &cobra.Command{
		Use:   "adopt TURN PID...",
		Short: "Take processes that run already into a turn",
		Long: `Take processes that run already into a turn, and print their ids there. Each is
opened once, before anything is done, and is that process from then on, whoever
gets its number. It is moved into the turn's cgroup, stays its parent's child,
keeps its streams, and ends with the turn. What it forks from then on is held;
what it has forked before only with --tree. Of several, those named first are in
when a later one is refused.

What cannot be moved is refused by name, and all that was moved is moved back.
With --min-grade token it is then held by its identity alone: ended through its
handle, while what it has forked, or will, is not held.

Its real, effective, saved and file system user ids have to be the turn's
owner's; root may take any process into a turn of its own. Never taken: the
service, keepers, what a turn holds, threads, zombies.

Exit status: see "pinfold help exit-codes".`,
		Example: `  pinfold adopt k3v9 4711
  pinfold adopt k3v9 $(pidof tmux) --tree
  pinfold adopt k3v9 $$ --ancestor    # this very shell`,
		Args: func(c *cobra.Command, args []string) error { return exactArgs(max(2, len(args)))(c, args) },
		RunE: func(c *cobra.Command, args []string) error {
			err := notBlank(c, "key")
			if err != nil {
				return err
			}
			if req.Labels, err = pairs(c, "tag", tags); err != nil {
				return err
			}
			if len(args) > 2 && req.IdempotencyKey != "" {
				return usageError(c, "--key is for one process, these are %d", len(args)-1)
			}
			req.MinGrade = api.Grade(grade)
			return a.adopt(c, args[0], args[1:], req)
		},
	}
	fs := c.Flags()
	fs.BoolVar(&req.Tree, "tree", false, "with its descendants, as far as their parents live")
	fs.BoolVar(&req.Ancestor, "ancestor", false, "even if it is an ancestor of this command, or the turn's client")
	fs.StringVar(&grade, "min-grade", "", "how well it has to be held; token: by its identity, where it cannot be moved")
	fs.StringArrayVar(&tags, "tag", nil, "your own KEY=VALUE, kept with the process (repeatable)")
	fs.StringVar(&req.StopSignal, "stop-signal", "", "sent first when the turn ends with a grace (default TERM)")
	fs.StringVar(&req.IdempotencyKey, "key", "", "the same request with the same key adopts once")
	fs.Int64Var(&req.Epoch, "epoch", 0, "refuse unless the turn has this epoch")
	return c
}

// adopt opens all first: a wrong number is told before anything is done.
func (a *app) adopt(c *cobra.Command, turn string, words []string, req api.AdoptRequest) error {
	var meant []*meant
	defer func() {
		for _, m := range meant {
			m.file.Close()
		}
	}()
	for _, w := range words {
		m, err := openMeant(c, w)
		if err != nil {
			return err
		}
		meant = append(meant, m)
	}
	done := api.ProcessList{Processes: []api.Process{}}
	var err error
	for _, m := range meant {
		req.Process = m.id
		var p api.Process
		if p, err = a.adoptOne(c.Context(), turn, req, m); err != nil {
			break
		}
		done.Processes, done.Grade = append(done.Processes, p), p.Grade
	}
	if len(done.Processes) > 0 {
		if perr := a.print(done, func(style) string { return adoptedText(done.Processes) }); perr != nil {
			return perr
		}
	}
	return err
}

func (a *app) adoptOne(ctx context.Context, turn string, req api.AdoptRequest, m *meant) (api.Process, error) {
	p, err := a.client().Adopt(ctx, turn, req, m.file)
	if err == nil && p.Grade == api.GradeToken {
		fmt.Fprintf(a.stderr, "pinfold: note: %s (process %d) is held by its identity alone, and what it has forked, or will, is not held\n", p.ID, p.PID)
	}
	return p, err
}

func adoptedText(all []api.Process) string {
	var b strings.Builder
	for _, p := range all {
		b.WriteString(p.ID + "\n")
	}
	return b.String()
}

// meant is a process as we have seen it, and its pidfd.
type meant struct {
	id   api.Identity
	file *os.File
}

func openMeant(c *cobra.Command, word string) (*meant, error) {
	pid, err := strconv.Atoi(word)
	if err != nil || pid <= 1 {
		return nil, usageError(c, "%q is not the number of a process that can be adopted", word)
	}
	h, err := pidfd.OpenNumber(pid)
	if err != nil {
		return nil, cannotOpen(pid, err)
	}
	defer h.Close()
	id, err := h.Identity()
	if err != nil {
		return nil, err
	}
	fd, err := h.Dup()
	if err != nil {
		return nil, err
	}
	return &meant{id, os.NewFile(uintptr(fd), "pidfd")}, nil
}

// cannotOpen says what a number is that names no process.
func cannotOpen(pid int, err error) error {
	var t *pidfd.ThreadError
	switch {
	case errors.As(err, &t):
		return api.AdoptThread.Refuse(pid, "%d is a thread of process %d", t.TID, t.PID).With("process", strconv.Itoa(t.PID)).WithRemedy("adopt process %d", t.PID)
	case errors.Is(err, pidfd.ErrGone):
		return api.AdoptGone.Refuse(pid, "there is no process %d", pid)
	}
	return err
}

// adoptionText says how a process came into its turn that ran before.
func adoptionText(p api.Process) string {
	if p.Adopted == nil {
		return ""
	}
	how := "by its identity alone"
	if p.Adopted.Moved > 0 {
		how = count(p.Adopted.Moved, "process") + " moved out of " + clean(p.Adopted.From)
	}
	words := []string{fmt.Sprintf("adopted %s by %s", stamp(p.Adopted.At), clean(actorText(p.Adopted.By))), how}
	for _, e := range p.Adopted.Evidence {
		words = append(words, clean(e))
	}
	return wrap("  "+clean(p.ID)+"  ", words, ";")
}
