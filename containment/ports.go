package containment

import (
	"context"
	"os"
	"syscall"
	"time"

	"pinfold.dev/api"
)

// Host begins turns at one grade and finds them again after a restart. It is
// implemented by package internal/hold.
type Host interface {
	// Grade is what new turns get.
	Grade() api.Grade
	// Begin makes an empty hold: its keeper runs, its cgroup exists and is
	// recognisable. The record given to save must be durable before anything
	// is launched; Begin calls save as soon as there is something to find.
	Begin(ctx context.Context, spec Spec, save func(Facts) error) (Hold, error)
	// Recover finds a recorded hold again. It returns a hold with whatever
	// can still be done, and a verdict on the recorded cgroup and keeper.
	Recover(ctx context.Context, id string, facts Facts) (Hold, api.Verdict, error)
}

// Spec says what hold to make.
type Spec struct {
	Turn     string // id
	Label    string
	OwnerUID uint32
	Limits   *api.Limits
}

// Facts are what a hold records so that it can be found, and proved, again.
type Facts struct {
	Grade       api.Grade    `json:"grade"`
	Cgroup      string       `json:"cgroup,omitempty"`    // absolute path of the turn's directory
	CgroupID    uint64       `json:"cgroup_id,omitempty"` // its kernfs id
	Nonce       string       `json:"nonce,omitempty"`     // in its extended attribute, and the keeper's hello
	Unit        string       `json:"unit,omitempty"`
	UserManager bool         `json:"user_manager,omitempty"` // whose unit it is
	Keeper      api.Identity `json:"keeper,omitzero"`
	Dir         string       `json:"dir"` // the turn's runtime directory
	Degraded    []string     `json:"degraded,omitempty"`
}

// Hold is one turn's containment. Its methods may be called at the same time.
// None of Fence, Ask, Kill, WaitEmpty and Release needs a bus, a fork or a disk.
type Hold interface {
	Facts() Facts
	// Launch starts a process; fds are the caller's descriptors, which stay
	// the caller's. The error is an *api.Error.
	Launch(ctx context.Context, l Launch, fds []*os.File) (Started, error)
	// Signal sends to a launched process through its handle.
	Signal(ctx context.Context, process string, sig syscall.Signal) (api.Verdict, error)
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
	// Release lets the keeper go and removes the turn's cgroup and directory.
	Release(ctx context.Context) error
	// Exits announces ends of launched processes, each once, in order. It is
	// closed when the keeper is gone and nothing more can come; KeeperLost
	// then tells whether that was unexpected.
	Exits() <-chan Exit
	KeeperLost() bool
	// Processes are the launches that the hold knows of: after Recover, all
	// that the keeper or its journal remembers.
	Processes() []Recovered
	// Close drops descriptors and leaves the turn running.
	Close() error
}

// Launch is a launch request whose user and environment are settled.
type Launch struct {
	Process string // p1, p2, …
	Argv    []string
	Env     []string
	Cwd     string
	User    *User // nil: the service's own
	Stdio   api.Stdio
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
}

// Records keeps live turns, so that a restart finds them, and the receipts of
// ended ones. It is implemented by package internal/store.
type Records interface {
	Save(r Record) error
	Forget(turn string) error
	Load() ([]Record, []error)
	PutReceipt(r api.Receipt) error
	Receipt(turn string) (api.Receipt, bool, error)
	Receipts(owner *uint32, limit int) ([]api.Receipt, error)
}

// RecordSchema is the version of Record. A record with a newer one is refused.
const RecordSchema = 1

// Record is a live turn on disk.
type Record struct {
	Schema  int               `json:"schema"`
	Boot    string            `json:"boot"`
	Turn    api.Turn          `json:"turn"` // without what the hold knows better
	Facts   Facts             `json:"facts"`
	Next    int               `json:"next"`           // number of the next process
	Stop    map[string]string `json:"stop,omitempty"` // stop signals that are not TERM
	Grace   *int64            `json:"grace_ms,omitempty"`
	Begun   bool              `json:"begun"` // false: Begin had not returned
	SavedAt time.Time         `json:"saved_at"`
}
