package wire

// The fields of each type, in the order in which they are written. The tags in
// the type say the same; a test holds the two together.

func (m *Message) fields(c *coder) {
	unsigned(c, "id", &m.ID, omit)
	str(c, "op", &m.Op, omit)
	str(c, "event", &m.Event, omit)
	signed(c, "fds", &m.FDs, omit)
	one(c, "error", &m.Error)
	signed(c, "journal_errors", &m.JournalErrors, omit)
	one(c, "hello", &m.Hello)
	one(c, "hold", &m.Hold)
	one(c, "launch", &m.Launch)
	one(c, "started", &m.Started)
	one(c, "signal", &m.Signal)
	one(c, "fenced", &m.Fenced)
	one(c, "census", &m.Census)
	one(c, "exit", &m.Exit)
	one(c, "input", &m.Input)
	one(c, "resize", &m.Resize)
	one(c, "end", &m.End)
	one(c, "ended", &m.Ended)
}

func (e *Error) fields(c *coder) {
	str(c, "kind", &e.Kind, keep)
	str(c, "message", &e.Message, keep)
	signed(c, "errno", &e.Errno, omit)
	str(c, "path", &e.Path, omit)
}

func (h *Hello) fields(c *coder) {
	signed(c, "version", &h.Version, keep)
	str(c, "turn", &h.Turn, keep)
	str(c, "nonce", &h.Nonce, keep)
	signed(c, "pid", &h.PID, omit)
	str(c, "build", &h.Build, omit)
	c.flag("fenced", &h.Fenced)
	c.flag("held", &h.Held)
	many(c, "processes", &h.Processes)
	signed(c, "skip", &h.Skip, omit)
	c.flag("more", &h.More)
	signed(c, "dropped", &h.Dropped, omit)
	c.flag("output_maxed", &h.OutputMaxed)
}

func (p *Process) fields(c *coder) {
	c.object("started", &p.Started)
	one(c, "exit", &p.Exit)
	c.flag("has_fd", &p.HasFD)
}

func (h *Hold) fields(c *coder) {
	str(c, "work", &h.Work, keep)
	c.flag("gate", &h.Gate)
	str(c, "spool", &h.Spool, omit)
	signed(c, "output_max", &h.OutputMax, omit)
	c.flag("bare", &h.Bare)
}

func (l *Launch) fields(c *coder) {
	str(c, "process", &l.Process, keep)
	c.strings("argv", &l.Argv, keep)
	c.strings("env", &l.Env, keep)
	str(c, "cwd", &l.Cwd, keep)
	c.flag("set_user", &l.SetUser)
	unsigned(c, "uid", &l.UID, omit)
	unsigned(c, "gid", &l.GID, omit)
	c.numbers("groups", &l.Groups)
	signed(c, "stdin", &l.Stdin, keep)
	signed(c, "stdout", &l.Stdout, keep)
	signed(c, "stderr", &l.Stderr, keep)
	str(c, "meta", &l.Meta, omit)
	c.number("umask", &l.Umask)
	many(c, "rlimits", &l.Rlimits)
	c.number("nice", &l.Nice)
	c.number("oom_score_adj", &l.OOMScoreAdj)
	c.flag("no_new_privs", &l.NoNewPrivs)
	c.flag("cwd_nearest", &l.CwdNearest)
	many(c, "extra", &l.Extra)
	c.flag("stdin_pipe", &l.StdinPipe)
	signed(c, "spool_out", &l.SpoolOut, omit)
	signed(c, "spool_err", &l.SpoolErr, omit)
	c.flag("err_to_out", &l.ErrToOut)
	one(c, "pty", &l.PTY)
	c.flag("tty_in", &l.TTYIn)
	c.flag("tty_out", &l.TTYOut)
	c.flag("tty_err", &l.TTYErr)
	str(c, "key", &l.Key, omit)
}

func (r *Rlimit) fields(c *coder) {
	signed(c, "resource", &r.Resource, keep)
	unsigned(c, "soft", &r.Soft, keep)
	unsigned(c, "hard", &r.Hard, keep)
}

func (e *ExtraFD) fields(c *coder) {
	signed(c, "index", &e.Index, keep)
	signed(c, "number", &e.Number, keep)
}

func (w *WinSize) fields(c *coder) {
	signed(c, "rows", &w.Rows, keep)
	signed(c, "cols", &w.Cols, keep)
}

func (i *Input) fields(c *coder) {
	str(c, "process", &i.Process, keep)
	c.bytes("data", &i.Data)
	c.flag("eof", &i.EOF)
}

func (r *Resize) fields(c *coder) {
	str(c, "process", &r.Process, keep)
	c.object("size", &r.Size)
}

func (s *Started) fields(c *coder) {
	str(c, "process", &s.Process, keep)
	signed(c, "pid", &s.PID, keep)
	c.strings("argv", &s.Argv, omit)
	unsigned(c, "uid", &s.UID, keep)
	str(c, "cwd", &s.Cwd, omit)
	unsigned(c, "start_ticks", &s.StartTicks, omit)
	unsigned(c, "pidfs_ino", &s.Ino, omit)
	unsigned(c, "cgroup_id", &s.CgroupID, omit)
	str(c, "leaf", &s.Leaf, keep)
	str(c, "placement", &s.Placement, keep)
	signed(c, "started_ns", &s.StartedNS, keep)
	str(c, "meta", &s.Meta, omit)
}

func (e *Exit) fields(c *coder) {
	str(c, "process", &e.Process, keep)
	signed(c, "pid", &e.PID, keep)
	signed(c, "code", &e.Code, omit)
	signed(c, "signal", &e.Signal, omit)
	c.flag("core", &e.Core)
	signed(c, "ended_ns", &e.EndedNS, keep)
	signed(c, "oom_kills", &e.OOMKills, omit)
}

func (s *Signal) fields(c *coder) {
	str(c, "process", &s.Process, keep)
	signed(c, "number", &s.Number, keep)
	c.flag("foreground", &s.Foreground)
}

func (f *Fenced) fields(c *coder) {
	signed(c, "launched", &f.Launched, keep)
}

func (x *Census) fields(c *coder) {
	signed(c, "reaped", &x.Reaped, keep)
	many(c, "outside", &x.Outside)
	c.flag("alone", &x.Alone)
	str(c, "unseen", &x.Unseen, omit)
}

func (e *End) fields(c *coder) {
	signed(c, "number", &e.Number, keep)
	signed(c, "bound_ms", &e.BoundMS, omit)
}

func (e *Ended) fields(c *coder) {
	c.flag("alone", &e.Alone)
	signed(c, "rounds", &e.Rounds, omit)
	signed(c, "seen", &e.Seen, omit)
	many(c, "left", &e.Left)
	str(c, "unseen", &e.Unseen, omit)
	c.flag("whole", &e.Whole)
}

func (m *Member) fields(c *coder) {
	signed(c, "pid", &m.PID, keep)
	str(c, "process", &m.Process, omit)
	str(c, "comm", &m.Comm, omit)
	str(c, "cgroup", &m.Cgroup, keep)
}

func (e *Entry) fields(c *coder) {
	signed(c, "at_ns", &e.AtNS, keep)
	str(c, "fact", &e.Fact, keep)
	str(c, "process", &e.Process, omit)
	one(c, "hello", &e.Hello)
	one(c, "started", &e.Started)
	one(c, "error", &e.Error)
	one(c, "exit", &e.Exit)
}
