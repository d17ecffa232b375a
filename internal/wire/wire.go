// Package wire is the protocol between the service and a turn's keeper: JSON
// frames over a unix stream socket, with descriptors as SCM_RIGHTS. It carries
// a version, and a newer service speaks to an older keeper, so fields are only
// ever added.
//
// A frame is a 4-byte big-endian length and that many bytes of JSON (one
// Message). Descriptors travel with the frame's first byte; Message.FDs says
// how many there are. One side asks with an id, the other answers with the
// same id; a message with an event and no id is the keeper's announcement.
//
// The keeper is in package reaper; the service's side is in internal/hold.
package wire

// Version is this protocol's. A keeper says its own in its hello; the service
// uses no operation, and no field of a launch, that a keeper's version did not
// have: it refuses what would need them.
//
// Version 2 has the operations of standard streams, and what Launch says of
// them and of the process's own attributes (Launch.NeedsVersion2). Version 3 has
// Launch.Key. Version 4 has turns without a cgroup: Hold.Bare, OpEnd and
// Census.Alone.
const Version = 4

// MaxFrame bounds a frame: the kernel takes at most 2 MiB of arguments and
// environment by default, JSON may double that.
const MaxFrame = 8 << 20

// Op names an operation.
type Op string

// The operations of version 1.
const (
	OpHello  Op = "hello"  // Hello → Hello; pidfds of live processes come along
	OpHold   Op = "hold"   // Hold → nothing: the cgroups are made, launches may come
	OpLaunch Op = "launch" // Launch (+ stdio descriptors) → Started (+ pidfd)
	OpSignal Op = "signal" // Signal → nothing
	OpFence  Op = "fence"  // → Fenced: nothing is launched after this answer
	OpCensus Op = "census" // → Census: who is left below the keeper
	OpQuit   Op = "quit"   // → nothing; the keeper exits after the answer
)

// The operations of version 2.
const (
	// OpInput: Input → nothing. The answer comes once the keeper has taken the
	// bytes; it keeps at most 64 KiB a process that the process has not read,
	// and answers a later Input only when there is room again. ErrClosed: the
	// process no longer reads, or its stdin was closed.
	OpInput Op = "input"
	// OpResize: Resize → nothing. ErrNotTerminal: it has no terminal.
	OpResize Op = "resize"
	// OpCloseTTY: Input (its process only) → nothing: the terminal hangs up,
	// which its foreground group is told by SIGHUP. It never waits for those
	// that still hold the terminal open.
	OpCloseTTY Op = "close_tty"
)

// OpEnd, of version 4, is for turns without a cgroup: End → Ended. The keeper
// signals its own children, orphans that came to it among them: each is unreaped,
// so that its number is its own.
const OpEnd Op = "end"

// Event names an announcement.
type Event string

// EventOutputMax announces, once, that the turn's output has come to
// Hold.OutputMax. What comes after it is counted and dropped.
const EventOutputMax Event = "output_max"

// EventExit announces the end of a launched process; it is in the journal by
// then.
const EventExit Event = "exit"

// EventStarted announces a launch that another connection had asked for, with
// its pidfd: a service that came back while it was being decided learns of it.
const EventStarted Event = "started"

// Message is one frame. Exactly one of the bodies that fit its op or event is
// set.
type Message struct {
	ID    uint64 `json:"id,omitempty"`
	Op    Op     `json:"op,omitempty"`
	Event Event  `json:"event,omitempty"`
	FDs   int    `json:"fds,omitempty"`
	Error *Error `json:"error,omitempty"` // in answers
	// JournalErrors counts, in answers and announcements, the facts that the
	// keeper could not write to its journal (disk full) since it began.
	JournalErrors int `json:"journal_errors,omitempty"`

	Hello   *Hello   `json:"hello,omitempty"`
	Hold    *Hold    `json:"hold,omitempty"`
	Launch  *Launch  `json:"launch,omitempty"`
	Started *Started `json:"started,omitempty"`
	Signal  *Signal  `json:"signal,omitempty"`
	Fenced  *Fenced  `json:"fenced,omitempty"`
	Census  *Census  `json:"census,omitempty"`
	Exit    *Exit    `json:"exit,omitempty"`
	Input   *Input   `json:"input,omitempty"`
	Resize  *Resize  `json:"resize,omitempty"`
	End     *End     `json:"end,omitempty"`
	Ended   *Ended   `json:"ended,omitempty"`
}

// Error is a refused operation. Kind says which step failed.
type Error struct {
	Kind    string `json:"kind"` // see the Err constants
	Message string `json:"message"`
	Errno   int    `json:"errno,omitempty"`
	Path    string `json:"path,omitempty"`
}

// Kinds of error.
const (
	ErrExec     = "exec"     // execve or the path look-up refused
	ErrCwd      = "cwd"      // chdir refused
	ErrUser     = "user"     // setuid, setgid or setgroups refused
	ErrCgroup   = "cgroup"   // the leaf could not be made or entered
	ErrFork     = "fork"     // clone refused (EAGAIN: pids limit)
	ErrFenced   = "fenced"   // the turn is ending
	ErrFrozen   = "frozen"   // the turn's cgroup is frozen; a launch would hang
	ErrNotFound = "notfound" // no such process
	ErrUsed     = "used"     // there is, or was, a process of that id
	ErrProtocol = "protocol" // malformed or unknown request
	ErrJournal  = "journal"  // the journal could not be written
	ErrInternal = "internal"

	// Of version 2.
	ErrAttribute   = "attribute" // umask, rlimit, nice or oom_score_adj refused; Path names which
	ErrStdio       = "stdio"     // a pipe, a spool or a terminal could not be made; Path names the file
	ErrClosed      = "closed"    // nobody reads that stdin any more
	ErrNotTerminal = "notterminal"
)

// Hello introduces either side. The nonce proves to the service that this is
// the keeper it started for this turn.
type Hello struct {
	Version   int       `json:"version"`
	Turn      string    `json:"turn"`
	Nonce     string    `json:"nonce"`
	PID       int       `json:"pid,omitempty"`       // keeper's answer, own PID namespace
	Build     string    `json:"build,omitempty"`     // keeper's answer
	Fenced    bool      `json:"fenced,omitempty"`    // keeper's answer
	Held      bool      `json:"held,omitempty"`      // keeper's answer: OpHold was done
	Processes []Process `json:"processes,omitempty"` // keeper's answer
	// Skip is, in the question, how many processes of the list the asker has
	// already; More, in the answer, says that the list goes on: ask again with
	// Skip raised by len(Processes). One frame holds at most MaxFDs handles.
	Skip int  `json:"skip,omitempty"`
	More bool `json:"more,omitempty"`
	// Dropped counts the oldest ended launches, which the keeper no longer
	// lists; the journal has them.
	Dropped int `json:"dropped,omitempty"`
	// OutputMaxed is the keeper's answer: EventOutputMax was announced.
	OutputMaxed bool `json:"output_maxed,omitempty"`
}

// Process is one launch as the keeper knows it. Where it is alive, HasFD tells
// that its pidfd is among the frame's descriptors, in the order of the list.
type Process struct {
	Started Started `json:"started"`
	Exit    *Exit   `json:"exit,omitempty"`
	HasFD   bool    `json:"has_fd,omitempty"`
}

// Hold tells the keeper where its turn's cgroup is. Work is the directory
// below which it makes one fresh leaf per launch.
type Hold struct {
	Work string `json:"work"`
	// Gate makes it launch through the gate (child held, moved by
	// cgroup.procs, let go) instead of CLONE_INTO_CGROUP.
	Gate bool `json:"gate,omitempty"`
	// Spool is a directory for the files of package spool, which exists by the
	// time that a launch has one: one a spooled stream, <process>.stdout and <process>.stderr. Empty: no launch
	// has a spool.
	Spool string `json:"spool,omitempty"`
	// OutputMax bounds the bytes that all spools of the turn take in; 0: no
	// bound.
	OutputMax int64 `json:"output_max,omitempty"`
	// Bare, of version 4: there is no cgroup, Work is empty, and launches are born
	// where the keeper is.
	Bare bool `json:"bare,omitempty"`
}

// Launch asks for a process. The descriptors named by Stdin, Stdout and Stderr
// are indices into the frame's; -1 is /dev/null.
type Launch struct {
	Process string   `json:"process"` // p1, p2, …: also the leaf's name
	Argv    []string `json:"argv"`
	Env     []string `json:"env"`
	Cwd     string   `json:"cwd"`
	// SetUser makes the child drop to UID, GID and Groups before exec.
	SetUser bool     `json:"set_user,omitempty"`
	UID     uint32   `json:"uid,omitempty"`
	GID     uint32   `json:"gid,omitempty"`
	Groups  []uint32 `json:"groups,omitempty"`
	Stdin   int      `json:"stdin"`
	Stdout  int      `json:"stdout"`
	Stderr  int      `json:"stderr"`
	// Meta is the service's own; it comes back in Started, also after a
	// restart.
	Meta string `json:"meta,omitempty"`

	// What follows is of version 2.

	Umask       *int      `json:"umask,omitempty"`         // nil: 0022
	Rlimits     []Rlimit  `json:"rlimits,omitempty"`       // set before the user is dropped to
	Nice        *int      `json:"nice,omitempty"`          // nil: the keeper's own, as below
	OOMScoreAdj *int      `json:"oom_score_adj,omitempty"` // written to /proc/self
	NoNewPrivs  bool      `json:"no_new_privs,omitempty"`
	CwdNearest  bool      `json:"cwd_nearest,omitempty"` // the nearest parent of Cwd that the user may enter; Started.Cwd tells which
	Extra       []ExtraFD `json:"extra,omitempty"`

	// StdinPipe: stdin is a pipe that OpInput writes to; Stdin is -1.
	StdinPipe bool `json:"stdin_pipe,omitempty"`
	// SpoolOut and SpoolErr are the most bytes that the spool of a stream
	// keeps; 0: the stream has none. With a terminal SpoolOut is its output's.
	SpoolOut int64 `json:"spool_out,omitempty"`
	SpoolErr int64 `json:"spool_err,omitempty"`
	// ErrToOut: stderr is the same open file as stdout; Stderr is -1.
	ErrToOut bool `json:"err_to_out,omitempty"`
	// PTY makes a terminal of that size, the process's controlling terminal;
	// TTYIn, TTYOut and TTYErr say which streams are it.
	PTY    *WinSize `json:"pty,omitempty"`
	TTYIn  bool     `json:"tty_in,omitempty"`
	TTYOut bool     `json:"tty_out,omitempty"`
	TTYErr bool     `json:"tty_err,omitempty"`

	// Key is of version 3. A launch whose key is known is not made again: the
	// answer is the first one's, whose Started.Process is another. So one that a
	// dead service had sent, and the keeper not yet read, is not made twice. The
	// keeper forgets a key with its process, see Hello.Dropped.
	Key string `json:"key,omitempty"`
}

// NeedsVersion2 names the first thing that a keeper of version 1 would not
// heed; empty when there is none.
func (l *Launch) NeedsVersion2() string {
	switch {
	case l.Umask != nil:
		return "umask"
	case len(l.Rlimits) > 0:
		return "rlimits"
	case l.Nice != nil:
		return "nice"
	case l.OOMScoreAdj != nil:
		return "oom_score_adj"
	case l.NoNewPrivs:
		return "no_new_privs"
	case l.CwdNearest:
		return "cwd_policy nearest"
	case len(l.Extra) > 0:
		return "pass_fds"
	case l.StdinPipe:
		return "stdio mode pipe"
	case l.PTY != nil:
		return "stdio mode pty"
	case l.SpoolOut != 0, l.SpoolErr != 0:
		return "stdio mode spool"
	case l.ErrToOut:
		return "stdio mode stdout"
	}
	return ""
}

// Rlimit is one resource limit, as prlimit(2) takes it; 1<<64-1 is no limit.
type Rlimit struct {
	Resource int    `json:"resource"` // RLIMIT_*
	Soft     uint64 `json:"soft"`
	Hard     uint64 `json:"hard"`
}

// ExtraFD gives the process one more of the frame's descriptors, as Number
// (3 or more; none twice).
type ExtraFD struct {
	Index  int `json:"index"`
	Number int `json:"number"`
}

// WinSize is a terminal's size in characters.
type WinSize struct {
	Rows int `json:"rows"`
	Cols int `json:"cols"`
}

// Input is written to a process's stdin: its pipe, or its terminal. EOF closes
// the pipe after it; on a terminal it types the end-of-file character.
type Input struct {
	Process string `json:"process"`
	Data    []byte `json:"data,omitempty"` // at most 64 KiB
	EOF     bool   `json:"eof,omitempty"`
}

// Resize changes the size of a process's terminal.
type Resize struct {
	Process string  `json:"process"`
	Size    WinSize `json:"size"`
}

// Started is a process that runs, or ran. StartedNS is unix time.
type Started struct {
	Process    string   `json:"process"`
	PID        int      `json:"pid"`
	Argv       []string `json:"argv,omitempty"`
	UID        uint32   `json:"uid"`
	Cwd        string   `json:"cwd,omitempty"`
	StartTicks uint64   `json:"start_ticks,omitempty"`
	Ino        uint64   `json:"pidfs_ino,omitempty"`
	CgroupID   uint64   `json:"cgroup_id,omitempty"`
	Leaf       string   `json:"leaf"`
	Placement  string   `json:"placement"` // clone, gate, or child where there is no cgroup
	StartedNS  int64    `json:"started_ns"`
	Meta       string   `json:"meta,omitempty"`
}

// Exit is how a launched process ended: the wait status as waitid(2) tells it.
type Exit struct {
	Process string `json:"process"`
	PID     int    `json:"pid"`
	Code    int    `json:"code,omitempty"`   // when Signal is 0
	Signal  int    `json:"signal,omitempty"` // when it died of one
	Core    bool   `json:"core,omitempty"`
	EndedNS int64  `json:"ended_ns"`
	// OOMKills is oom_kill of the leaf's memory.events, read before the leaf is
	// removed: how many of its processes the kernel ended for want of memory.
	// 0 also where the leaf has no memory controller.
	OOMKills int64 `json:"oom_kills,omitempty"`
}

// Signal is sent to the launched process through the keeper's handle.
type Signal struct {
	Process string `json:"process"`
	Number  int    `json:"number"`
	// Foreground, of version 2, sends it to the foreground group of the
	// process's terminal instead: SIGINT, SIGQUIT and SIGTSTP only.
	// ErrNotTerminal: it has none.
	Foreground bool `json:"foreground,omitempty"`
}

// Fenced acknowledges the fence: how many launches there ever were.
type Fenced struct {
	Launched int `json:"launched"`
}

// Census is what is still alive below the keeper once its turn's cgroup is
// empty: only processes that had left it. Reaped counts the descendants that
// the keeper has reaped since it began, launches included.
//
// At a turn without a cgroup, Outside is everybody below the keeper, and what
// could be seen of them: Alone alone tells that there is nobody.
type Census struct {
	Reaped  int      `json:"reaped"`
	Outside []Member `json:"outside,omitempty"`
	Alone   bool     `json:"alone,omitempty"`  // of version 4: the keeper has no child, so no descendant
	Unseen  string   `json:"unseen,omitempty"` // of version 4: why not all of them can be listed, with or without a cgroup
}

// End asks for a signal to all of the keeper's children: SIGKILL until it has none
// left, or the bound has run out; any other once, and SIGCONT after it.
type End struct {
	Number  int   `json:"number"`
	BoundMS int64 `json:"bound_ms,omitempty"`
}

// Ended is what came of it.
type Ended struct {
	Alone  bool     `json:"alone,omitempty"` // no child is left, and so no descendant
	Rounds int      `json:"rounds,omitempty"`
	Seen   int      `json:"seen,omitempty"`   // children, in the fullest round
	Left   []Member `json:"left,omitempty"`   // children that are there still
	Unseen string   `json:"unseen,omitempty"` // why they cannot be listed
	Whole  bool     `json:"whole,omitempty"`  // everybody in the keeper's PID namespace was signalled at once
}

// Member is a live descendant of the keeper that is not in the turn's cgroup.
type Member struct {
	PID     int    `json:"pid"`
	Process string `json:"process,omitempty"` // when it is a launch
	Comm    string `json:"comm,omitempty"`
	Cgroup  string `json:"cgroup"` // the 0:: line of /proc/pid/cgroup
}
