package api

import "time"

// JobState is where a job is in its life.
type JobState string

// The states. Lingering: the launched process has ended, and something that it
// forked runs on.
const (
	JobRunning   JobState = "running"
	JobLingering JobState = "lingering"
	JobEnded     JobState = "ended"
)

// JobOrigin says how a job came to be.
type JobOrigin string

// The origins.
const (
	JobStarted  JobOrigin = "started"  // POST /v1/jobs: a hold of its own
	JobPromoted JobOrigin = "promoted" // a launched process of a turn
	JobEjected  JobOrigin = "ejected"  // a descendant that a turn had forked
)

// JobRequest starts a job, in a hold of its own beside the turns.
type JobRequest struct {
	Launch  LaunchRequest     `json:"launch"`
	Name    string            `json:"name,omitempty"` // for people, ≤ 256 bytes
	Labels  map[string]string `json:"labels,omitempty"`
	Session string            `json:"session,omitempty"`
	Limits  *Limits           `json:"limits,omitempty"` // nil means the defaults
	// MaxMS ends the job when it is older; 0: never.
	MaxMS    int64  `json:"max_ms,omitempty"`
	GraceMS  *int64 `json:"grace_ms,omitempty"`
	MinGrade Grade  `json:"min_grade,omitempty"`
	// IdempotencyKey makes the same request of the same uid start one job: again
	// it answers the first, with repeated set, also when that has ended, as long as
	// it is among the latest thousand in the history.
	IdempotencyKey string `json:"idempotency_key,omitempty"`
}

// PromoteRequest makes a job of a launched process with its descendants, as far
// as they are in its leaf, or, with PID, of one descendant with its own. It
// keeps its output, terminal and exit status.
type PromoteRequest struct {
	// PID names a member of the process's leaf, see GET …/tree. It is turned
	// into a handle, verified, and refused when it is not there.
	PID     int               `json:"pid,omitempty"`
	Name    string            `json:"name,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
	Session *string           `json:"session,omitempty"` // nil: the turn's
	MaxMS   int64             `json:"max_ms,omitempty"`
	Epoch   int64             `json:"epoch,omitempty"`
}

// TransferRequest gives a job to another session, or to the one of another turn
// of the same owner. Nothing of it is touched.
type TransferRequest struct {
	Session *string `json:"session,omitempty"`
	Turn    string  `json:"turn,omitempty"` // take this turn's session, and be listed with it
}

// StopJobRequest ends a job: every process of it, nothing else.
type StopJobRequest struct {
	GraceMS *int64 `json:"grace_ms,omitempty"` // nil: the job's
	Reason  Reason `json:"reason,omitempty"`   // empty: stop
}

// Job is a process, with its descendants, that outlives turns.
type Job struct {
	ID      string            `json:"id"`
	Name    string            `json:"name,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
	Session string            `json:"session,omitempty"`
	Owner   uint32            `json:"owner"` // uid
	State   JobState          `json:"state"`
	Origin  JobOrigin         `json:"origin"`
	// Turn and Process name the launch: output, stdin, signals and wait are
	// there, also when the turn is over. For a started job that is a hold of its own.
	Turn    string `json:"turn"`
	Process string `json:"process"`
	// Listed is the turn that it was given to, if it was.
	Listed    string     `json:"listed,omitempty"`
	PID       int        `json:"pid"`
	Argv      []string   `json:"argv"`
	Cwd       string     `json:"cwd,omitempty"`
	Status    Status     `json:"status"`
	CreatedAt time.Time  `json:"created_at"` // as a job
	StartedAt time.Time  `json:"started_at"` // the process
	EndedAt   *time.Time `json:"ended_at,omitempty"`
	// Reason and Actor tell who ended it, if somebody did.
	Reason   Reason   `json:"reason,omitempty"`
	Actor    *Actor   `json:"actor,omitempty"`
	Clocks   []Clock  `json:"clocks,omitempty"`
	Identity Identity `json:"identity"`
	Grade    Grade    `json:"grade"`
	Cgroup   string   `json:"cgroup,omitempty"`
	Unit     string   `json:"unit,omitempty"`
	Limits   *Limits  `json:"limits,omitempty"`
	// Alive is how many processes it has; -1 when that cannot be read.
	Alive     int        `json:"alive"`
	Survivors []Survivor `json:"survivors,omitempty"` // that could not be ended
	Notes     []string   `json:"notes,omitempty"`
	MaxMS     int64      `json:"max_ms,omitempty"`
	// Output is how far its kept streams are, by name.
	Output map[StreamName]StreamStatus `json:"output,omitempty"`
	// Repeated tells, in the answer to a start, that this is an earlier one with
	// the same idempotency key.
	Repeated bool `json:"repeated,omitempty"`
}

// JobList answers GET /v1/jobs, oldest first.
type JobList struct {
	Jobs  []Job `json:"jobs"`
	Grade Grade `json:"grade"` // what new turns get
}
