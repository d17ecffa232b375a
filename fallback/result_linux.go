package fallback

import (
	"context"
	"syscall"
	"time"

	"pinfold.dev/api"
)

// Finding is what was found of one process, and done about it.
type Finding struct {
	Identity api.Identity `json:"identity"`
	Comm     string       `json:"comm,omitempty"`
	How      How          `json:"how,omitempty"`
	Verdict  api.Verdict  `json:"verdict"`
	Evidence []string     `json:"evidence,omitempty"`
	// Signals are those that were sent, in order.
	Signals []syscall.Signal `json:"signals,omitempty"`
	Ended   bool             `json:"ended,omitempty"`  // seen to have exited
	Spared  bool             `json:"spared,omitempty"` // on the caller's wish
}

// Outcome is what an ending came to.
type Outcome string

// Dead: the root has no child left but those that were spared. Unconfirmed:
// that was not seen in the time, or cannot be.
const (
	Dead        Outcome = "dead"
	Unconfirmed Outcome = "unconfirmed"
)

// Ending tells how what is below a process is to be ended. The zero value kills
// everything, within 10 seconds.
type Ending struct {
	// Spare tells which processes, with all below them, are left alone. It is
	// asked once for each that was found, with its handle held.
	Spare func(m Member) bool
	// Ask is sent first, and CONT after it, and then Grace given; 0: neither.
	Ask   syscall.Signal
	Grace time.Duration
	// Root has the root itself ended as well, after all below it.
	Root bool
	// Word is the root's own word which children it has, by their numbers: a
	// keeper's, that would know from waitid(2). Without it that is read, and
	// where it cannot be read nothing is said to be dead.
	Word func(ctx context.Context) (children []int, err error)
	// Bounds; 0 means 10 seconds beyond the grace, 100,000 processes, and of rounds
	// 1000, or as many more as that time may want.
	MaxRounds    int
	MaxTime      time.Duration
	MaxProcesses int
}

// Result is the account of an ending.
type Result struct {
	Outcome   Outcome        `json:"outcome"`
	Evidence  []string       `json:"evidence,omitempty"` // of the outcome
	Rounds    int            `json:"rounds"`
	Processes []Finding      `json:"processes,omitempty"` // all that were found, refused ones included
	Survivors []api.Survivor `json:"survivors,omitempty"` // those that were not seen to end
	AskedAt   time.Time      `json:"asked_at,omitzero"`
	KilledAt  time.Time      `json:"killed_at,omitzero"`
	DeadAt    time.Time      `json:"dead_at,omitzero"`
}

// Member is a process found below a root: held, and proven to be there.
type Member struct {
	*Process
	Comm   string
	State  byte // of /proc/pid/stat; 0 where that cannot be read
	Group  int
	Parent *Process // held when it was seen to be the parent: a member, or the root
}

// Snapshot is what is below a process at one time: each member held, by the
// same handle by which its place was proven. Nothing of it is read again.
type Snapshot struct {
	Members []Member
	Refused []Finding // seen where a member would be, and not proven to be one
	// Whole tells that all could be looked at.
	Whole bool
	Notes []string
}

// Close lets go of all members.
func (s *Snapshot) Close() {
	for _, m := range s.Members {
		_ = m.Close()
	}
}

// GroupRecord is what is recorded of a process group while its leader is proven.
type GroupRecord struct {
	Leader    api.Identity   `json:"leader"` // its pid is the group's number
	Witnesses []api.Identity `json:"witnesses,omitempty"`
}

// GroupResult tells whose a group is, and what was done about its members.
type GroupResult struct {
	// Verdict is on the group: owned, gone (it has no member), foreign (its
	// number is another's) or unverifiable.
	Verdict  api.Verdict `json:"verdict"`
	Evidence []string    `json:"evidence,omitempty"`
	// Members are those that were looked at. By the leader's handle (6.9) the
	// kernel signals all at once, and none is listed.
	Members []Finding `json:"members,omitempty"`
}
