package api

import "time"

// Grade says how well a turn is held on this host, best first.
type Grade string

// The grades. Scope and Cgroup hold a turn in a cgroup v2 of its own; the
// others are for hosts that have none.
const (
	GradeAuto      Grade = "auto" // in requests only: the best the host offers
	GradeScope     Grade = "scope"
	GradeCgroup    Grade = "cgroup"
	GradePIDNS     Grade = "pidns"
	GradeSubreaper Grade = "subreaper"
	GradeToken     Grade = "token"
)

// Grades lists the grades, best first.
func Grades() []Grade {
	return []Grade{GradeScope, GradeCgroup, GradePIDNS, GradeSubreaper, GradeToken}
}

// AtLeast reports whether g holds a turn at least as well as min. An empty min
// asks for nothing.
func (g Grade) AtLeast(min Grade) bool {
	if min == "" || min == GradeAuto {
		return true
	}
	rank := func(x Grade) int {
		for i, k := range Grades() {
			if k == x {
				return i
			}
		}
		return len(Grades())
	}
	return rank(g) <= rank(min) && rank(min) < len(Grades())
}

// State is where a turn is in its life.
type State string

// The states. Finished, Abandoned and Lost are terminal and never change;
// Unkillable becomes Abandoned when the last survivor has gone.
const (
	StateOpen       State = "open"
	StateFinishing  State = "finishing"
	StateEnding     State = "ending"
	StateFinished   State = "finished"
	StateAbandoned  State = "abandoned"
	StateUnkillable State = "unkillable"
	StateLost       State = "lost"
)

// Terminal reports whether the state never changes again.
func (s State) Terminal() bool {
	return s == StateFinished || s == StateAbandoned || s == StateLost
}

// Reason says why a turn ended.
type Reason string

// The reasons.
const (
	ReasonFinished     Reason = "finished"
	ReasonStop         Reason = "stop"
	ReasonSuperseded   Reason = "superseded"
	ReasonIdle         Reason = "idle"
	ReasonWall         Reason = "wall"
	ReasonClientGone   Reason = "client_gone"
	ReasonLeaseExpired Reason = "lease_expired"
	ReasonLimit        Reason = "limit"
	ReasonOperator     Reason = "operator"
	ReasonKeeperLost   Reason = "keeper_lost"
)

// Verdict is what identity checking says about a recorded process. Only Owned
// is ever signalled.
type Verdict string

// The verdicts.
const (
	VerdictOwned        Verdict = "owned"
	VerdictGone         Verdict = "gone"
	VerdictForeign      Verdict = "foreign"
	VerdictUnverifiable Verdict = "unverifiable"
)

// LeftoverPolicy says what happens to descendants still alive when a turn
// finishes.
type LeftoverPolicy string

// Keep leaves them running, held and listed; Reap ends them.
const (
	LeftoversKeep LeftoverPolicy = "keep"
	LeftoversReap LeftoverPolicy = "reap"
)

// BeginRequest opens a turn.
type BeginRequest struct {
	// Label is free text for people (≤ 256 bytes); it reaches the systemd
	// unit's Description, never a unit name or a path.
	Label string `json:"label,omitempty"`
	// Labels are the caller's own keys and values: at most 64, of 64 KiB together.
	Labels map[string]string `json:"labels,omitempty"`
	// Session groups turns; empty means none.
	Session string `json:"session,omitempty"`
	// MinGrade refuses the turn where the host cannot hold it this well.
	MinGrade Grade `json:"min_grade,omitempty"`
	// AllowPIDNS lets the turn have a PID namespace of its own where the host has
	// nothing better: its processes then see their own pids, and a /proc of them.
	AllowPIDNS bool `json:"allow_pidns,omitempty"`
	// Limits bound the turn's processes together; nil means the defaults.
	Limits *Limits `json:"limits,omitempty"`
	// Leftovers is the policy when the turn finishes; empty means keep.
	Leftovers LeftoverPolicy `json:"leftovers,omitempty"`
	// GraceMS is the time between TERM and KILL when an ending names none;
	// nil means the service's default.
	GraceMS *int64 `json:"grace_ms,omitempty"`
	// OutputMax bounds the bytes that all kept streams of the turn take in; 0:
	// no bound.
	OutputMax int64 `json:"output_max,omitempty"`
	// OnOutputMax says what happens then; empty means drop.
	OnOutputMax OutputPolicy `json:"on_output_max,omitempty"`
	// WallMS ends the turn, for the reason wall, when it is older; 0: never.
	WallMS int64 `json:"wall_ms,omitempty"`
	// LeaseMS ends it, for the reason lease_expired, when POST …/touch has not
	// renewed it for so long; 0: there is no lease.
	LeaseMS int64 `json:"lease_ms,omitempty"`
	// IdleMS ends it, for the reason idle, when nothing of IdleBy has shown for
	// so long; 0: never.
	IdleMS int64 `json:"idle_ms,omitempty"`
	// IdleBy is what counts as activity; empty means all that there is: a silent
	// build is not idle while it uses the processor.
	IdleBy []Activity `json:"idle_by,omitempty"`
	// Client binds the turn to its caller.
	Client Client `json:"client,omitzero"`
	// Policy is what differs from the table of GET /v1/policy. Leftovers stands
	// above its row for finished.
	Policy EndPolicy `json:"policy,omitempty"`
	// LeftoversMaxMS ends what the turn left running so long after its end; 0:
	// never.
	LeftoversMaxMS int64 `json:"leftovers_max_ms,omitempty"`
	// Supersede ends the open turns of the same session and owner, for the
	// reason superseded. The new turn does not wait for that.
	Supersede bool `json:"supersede,omitempty"`
	// IdempotencyKey makes the same request of the same uid begin one turn while
	// that is open: again it answers the first, with repeated set.
	IdempotencyKey string `json:"idempotency_key,omitempty"`
}

// OutputPolicy says what happens when a turn's output comes to its bound.
type OutputPolicy string

// Drop counts what comes after it and keeps none; Stop ends the turn, too, for
// the reason limit.
const (
	OutputDrop OutputPolicy = "drop"
	OutputStop OutputPolicy = "stop"
)

// Limits bound all processes of a turn together. They need cgroup controllers;
// a request for one that the host lacks is refused with limit_unavailable.
type Limits struct {
	MemoryBytes int64  `json:"memory_bytes,omitempty"` // memory.max; 0: none
	SwapBytes   *int64 `json:"swap_bytes,omitempty"`   // memory.swap.max; nil: none
	PIDs        int64  `json:"pids,omitempty"`         // pids.max; 0: the service's default where there is a controller
	CPUPercent  int64  `json:"cpu_percent,omitempty"`  // cpu.max in percent of one CPU; 0: none
}

// Turn is one unit of agent work, as shown to callers.
type Turn struct {
	ID        string            `json:"id"`
	Epoch     int64             `json:"epoch"`
	Label     string            `json:"label,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Session   string            `json:"session,omitempty"`
	Owner     uint32            `json:"owner"` // uid
	State     State             `json:"state"`
	Reason    Reason            `json:"reason,omitempty"`
	Grade     Grade             `json:"grade"`
	Leftovers LeftoverPolicy    `json:"leftovers"`
	CreatedAt time.Time         `json:"created_at"`
	EndedAt   *time.Time        `json:"ended_at,omitempty"`
	// Cgroup is the turn's cgroup v2 directory; empty below grade cgroup.
	Cgroup string `json:"cgroup,omitempty"`
	// Unit is the systemd scope's name; empty below grade scope.
	Unit   string  `json:"unit,omitempty"`
	Limits *Limits `json:"limits,omitempty"`
	// Degraded lists what the host could not give, in words.
	Degraded []string `json:"degraded,omitempty"`
	// KeeperPID is the keeper's process id, for people: never signal it.
	KeeperPID int `json:"keeper_pid,omitempty"`
	// OutputMax and OnOutputMax are as they were asked for; OutputMaxed tells
	// that the bound was reached.
	OutputMax   int64        `json:"output_max,omitempty"`
	OnOutputMax OutputPolicy `json:"on_output_max,omitempty"`
	OutputMaxed bool         `json:"output_maxed,omitempty"`
	// Processes are those launched through Pinfold, oldest first.
	Processes []Process `json:"processes"`
	// Alive is how many processes, launched or descendants, the turn's cgroup
	// holds now; -1 when that cannot be read.
	Alive int `json:"alive"`
	// Survivors are set while the turn is unkillable.
	Survivors []Survivor `json:"survivors,omitempty"`

	// Kind is job for the hold of a job that was started as one.
	Kind TurnKind `json:"kind,omitempty"`
	// Frozen tells that its processes stand still, and its clocks with them.
	Frozen bool `json:"frozen,omitempty"`
	// Clocks are those that it has, as they stand.
	Clocks []Clock `json:"clocks,omitempty"`
	// What follows is as it was asked for.
	WallMS         int64      `json:"wall_ms,omitempty"`
	LeaseMS        int64      `json:"lease_ms,omitempty"`
	IdleMS         int64      `json:"idle_ms,omitempty"`
	IdleBy         []Activity `json:"idle_by,omitempty"`
	Client         Client     `json:"client,omitzero"`
	Policy         EndPolicy  `json:"policy,omitempty"`
	LeftoversMaxMS int64      `json:"leftovers_max_ms,omitempty"`
	// Jobs are the ids of the jobs that were made of its processes, or given to
	// it.
	Jobs []string `json:"jobs,omitempty"`
	// Repeated tells, in the answer to a begin, that this is an earlier one with
	// the same idempotency key.
	Repeated bool `json:"repeated,omitempty"`
}

// TurnKind tells turns from the holds of jobs.
type TurnKind string

// KindJob is the hold of a job; a turn's kind is empty.
const KindJob TurnKind = "job"

// TurnList answers GET /v1/turns.
type TurnList struct {
	Turns []Turn `json:"turns"`
	Grade Grade  `json:"grade"` // what new turns get on this host
}
