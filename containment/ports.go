package containment

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"

	"pinfold.dev/api"
)

// Host begins turns at one grade and finds them again after a restart. It is
// implemented by package internal/hold.
type Host interface {
	ClientWatch
	// Grade is what new turns get.
	Grade() api.Grade
	// Begin makes an empty hold: its keeper runs, its cgroup exists and is
	// recognisable. It calls hooks.Save as soon as there is something to find
	// and again when the facts are whole; nothing can be launched before.
	Begin(ctx context.Context, spec Spec, hooks Hooks) (Hold, error)
	// Recover finds a recorded hold again. With verdict owned the hold is
	// usable. With gone it may be there, closed, to tell of its Processes.
	// Otherwise it is nil and the error says what was seen.
	Recover(ctx context.Context, turn string, facts Facts, hooks Hooks) (Hold, api.Verdict, error)
	// Recall is a closed hold, which tells of the Processes that the keeper of
	// a turn had written down; nothing else of the turn is looked at. Nil: there
	// is nothing to tell.
	Recall(turn string, facts Facts) Hold
	// Info describes the host, for people.
	Info(ctx context.Context) api.Host
}

// Hooks are what a hold calls back. None may block for long.
type Hooks struct {
	// Save makes the facts durable.
	Save func(Facts) error
	// Exit tells that a launched process has ended; each once, in order, and
	// before the answer to any later Census.
	Exit func(Exit)
	// Started tells of a launch that is not the answer to a call of Launch: one
	// that an earlier service, a call that was given up, or one whose keeper has
	// died, had asked for. It may tell of one that is known.
	Started func(Recovered)
	// OutputMax tells that the turn's kept output has come to its bound.
	OutputMax func()
	// Fenced tells that the keeper, which was reached again, launches nothing
	// more: an ending had been decided.
	Fenced func()
	// KeeperLost tells that the keeper has died or stopped answering.
	KeeperLost func(why string)
}

// Spec says what hold to make.
type Spec struct {
	Turn     string // id
	Label    string
	OwnerUID uint32
	Limits   *api.Limits
	// Spool is the directory for kept output, which need not exist; OutputMax
	// bounds what all of it takes in, 0 does not.
	Spool     string
	OutputMax int64
	MinGrade  api.Grade // the hold may be worse than Grade says, never than this
	// AllowPIDNS lets the turn have a PID namespace of its own, where that is the
	// best that the host has: its processes see their own numbers only.
	AllowPIDNS bool
}

// Facts are what a hold records so that it can be found, and proved, again.
type Facts struct {
	Grade       api.Grade    `json:"grade"`
	Cgroup      string       `json:"cgroup,omitempty"`      // absolute path of the turn's directory
	CgroupID    uint64       `json:"cgroup_id,omitempty"`   // its kernfs id
	CgroupLine  string       `json:"cgroup_line,omitempty"` // as /proc/PID/cgroup shows it to the service
	Nonce       string       `json:"nonce,omitempty"`       // in its extended attribute, and the keeper's hello
	Unit        string       `json:"unit,omitempty"`
	UserManager bool         `json:"user_manager,omitempty"` // whose unit it is
	Keeper      api.Identity `json:"keeper,omitzero"`
	Dir         string       `json:"dir"` // the turn's runtime directory
	Degraded    []string     `json:"degraded,omitempty"`
	Spool       string       `json:"spool,omitempty"`
	OutputMax   int64        `json:"output_max,omitempty"`
	Bare        bool         `json:"bare,omitempty"` // there is no cgroup, and all else is there

	// Adopted are those whose end is not known: for Recover, to which they may be all
	// that a turn without a cgroup has.
	Adopted []api.Identity `json:"-"`
}

// Begun tells that something may have been launched: before, the turn cannot be
// found, and nobody was told of it.
func (f Facts) Begun() bool { return f.Cgroup != "" || f.Bare }

// GoneIsProof tells that the turn's processes are gone when what held them is:
// a cgroup, which only an empty one can be removed, or init of a PID namespace.
func (f Facts) GoneIsProof() bool { return !f.Bare || f.Grade == api.GradePIDNS }

// Hold is one turn's containment. Its methods may be called at the same time.
// None of Fence, Ask, Kill, WaitEmpty and Release needs a bus, a fork or a disk.
type Hold interface {
	Streams
	Jobs
	Targets
	Adopts
	Facts() Facts
	// Launch starts a process; fds are the caller's descriptors, which stay
	// the caller's. Where its key was used before, it is the first launch that
	// is answered, whose Process is another. The error is an *api.Error, or
	// ErrUsed.
	Launch(ctx context.Context, l Launch, fds []*os.File) (Started, error)
	// Signal sends to a launched process through its handle.
	Signal(ctx context.Context, process string, sig syscall.Signal) (api.Verdict, error)
	// SignalGroup signals the process group that a launched process leads; where
	// the kernel cannot tell it for sure, the process only.
	SignalGroup(ctx context.Context, process string, sig syscall.Signal) (api.Verdict, error)
	// Fence returns once the keeper will launch nothing more, or is dead.
	// An error means that it has done neither within ctx.
	Fence(ctx context.Context) error
	// Members lists the processes that the turn's cgroup holds now.
	Members() ([]api.Member, error)
	// Alive counts them.
	Alive() (int, error)
	// Ask sends each process its stop signal (sig where stop says none) and
	// then CONT, and returns how many were asked.
	Ask(ctx context.Context, stop func(process string) syscall.Signal) (int, error)
	// WaitEmpty waits until the turn's cgroup reads populated 0 and every
	// held handle is readable; ctx bounds it.
	WaitEmpty(ctx context.Context) error
	// Kill ends everything in the turn and waits until it is seen empty. When
	// bound runs out first, Killed.Survivors says who is left.
	Kill(ctx context.Context, bound time.Duration) (Killed, error)
	// Census asks the keeper, after Kill, what had left the turn's cgroup.
	// Launched processes among it are ended through their handles.
	Census(ctx context.Context) ([]api.Outside, error)
	// Usage reads the turn's counters; call it before Release.
	Usage() api.Usage
	// Alone tells, after Kill, that nobody but the keeper and jobs is seen in the
	// turn's cgroup: Release, once there is no job, has nobody to end.
	Alone() bool
	// Release lets the keeper go and ends whatever else is in the turn's cgroup;
	// it returns once that reads populated 0 as a whole. An error means that it
	// could not be emptied; it may be called again. While a job lives it does
	// nothing, and so does Remove.
	Release(ctx context.Context) error
	// Remove removes the cgroup of a hold that was released, tells systemd, and
	// closes the hold. It may be called again after an error.
	Remove(ctx context.Context) error
	// EndKeeper kills the keeper, which launches nothing afterwards. It is for
	// a keeper that does not acknowledge the fence.
	EndKeeper(ctx context.Context) error
	// Reached is an *api.Error while the keeper lives and has not answered this
	// service yet: until then Processes may lack some, and nothing can be launched.
	Reached() error
	// Processes are the launches that the hold knows of: after Recover, all
	// that the keeper or its journal remembers.
	Processes() []Recovered
	// Close drops descriptors and leaves the turn running.
	Close() error
}

// ErrUsed tells that the keeper knows a process of that id already: one that an
// earlier service had asked for just before it ended.
var ErrUsed = errors.New("process id is used already")

// Launch is a launch request whose user and environment are settled.
type Launch struct {
	Process string // p1, p2, …
	Argv    []string
	Env     []string
	Cwd     string
	User    *User     // nil: the service's own
	Stdio   api.Stdio // settled: no mode is blank
	Extra   []api.PassFD
	// Attributes of the process; nil is the keeper's own, for Umask 0022.
	Umask       *int
	Rlimits     []Rlimit
	Nice        *int
	OOMScoreAdj *int
	NoNewPrivs  bool
	CwdNearest  bool
	// Key, unless it is empty, is launched with once.
	Key string
	// Meta comes back in Recovered: what the service wants to know again.
	Meta string
}

// User is whom a process runs as.
type User struct {
	UID, GID uint32
	Groups   []uint32
	Name     string
	Home     string
	Shell    string
}

// Started is what is known of a process that runs.
type Started struct {
	Process   string
	PID       int
	Identity  api.Identity
	Placement string
	At        time.Time
	Cwd       string // where that differs from what was asked for
}

// Exit is the end of a launched process.
type Exit struct {
	Process string
	Status  api.Status
	At      time.Time
}

// Recovered is a launch found again.
type Recovered struct {
	Started Started
	Argv    []string
	Cwd     string
	UID     uint32
	Meta    string
	Exit    *Exit
}

// Killed is what a kill did and saw.
type Killed struct {
	Mechanism string
	Rounds    int
	Seen      int // members seen before the first signal
	KilledAt  time.Time
	EmptyAt   time.Time // zero when it was not seen empty
	Survivors []api.Survivor
	Escaped   []string // launches that had left the cgroup, ended by handle
	Notes     []string
	// Unconfirmed says why it cannot be told whether all has ended. EmptyAt is zero
	// then. Hopeless: nobody will ever tell, since who would have to is gone.
	Unconfirmed string
	Hopeless    bool
	// Refused are processes that were looked at and not signalled.
	Refused []api.Refused
	// Evidence is what spoke for each launch that was signalled.
	Evidence map[string][]string
}

// Records keeps live turns, so that a restart finds them, and what is to be
// known of ended ones. It is implemented by package internal/store.
type Records interface {
	// Save writes the turn's record, atomically; it survives the service.
	Save(r Record) error
	// Discard removes the record of a turn that never began.
	Discard(turn string) error
	// Archive moves an ended turn, saved before, to the history. Where the history
	// has what supersedes the live record, that one only goes.
	Archive(turn string) error
	// PutEnded writes the record of a turn that is over to the history, where its
	// live one cannot be written; that stays as it is until Archive.
	PutEnded(r Record) error
	// Load reads all live records. One that cannot be read is a *BadRecord in
	// the list and hides no other; any other error means that some may be
	// missing.
	Load() ([]Record, []error)
	// Ended finds a turn in the history.
	Ended(turn string) (Record, bool, error)
	// EndedTurns lists the history, newest first; owner nil means everybody's.
	EndedTurns(owner *uint32, limit int) ([]Record, error)
}

// Supersedes tells that the record, which is from the history, is the truth about a
// turn, and not the live one: a turn that is over stays so, and ids are given once.
func (r *Record) Supersedes(live *Record) bool {
	return r.Turn.ID == live.Turn.ID && r.Turn.State.Terminal() &&
		(!live.Turn.State.Terminal() || r.SavedAt.After(live.SavedAt))
}

// BadRecord tells that a turn has a record that cannot be used.
type BadRecord struct {
	Turn string
	Of   string // the turn that it says it is of, where that is another
	Err  error
}

func (e *BadRecord) Error() string { return "record of turn " + e.Turn + ": " + e.Err.Error() }

// ErrNewer tells that a record is of a newer version of the service, which alone
// knows what it says.
var ErrNewer = errors.New("it is of a newer version of the service")

// Unwrap returns the cause.
func (e *BadRecord) Unwrap() error { return e.Err }

// Users looks people up in the host's user database.
type Users interface {
	ByUID(uid uint32) (User, error)
	ByName(name string) (User, error)  // a name, or a uid in decimal
	Group(name string) (uint32, error) // a name, or a gid in decimal
}

// RecordSchema is the version of Record. A record with a newer one is refused.
const RecordSchema = 1

// Record is a turn on disk.
type Record struct {
	Schema  int          `json:"schema"`
	Boot    string       `json:"boot"`
	Turn    api.Turn     `json:"turn"`
	Facts   Facts        `json:"facts"`
	GraceMS *int64       `json:"grace_ms,omitempty"`
	Clocks  clocks       `json:"clocks,omitzero"`
	Client  api.Identity `json:"client,omitzero"` // the process that is the turn's client
	Begin   *BeginKey    `json:"begin,omitempty"`
	Jobs    []JobRecord  `json:"jobs,omitempty"`
	// Meta is what is to be known again of processes that no keeper tells of.
	Meta    map[string]string `json:"meta,omitempty"`
	Ending  *EndRequest       `json:"ending,omitempty"`  // set once an ending was asked for
	Draft   *api.Receipt      `json:"draft,omitempty"`   // of the receipt, before the cgroup is removed
	Receipt *api.Receipt      `json:"receipt,omitempty"` // set once there is one
	SavedAt time.Time         `json:"saved_at"`
}

// BeginKey is the idempotency key that a turn was begun with.
type BeginKey struct {
	Key     string `json:"key"`     // its hash
	Request string `json:"request"` // the request's hash
}

// EndRequest is a decided ending.
type EndRequest struct {
	Reason  api.Reason `json:"reason"`
	Actor   api.Actor  `json:"actor"`
	AskedAt time.Time  `json:"asked_at"`
	GraceMS int64      `json:"grace_ms"`
	Keep    bool       `json:"keep,omitempty"` // what runs stays, as leftovers
	Jobs    api.Fate   `json:"jobs,omitempty"` // what happens to the turn's jobs
}
