package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pinfold.dev/api"
	"pinfold.dev/client"
)

func (a *app) jobsCmd() *cobra.Command {
	var f client.JobQuery
	c := &cobra.Command{
		Use:   "jobs",
		Short: "List jobs: processes that outlive turns",
		Long: `List the jobs that you may see: your own, or everybody's as root. A job is a
process, with all that it has forked, that is meant to outlive its turn.

With --cwd only jobs whose directory is there or below, which is worth a look
before a workspace goes; "pinfold quiet DIR" looks at every process.

Exit status: see "pinfold help exit-codes".`,
		Example: `  pinfold jobs
  pinfold jobs --cwd /srv/work
  pinfold jobs --session chat-42 --json`,
		Args: exactArgs(0),
		RunE: func(c *cobra.Command, _ []string) (err error) {
			if err := notBlank(c, "session", "turn", "cwd"); err != nil {
				return err
			}
			if f.Cwd, err = absolute(f.Cwd); err != nil {
				return err
			}
			l, err := a.client().Jobs(c.Context(), f)
			if err != nil {
				return err
			}
			return a.print(l, func(st style) string { return renderJobs(l.Jobs, time.Now(), st) })
		},
	}
	c.Flags().BoolVarP(&f.All, "all", "a", false, "also jobs that have ended")
	c.Flags().StringVar(&f.Session, "session", "", "only jobs of this session")
	c.Flags().StringVar(&f.Turn, "turn", "", "only jobs made in this turn, or given to it")
	c.Flags().StringVar(&f.Cwd, "cwd", "", "only jobs whose directory is this one or below it")
	return c
}

func (a *app) jobCmd() *cobra.Command {
	c := &cobra.Command{
		Use:   "job",
		Short: "Start, make, show, move and stop jobs",
		Long: `A job is a process, with all that it has forked, that is meant to outlive its
turn: "job start" starts one in a hold of its own; "job promote" makes one of a
process that runs in a turn, which keeps its output, terminal and exit status.`,
		Args: noSuchCommand,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	for _, sub := range []*cobra.Command{a.jobStartCmd(), a.jobPromoteCmd(), a.jobShowCmd(), a.jobWaitCmd(), a.jobStopCmd(), a.jobGiveCmd()} {
		c.AddCommand(sub)
	}
	return c
}

// jobFlags are what start and promote say of a job.
type jobFlags struct {
	name, session, max string
	labels             []string
}

func (f *jobFlags) register(c *cobra.Command) {
	fs := c.Flags()
	fs.StringVar(&f.name, "name", "", "text for people: what this job is")
	fs.StringVar(&f.session, "session", "", "the session that it belongs to")
	fs.StringVar(&f.max, "max", "", "end the job when it is older than this, such as 8h")
	fs.StringArrayVar(&f.labels, "meta", nil, "your own KEY=VALUE, kept with the job (repeatable)")
}

func (f *jobFlags) maxMS(c *cobra.Command) (int64, error) {
	if f.max == "" {
		return 0, nil
	}
	d, err := parseDuration(f.max)
	if err != nil || d.Milliseconds() < 1 {
		return 0, usageError(c, "--max: %q is not a time such as 90s or 8h", f.max)
	}
	return d.Milliseconds(), nil
}

func (a *app) jobStartCmd() *cobra.Command {
	var f jobFlags
	var r runFlags
	var l limitFlags
	var grace string
	c := &cobra.Command{
		Use:   "start [flags] [--] COMMAND [ARG...]",
		Short: "Start a job in a hold of its own, and print its id",
		Long: `Start a job in a hold of its own, beside the turns, and print its id. Its
output is kept: "pinfold logs TURN PROCESS" reads it, with what "job show" tells.

Exit status: see "pinfold help exit-codes".`,
		Example: `  pinfold job start --name dev-server -- npm run dev
  pinfold job start --max 8h -C /srv/work -- make world`,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError(c, "start needs a command")
			}
			if err := notBlank(c, "session", "key"); err != nil {
				return err
			}
			r.detach = true
			launch, err := r.request(c, args)
			if err != nil {
				return err
			}
			if launch.Stdio, err = r.keptStdio(c); err != nil {
				return err
			}
			req := api.JobRequest{Launch: launch, Name: f.name, Session: f.session, MinGrade: launch.MinGrade, IdempotencyKey: r.key}
			req.Launch.IdempotencyKey = ""
			if req.MaxMS, err = f.maxMS(c); err != nil {
				return err
			}
			if req.Labels, err = pairs(c, "meta", f.labels); err != nil {
				return err
			}
			if req.Limits, err = l.limits(c); err != nil {
				return err
			}
			if req.GraceMS, err = graceMS(c, grace); err != nil {
				return err
			}
			return a.printJobID(a.client().StartJob(c.Context(), req))
		},
	}
	c.Flags().SetInterspersed(false)
	f.register(c)
	l.register(c)
	r.registerProcess(c)
	c.Flags().StringVar(&r.key, "key", "", "the same request with the same key starts one job")
	c.Flags().StringArrayVar(&r.tags, "tag", nil, "your own KEY=VALUE, kept with the process (repeatable)")
	c.Flags().BoolVarP(&r.tty, "tty", "t", false, "give the command a terminal of its own, for attach")
	c.Flags().StringVar(&r.stdin, "stdin", "", "null (default), or pipe for write and attach")
	c.Flags().StringVar(&r.stdout, "stdout", "", "spool (default), or null")
	c.Flags().StringVar(&r.stderr, "stderr", "", "spool (default), stdout for one stream of both, or null")
	c.Flags().StringVar(&r.keep, "keep", "", "how much of each stream is kept (default 16M)")
	c.Flags().StringVar(&grace, "grace", "", "time between TERM and KILL when it is stopped (default the service's)")
	c.Flags().String("min-grade", "", "refuse where the host holds it less well: scope, cgroup, pidns, subreaper or token")
	return c
}

func (a *app) printJobID(j api.Job, err error) error {
	if err != nil {
		return err
	}
	return a.print(j, func(style) string { return j.ID + "\n" })
}

func (a *app) jobPromoteCmd() *cobra.Command {
	var f jobFlags
	var req api.PromoteRequest
	c := &cobra.Command{
		Use:   "promote TURN PROCESS",
		Short: "Make a job of a process that runs in a turn, and print its id",
		Long: `Make a job of a process that was started in a turn, with all that it has
forked, or with --pid of one of its descendants: a daemon that others use. It
keeps its output, its terminal and its exit status, and outlives the turn.

Exit status: see "pinfold help exit-codes".`,
		Example: `  pinfold job promote k3v9 p2 --name dev-server
  pinfold job promote k3v9 p1 --pid 4711   # a descendant, see "pinfold tree"`,
		Args: exactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			var err error
			req.Name = f.name
			if c.Flags().Changed("session") {
				req.Session = &f.session
			}
			if req.MaxMS, err = f.maxMS(c); err != nil {
				return err
			}
			if req.Labels, err = pairs(c, "meta", f.labels); err != nil {
				return err
			}
			return a.printJobID(a.client().Promote(c.Context(), args[0], args[1], req))
		},
	}
	f.register(c)
	c.Flags().IntVar(&req.PID, "pid", 0, "only this descendant, and what it has forked")
	c.Flags().Int64Var(&req.Epoch, "epoch", 0, "refuse unless the turn has this epoch")
	return c
}

func (a *app) jobShowCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "show JOB",
		Short: "Show all that is known of a job",
		Args:  exactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return a.printJob(a.client().Job(c.Context(), args[0]))
		},
	}
}

func (a *app) printJob(j api.Job, err error) error {
	if err != nil {
		return err
	}
	return a.print(j, func(st style) string { return renderJob(j, time.Now(), st) })
}

func (a *app) jobWaitCmd() *cobra.Command {
	var timeout string
	c := &cobra.Command{
		Use:   "wait JOB",
		Short: "Wait until a job has ended, and exit with its status",
		Long: `Wait until nothing of a job runs any more, also while the service is started
again, print the job, and exit as the process did that was started.

Exit status: the process's own code, 128+n when signal n ended it, 125 when nobody
knows its status, or Pinfold could not tell it; 124 when --timeout ran out before an
end was seen; others as in "pinfold help exit-codes".`,
		Args: exactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			ctx := c.Context()
			d, err := parseDuration(cmp.Or(timeout, "0"))
			if err != nil {
				return usageError(c, "--timeout: %v", err)
			}
			if d > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeoutCause(ctx, d, errWaitTimeout)
				defer cancel()
			}
			return a.waitJob(ctx, args[0], d)
		},
	}
	c.Flags().StringVar(&timeout, "timeout", "", "give up after this long (exit status 124)")
	return c
}

func (a *app) waitJob(ctx context.Context, id string, timeout time.Duration) error {
	cl := a.client()
	j, err := cl.Job(ctx, id)
	if err == nil {
		err = insist(ctx, func(ctx context.Context) (err error) {
			j, err = cl.WaitJob(ctx, id, 0)
			return err
		})
	}
	if err != nil {
		return waitFailed(ctx, timeout, err)
	}
	if err := a.printJob(j, nil); err != nil {
		return err
	}
	return exitWith("job "+j.ID, j.Status)
}

func (a *app) jobStopCmd() *cobra.Command {
	var reason, grace string
	c := &cobra.Command{
		Use:   "stop JOB...",
		Short: "End jobs: every process of them, nothing else",
		Long: `End jobs: every process of them, and nothing else. Waits until each is seen
gone.

Exit status: 0 when all of them have ended; 1 when something could not be ended;
others as in "pinfold help exit-codes".`,
		Args: func(c *cobra.Command, args []string) error { return exactArgs(max(1, len(args)))(c, args) },
		RunE: func(c *cobra.Command, args []string) error {
			req := api.StopJobRequest{Reason: api.Reason(reason)}
			var err error
			if req.GraceMS, err = graceMS(c, grace); err != nil {
				return err
			}
			return a.stopJobs(c.Context(), args, req)
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "recorded with the job (default stop)")
	c.Flags().StringVar(&grace, "grace", "", "time between TERM and KILL; 0 kills at once (default the job's)")
	return c
}

func (a *app) stopJobs(ctx context.Context, ids []string, req api.StopJobRequest) error {
	l := api.JobList{Jobs: []api.Job{}}
	for _, id := range ids {
		j, err := a.client().StopJob(ctx, id, req)
		if err != nil {
			return err
		}
		l.Jobs, l.Grade = append(l.Jobs, j), j.Grade
	}
	return a.print(l, func(st style) string { return renderJobs(l.Jobs, time.Now(), st) })
}

func (a *app) jobGiveCmd() *cobra.Command {
	var session, turn string
	c := &cobra.Command{
		Use:   "give JOB",
		Short: "Give a job to another session, or to another turn of its owner",
		Args:  exactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			req := api.TransferRequest{Turn: turn}
			if c.Flags().Changed("session") {
				req.Session = &session
			}
			if turn == "" && req.Session == nil {
				return usageError(c, "say to whom, with --session or --turn")
			}
			return a.printJob(a.client().Transfer(c.Context(), args[0], req))
		},
	}
	c.Flags().StringVar(&session, "session", "", "the session that gets it")
	c.Flags().StringVar(&turn, "turn", "", "the turn that gets it, and whose session it takes")
	return c
}

func renderJobs(jobs []api.Job, now time.Time, st style) string {
	t := table{head: []string{"ID", "STATE", "OWNER", "AGE", "ALIVE", "SESSION", "COMMAND"}, right: map[int]bool{3: true, 4: true}}
	for _, j := range jobs {
		t.add(j.ID, jobState(j), owner(j.Owner), age(now.Sub(j.CreatedAt)), alive(j.Alive), j.Session, cmp.Or(j.Name, command(j.Argv)))
	}
	return t.render(st)
}

func jobState(j api.Job) string {
	if j.State != api.JobEnded {
		return string(j.State)
	}
	return statusText(j.Status)
}

func renderJob(j api.Job, now time.Time, st style) string {
	var b strings.Builder
	fmt.Fprintf(&b, "job %s  %s", st.paint(bold, clean(j.ID)), j.State)
	if j.Reason != "" {
		fmt.Fprintf(&b, " (%s)", clean(string(j.Reason)))
	}
	b.WriteString("\n")
	f := table{indent: "  "}
	put := func(k, v string) {
		if v != "" {
			f.add(k, v)
		}
	}
	put("name", j.Name)
	put("session", j.Session)
	for _, k := range slices.Sorted(maps.Keys(j.Labels)) {
		put("meta", k+"="+j.Labels[k])
	}
	put("owner", owner(j.Owner))
	put("origin", string(j.Origin))
	put("launch", j.Turn+" "+j.Process)
	put("listed with", j.Listed)
	put("command", command(j.Argv))
	put("cwd", j.Cwd)
	put("status", statusText(j.Status))
	put("since", stamp(j.CreatedAt)+", "+age(now.Sub(j.CreatedAt))+" ago")
	if j.EndedAt != nil {
		put("ended", stamp(*j.EndedAt))
	}
	for _, k := range j.Clocks {
		put(string(k.Name), fmt.Sprintf("%s left", age(time.Duration(k.LeftMS)*time.Millisecond)))
	}
	put("grade", string(j.Grade))
	put("cgroup", j.Cgroup)
	put("unit", j.Unit)
	put("limits", limitsText(j.Limits))
	put("alive", alive(j.Alive))
	for _, n := range j.Notes {
		put("note", n)
	}
	b.WriteString(f.render(style{utf8: st.utf8}))
	b.WriteString(survivorsText(j.Survivors, st))
	return b.String()
}
