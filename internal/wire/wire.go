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
// uses no operation that a keeper's version did not have.
const Version = 1

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

// Event names an announcement.
type Event string

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
	Placement  string   `json:"placement"` // clone or gate
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
}

// Signal is sent to the launched process through the keeper's handle.
type Signal struct {
	Process string `json:"process"`
	Number  int    `json:"number"`
}

// Fenced acknowledges the fence: how many launches there ever were.
type Fenced struct {
	Launched int `json:"launched"`
}

// Census is what is still alive below the keeper once its turn's cgroup is
// empty: only processes that had left it. Reaped counts the descendants that
// the keeper has reaped since it began, launches included.
type Census struct {
	Reaped  int      `json:"reaped"`
	Outside []Member `json:"outside,omitempty"`
}

// Member is a live descendant of the keeper that is not in the turn's cgroup.
type Member struct {
	PID     int    `json:"pid"`
	Process string `json:"process,omitempty"` // when it is a launch
	Comm    string `json:"comm,omitempty"`
	Cgroup  string `json:"cgroup"` // the 0:: line of /proc/pid/cgroup
}
