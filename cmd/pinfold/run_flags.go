package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"pinfold.dev/api"
	"pinfold.dev/containment"
)

// runFlags are what run says of the process; turnFlags, of its own turn.
type runFlags struct {
	turn, user, group, groups, cwd, stopSignal string
	onClientGone                               string
	umask, deadline, key                       string
	stdin, stdout, stderr, keep                string
	env, tags, rlimits                         []string
	tty, detach, inPlace                       bool
	clearEnv, cwdNearest, noNewPrivs           bool
	nice, oomScoreAdj                          int
	epoch                                      int64
}

func (f *runFlags) register(c *cobra.Command) {
	fs := c.Flags()
	fs.StringVarP(&f.turn, "turn", "T", "", "join this open turn instead of a new one")
	fs.BoolVarP(&f.tty, "tty", "t", false, "give the command a terminal of its own, which this one stands for")
	fs.BoolVarP(&f.detach, "detach", "d", false, "print turn and process id and leave; the turn stays open, and the output is kept for logs")
	fs.BoolVar(&f.inPlace, "in-place", false, "move this very process into the turn, then execute the command as it")
	fs.StringVar(&f.onClientGone, "on-client-gone", "", "when this command itself is killed: abandon (default) its turn, or detach, which lets the turn go on")
	f.registerProcess(c)
	fs.StringVar(&f.deadline, "deadline", "", "end the command, with all that it started, when it runs longer than this, such as 10m")
	fs.StringVar(&f.key, "key", "", "with --turn: the same request with the same key launches once")
	fs.StringArrayVar(&f.tags, "tag", nil, "your own KEY=VALUE, kept with the process (repeatable)")
	fs.StringVar(&f.stdin, "stdin", "", "with --detach: null (default), or pipe for write and attach")
	fs.StringVar(&f.stdout, "stdout", "", "with --detach: spool (default), or null")
	fs.StringVar(&f.stderr, "stderr", "", "with --detach: spool (default), stdout for one stream of both, or null")
	fs.StringVar(&f.keep, "keep", "", "with --detach or --tty: how much of each stream is kept (default 16M)")
	fs.Int64Var(&f.epoch, "epoch", 0, "with --turn: refuse unless the turn has this epoch")
}

// registerProcess registers what is said of any process.
func (f *runFlags) registerProcess(c *cobra.Command) {
	fs := c.Flags()
	fs.StringVarP(&f.user, "user", "u", "", "run as this user (only root may name another)")
	fs.StringVar(&f.group, "group", "", "run as this group (only root)")
	fs.StringVar(&f.groups, "groups", "", "supplementary groups, with commas; - for none (only root)")
	fs.StringVarP(&f.cwd, "cwd", "C", "", "directory to run in (default: this one)")
	fs.BoolVar(&f.cwdNearest, "cwd-nearest", false, "where that does not exist, use the nearest parent that does")
	fs.StringArrayVarP(&f.env, "env", "e", nil, "set NAME=VALUE, or pass NAME on, in the command's environment (repeatable)")
	fs.BoolVar(&f.clearEnv, "clear-env", false, "pass nothing of this environment; only what --env says")
	fs.StringVar(&f.umask, "umask", "", "file mode creation mask, in octal (default: this one)")
	fs.StringArrayVar(&f.rlimits, "rlimit", nil, "set a limit of setrlimit(2): NAME=SOFT[:HARD], such as nofile=1024:4096; - is none (repeatable)")
	fs.IntVar(&f.nice, "nice", 0, "niceness, -20 to 19 (below 0 only root)")
	fs.IntVar(&f.oomScoreAdj, "oom-score-adj", 0, "preference as a victim when memory runs out, -1000 to 1000 (below 0 only root)")
	fs.BoolVar(&f.noNewPrivs, "no-new-privs", false, "set-user-ID programs gain nothing")
	fs.StringVar(&f.stopSignal, "stop-signal", "", "what asks the command to stop when its turn is ended (default TERM)")
}

// check refuses flags that mean something together with others only.
func (f *runFlags) check(c *cobra.Command, ownTurn []string) error {
	said := func(names ...string) (string, bool) {
		for _, n := range names {
			if c.Flags().Changed(n) {
				return n, true
			}
		}
		return "", false
	}
	if n, ok := said(ownTurn...); ok && f.turn != "" {
		return usageError(c, "--%s is for a turn of the command's own: the turn %s has its own already", n, f.turn)
	}
	if n, ok := said("key", "epoch"); ok && f.turn == "" {
		return usageError(c, "--%s is for a turn that is open already: name it with --turn", n)
	}
	if n, ok := said("stdin", "stdout", "stderr"); ok && (!f.detach || f.tty) {
		return usageError(c, "--%s is for --detach without --tty", n)
	}
	if f.onClientGone != "" && f.turn != "" {
		return usageError(c, "--on-client-gone is for a turn of the command's own: what becomes of the turn %s was said when it began", f.turn)
	}
	if f.onClientGone != "" && (f.detach || f.inPlace) {
		return usageError(c, "--on-client-gone is for a command that this one stays with, not for --detach and --in-place")
	}
	if f.keep != "" && !f.detach && !f.tty {
		return usageError(c, "--keep is for --detach and --tty")
	}
	if !f.inPlace {
		return nil
	}
	if n, ok := said("tty", "detach", "user", "group", "groups", "rlimit", "nice", "oom-score-adj", "no-new-privs", "deadline", "key", "keep"); ok {
		return usageError(c, "--%s is for a process that the service starts; with --in-place it is this one", n)
	}
	return nil
}

// request is the launch, without its streams.
func (f *runFlags) request(c *cobra.Command, argv []string) (api.LaunchRequest, error) {
	minGrade, _ := c.Flags().GetString("min-grade")
	req := api.LaunchRequest{Argv: argv, Cwd: f.cwd, User: f.user, Group: f.group, Umask: f.umask, NoNewPrivs: f.noNewPrivs,
		StopSignal: f.stopSignal, MinGrade: api.Grade(minGrade), IdempotencyKey: f.key, Epoch: f.epoch}
	if !isGrade(req.MinGrade) {
		return req, usageError(c, "--min-grade: %q is not a grade", minGrade)
	}
	if req.Cwd == "" {
		var err error
		if req.Cwd, err = f.here(); err != nil {
			return req, &exitError{exitService, fmt.Errorf("find the current directory: %w; name one with --cwd", err)}
		}
	}
	if f.cwdNearest {
		req.CwdPolicy = api.CwdNearest
	}
	if req.Umask == "" {
		req.Umask = selfStatus("Umask")
	}
	if err := f.attributes(c, &req); err != nil {
		return req, err
	}
	base := os.Environ()
	if !f.inPlace {
		base = slices.DeleteFunc(base, nameless)
	}
	if f.inPlace && !isOfUnit(base, os.Getpid()) {
		base = containment.WithoutManagers(base) // as the service does to what it launches
	}
	if f.clearEnv {
		base = []string{}
	} else if f.user != "" {
		base = asUser(base, f.user)
	}
	var err error
	req.Env, err = withEnv(c, base, f.env)
	return req, err
}

// bind is what the turn of a command that we stay with is bound to: this process,
// which ends by SIGKILL unasked, as by a caller's timeout.
func (f *runFlags) bind(c *cobra.Command) (api.Client, error) {
	gone := api.OnGone(f.onClientGone)
	switch gone {
	case "":
		gone = api.OnGoneAbandon
	case api.OnGoneAbandon, api.OnGoneDetach:
	default:
		return api.Client{}, usageError(c, "--on-client-gone: %q is neither abandon nor detach", f.onClientGone)
	}
	if f.detach || f.inPlace || gone == api.OnGoneDetach {
		return api.Client{}, nil
	}
	return api.Client{Bind: api.BindProcess, OnGone: gone}, nil
}

// nameless tells of a word of an environment that is not NAME=value. Whoever
// executed us can have put one in; the API takes none.
func nameless(word string) bool { return strings.IndexByte(word, '=') <= 0 }

// here is the current directory. It need not be one that we may look at, and with
// --in-place none that still has a name: then that is empty.
func (f *runFlags) here() (string, error) {
	wd, err := os.Getwd()
	if err == nil {
		return wd, nil
	}
	if known, kerr := syscall.Getwd(); kerr == nil {
		return known, nil
	}
	switch was := os.Getenv("PWD"); {
	case f.cwdNearest && filepath.IsAbs(was):
		return was, nil
	case f.stays():
		return "", nil
	}
	return "", err
}

// stays tells that the command is to run right here.
func (f *runFlags) stays() bool { return f.inPlace && f.cwd == "" && !f.cwdNearest }

// isOfUnit reports whether a service manager's variables are meant for this
// process, by the pid that they name: then they are for what it becomes, too.
// See sd_listen_fds(3), sd_watchdog_enabled(3), and SYSTEMD_EXEC_PID in
// systemd.exec(5), since systemd 248.
func isOfUnit(env []string, pid int) bool {
	for _, name := range []string{"SYSTEMD_EXEC_PID", "LISTEN_PID", "WATCHDOG_PID"} {
		if slices.Contains(env, name+"="+strconv.Itoa(pid)) {
			return true
		}
	}
	return false
}

func (f *runFlags) attributes(c *cobra.Command, req *api.LaunchRequest) (err error) {
	fs := c.Flags()
	if fs.Changed("nice") {
		req.Nice = &f.nice
	}
	if fs.Changed("oom-score-adj") {
		req.OOMScoreAdj = &f.oomScoreAdj
	}
	switch f.groups {
	case "":
	case "-":
		req.Groups = []string{}
	default:
		req.Groups = strings.Split(f.groups, ",")
	}
	if req.Labels, err = pairs(c, "tag", f.tags); err != nil {
		return err
	}
	if req.Rlimits, err = rlimits(c, f.rlimits); err != nil {
		return err
	}
	if f.deadline != "" {
		d, err := parseDuration(f.deadline)
		if err != nil || d.Milliseconds() < 1 {
			return usageError(c, "--deadline: %q is not a time such as 90s or 10m", f.deadline)
		}
		req.DeadlineMS = d.Milliseconds()
	}
	return nil
}

// rlimits turns NAME=SOFT[:HARD] words into limits.
func rlimits(c *cobra.Command, words []string) (map[string]api.Rlimit, error) {
	given, err := pairs(c, "rlimit", words)
	if err != nil || len(given) == 0 {
		return nil, err
	}
	all := make(map[string]api.Rlimit, len(given))
	for name, v := range given {
		soft, hard, two := strings.Cut(v, ":")
		if !two {
			hard = soft
		}
		var l api.Rlimit
		if l.Soft, err = rlimit(soft); err == nil {
			l.Hard, err = rlimit(hard)
		}
		if err != nil {
			return nil, usageError(c, "--rlimit: %q is not SOFT or SOFT:HARD, such as 1024:4096", v)
		}
		all[strings.ToLower(name)] = l
	}
	return all, nil
}

func rlimit(s string) (int64, error) {
	if slices.Contains([]string{"-", "-1", "unlimited", "infinity"}, s) {
		return -1, nil
	}
	n, err := parseBytes(s)
	if err != nil || s == "" || n == math.MaxInt64 {
		return 0, strconv.ErrSyntax
	}
	return n, nil
}

// keptStdio is where the streams of a detached command go.
func (f *runFlags) keptStdio(c *cobra.Command) (api.Stdio, error) {
	most, err := parseBytes(f.keep)
	if err != nil {
		return api.Stdio{}, usageError(c, "--keep: %v", err)
	}
	if f.tty {
		s := terminalStdio(stdinTerminal().size())
		s.Stdout.MaxBytes = most
		return s, nil
	}
	var s api.Stdio
	for _, x := range []struct {
		name, said string
		to         *api.Stream
		takes      []api.StdioMode // the first one where nothing is said
	}{
		{"stdin", f.stdin, &s.Stdin, []api.StdioMode{api.StdioNull, api.StdioPipe}},
		{"stdout", f.stdout, &s.Stdout, []api.StdioMode{api.StdioSpool, api.StdioNull}},
		{"stderr", f.stderr, &s.Stderr, []api.StdioMode{api.StdioSpool, api.StdioStdout, api.StdioNull}},
	} {
		mode := api.StdioMode(x.said)
		if mode == "" {
			mode = x.takes[0]
		}
		if !slices.Contains(x.takes, mode) {
			return s, usageError(c, "--%s: %q is not one of %v", x.name, x.said, x.takes)
		}
		x.to.Mode = mode
		if mode == api.StdioSpool {
			x.to.MaxBytes = most
		}
	}
	return s, nil
}
