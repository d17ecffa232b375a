package api

// LaunchRequest starts a process in a turn. No shell stands in between.
type LaunchRequest struct {
	Argv []string `json:"argv,omitempty"`
	// ArgvB64 is argv as base64, for words that are not UTF-8; it stands for
	// Argv.
	ArgvB64 [][]byte `json:"argv_b64,omitempty"`
	// Env is the exact environment, as NAME=value; [] is an empty one. Nil, or
	// null, means the base: PATH, HOME, USER, LOGNAME, SHELL and LANG of the
	// user it runs as, and TERM=xterm where it gets a terminal. Variables that
	// belong to a service manager (NOTIFY_SOCKET, LISTEN_*, ...) never pass.
	Env []string `json:"env,omitzero"`
	// EnvB64 is env as base64; it stands for Env.
	EnvB64 [][]byte `json:"env_b64,omitempty"`
	// EnvAdd changes the environment, the base one too: NAME=value sets,
	// NAME alone removes.
	EnvAdd []string `json:"env_add,omitempty"`
	// Cwd is an absolute path; empty means the user's home, or / where there
	// is none.
	Cwd string `json:"cwd,omitempty"`
	// CwdPolicy says what happens when Cwd does not exist; empty: must_exist.
	CwdPolicy CwdPolicy `json:"cwd_policy,omitempty"`
	Stdio     Stdio     `json:"stdio,omitzero"`
	// PassFDs are further descriptors for the process.
	PassFDs []PassFD `json:"pass_fds,omitempty"`
	// User is a name or uid; only root may name another than its own. Empty
	// means the peer's own uid, gid and groups.
	User string `json:"user,omitempty"`
	// Group is a name or gid, for root only; empty: the user's.
	Group string `json:"group,omitempty"`
	// Groups are names or gids, for root only; nil: the user's, [] none.
	Groups []string `json:"groups,omitzero"`
	// Umask is octal; empty: 0022.
	Umask string `json:"umask,omitempty"`
	// Rlimits are resource limits by their names in setrlimit(2), in lower case
	// without RLIMIT_: nofile, core, as, cpu, data, fsize, locks, memlock,
	// msgqueue, nice, nproc, rss, rtprio, rttime, sigpending, stack.
	Rlimits map[string]Rlimit `json:"rlimits,omitempty"`
	// Nice is from -20 to 19; below 0 for root only. Nil: the service's own.
	Nice *int `json:"nice,omitempty"`
	// OOMScoreAdj is from -1000 to 1000; below 0 for root only. Nil: the
	// service's own.
	OOMScoreAdj *int `json:"oom_score_adj,omitempty"`
	// NoNewPrivs takes set-user-ID programs their powers, see prctl(2).
	NoNewPrivs bool `json:"no_new_privs,omitempty"`
	// StopSignal is sent first when the turn ends with a grace, or the deadline
	// is over; empty: TERM.
	StopSignal string `json:"stop_signal,omitempty"`
	// DeadlineMS ends the process with its descendants when it runs longer: stop
	// signal, the turn's grace, kill. It goes on counting while the service is
	// down, and is lifted when the process becomes a job; 0: none.
	DeadlineMS int64 `json:"deadline_ms,omitempty"`
	// MinGrade refuses the launch where the turn is held less well.
	MinGrade Grade             `json:"min_grade,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"`
	// IdempotencyKey makes the same request of the same turn launch once: again
	// it answers the first process, with repeated set. With another request it
	// is refused. A launch that was refused does not use the key up.
	IdempotencyKey string `json:"idempotency_key,omitempty"`
	// Epoch, when not 0, must be the turn's.
	Epoch int64 `json:"epoch,omitempty"`
}

// CwdPolicy says what happens when a directory does not exist.
type CwdPolicy string

// The launch is refused, or the nearest parent that exists is used;
// Process.Cwd tells which.
const (
	CwdMustExist CwdPolicy = "must_exist"
	CwdNearest   CwdPolicy = "nearest"
)

// Rlimit is a soft and a hard limit; -1 is none. Only root may raise the hard
// one above the service's own. A request has to say soft.
type Rlimit struct {
	Soft int64 `json:"soft"`
	Hard int64 `json:"hard"`
}

// PassFD gives the process a descriptor that came with the request.
type PassFD struct {
	FD     int `json:"fd"`     // index, from 0
	Number int `json:"number"` // in the process: 3 to 1023
}

// JoinRequest moves the caller's own process into the turn.
type JoinRequest struct {
	// Argv and Cwd are what the caller is about to execute, to be shown.
	Argv       []string          `json:"argv,omitempty"`
	Cwd        string            `json:"cwd,omitempty"`
	Labels     map[string]string `json:"labels,omitempty"`
	StopSignal string            `json:"stop_signal,omitempty"`
	MinGrade   Grade             `json:"min_grade,omitempty"`
	// FinishTurn finishes the turn, by its own policy, when this process has
	// ended: once the caller has executed another program there is nobody left
	// to do that.
	FinishTurn bool  `json:"finish_turn,omitempty"`
	Epoch      int64 `json:"epoch,omitempty"`
}
