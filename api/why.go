package api

import (
	"fmt"
	"strings"
	"time"
)

// Target is one process that an ending would deal with.
type Target struct {
	PID     int      `json:"pid"`
	Process string   `json:"process,omitempty"` // the launch whose leaf holds it
	Job     string   `json:"job,omitempty"`
	Comm    string   `json:"comm,omitempty"`
	Argv    []string `json:"argv,omitempty"`
	AgeMS   int64    `json:"age_ms"`
	RSS     int64    `json:"rss_bytes"`
	Verdict Verdict  `json:"verdict"`
	// Evidence is what the verdict rests on, in words.
	Evidence string `json:"evidence"`
	// Would is signalled, kept or refused; Why says why.
	Would string `json:"would"`
	Why   string `json:"why,omitempty"`
}

// Plan answers a dry run: what an ending would do now. Nothing was touched.
type Plan struct {
	Turn      string   `json:"turn"`
	State     State    `json:"state"`
	Reason    Reason   `json:"reason"`
	Rule      EndRule  `json:"rule"`
	GraceMS   int64    `json:"grace_ms"`
	Mechanism string   `json:"mechanism"`
	Targets   []Target `json:"targets"`
	// Servers are processes of the turn that others use.
	Servers []Server `json:"servers"`
	// ServedBy are processes of the turn that use others; 64 at most.
	ServedBy []Served `json:"served_by,omitempty"`
	Notes    []string `json:"notes,omitempty"`
	Grade    Grade    `json:"grade"`
}

// Server is a process of a turn that listens on a socket to which a process
// outside the turn is connected.
type Server struct {
	PID     int      `json:"pid"`
	Process string   `json:"process,omitempty"`
	Comm    string   `json:"comm,omitempty"`
	Socket  string   `json:"socket"` // unix:/path, tcp:127.0.0.1:80
	Clients []Member `json:"clients"`
}

// Served is a process of a turn that is connected to a socket on which a process
// outside the turn listens. What that does for it, a daemon's work for a build say,
// is not contained: it is neither held nor ended with the turn.
type Served struct {
	PID     int    `json:"pid"`
	Process string `json:"process,omitempty"`
	Comm    string `json:"comm,omitempty"`
	Socket  string `json:"socket"` // unix:/path, unix:@abstract, tcp:127.0.0.1:80
	// By are those who have the other end, 16 at most; none: they could not be seen.
	By []Member `json:"by"`
}

// Words says it.
func (s Served) Words() string {
	on := "a process outside the turn listens that cannot be looked at"
	if len(s.By) > 0 {
		var who []string
		for _, m := range s.By {
			who = append(who, fmt.Sprintf("%d (%s)", m.PID, m.Comm))
		}
		on = "process " + who[0] + " outside the turn listens"
		if len(who) > 1 {
			on = "processes " + strings.Join(who, ", ") + " outside the turn listen"
		}
	}
	return fmt.Sprintf("process %d (%s) is connected to %s, on which %s: what that does for it is not contained", s.PID, s.Comm, s.Socket, on)
}

// Why answers GET …/why: why a turn is as it is, and what would change that.
type Why struct {
	Turn   string `json:"turn"`
	State  State  `json:"state"`
	Epoch  int64  `json:"epoch"`
	Reason Reason `json:"reason,omitempty"`
	Actor  *Actor `json:"actor,omitempty"`
	Frozen bool   `json:"frozen,omitempty"`
	// Because says it in words, the most important first.
	Because []string `json:"because"`
	Clocks  []Clock  `json:"clocks"`
	// Ends lists what would end it, the soonest first.
	Ends    []WouldEnd `json:"ends"`
	Policy  EndPolicy  `json:"policy"`
	Client  Client     `json:"client,omitzero"`
	Targets []Target   `json:"targets"`
	Servers []Server   `json:"servers"`
	// ServedBy are processes of the turn that use others; 64 at most.
	ServedBy []Served `json:"served_by,omitempty"`
	Jobs     []string `json:"jobs"`
	Degraded []string `json:"degraded,omitempty"`
	Grade    Grade    `json:"grade"`
}

// WouldEnd is one thing that would end a turn.
type WouldEnd struct {
	Reason Reason     `json:"reason"`
	When   string     `json:"when"` // in words
	At     *time.Time `json:"at,omitempty"`
}

// EndProcessRequest ends a launched process with its descendants, as far as
// they are in its leaf.
type EndProcessRequest struct {
	// DescendantsOnly spares the launched process itself: a shell that is to
	// survive its command's timeout.
	DescendantsOnly bool   `json:"descendants_only,omitempty"`
	GraceMS         *int64 `json:"grace_ms,omitempty"` // nil: the turn's
	DryRun          bool   `json:"dry_run,omitempty"`
	Epoch           int64  `json:"epoch,omitempty"`
}

// EndProcessAnswer tells what became of it.
type EndProcessAnswer struct {
	Turn      string     `json:"turn"`
	Process   string     `json:"process"`
	Status    Status     `json:"status"` // of the launched process
	Ended     int        `json:"ended"`  // how many were seen before the first signal
	Complete  bool       `json:"complete"`
	Survivors []Survivor `json:"survivors"`
	Targets   []Target   `json:"targets,omitempty"` // of a dry run
	Grade     Grade      `json:"grade"`
}

// AbandonManyRequest ends turns. Exactly one of Turns, Session, Labels and Owner
// says which: those of the caller, or for root and the admin group anybody's. A
// blank one means none, never all.
type AbandonManyRequest struct {
	Turns   []string          `json:"turns,omitempty"` // at most 1000
	Session string            `json:"session,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"` // all of them
	Owner   *uint32           `json:"owner,omitempty"`
	Reason  Reason            `json:"reason,omitempty"` // empty: stop
	GraceMS *int64            `json:"grace_ms,omitempty"`
	// Jobs ends their jobs, too, and the session's and the owner's.
	Jobs   bool `json:"jobs,omitempty"`
	DryRun bool `json:"dry_run,omitempty"`
}

// AbandonManyAnswer tells, for each, what became of it.
type AbandonManyAnswer struct {
	Receipts []Receipt    `json:"receipts"`
	Plans    []Plan       `json:"plans,omitempty"` // of a dry run
	Jobs     []Job        `json:"jobs,omitempty"`  // that were ended
	Refused  []RefusedEnd `json:"refused"`
	Grade    Grade        `json:"grade"`
}

// RefusedEnd is one that was not ended.
type RefusedEnd struct {
	ID    string `json:"id"` // of a turn, or a job
	Error *Error `json:"error"`
}

// Use is one way in which a process of a turn or job uses a path.
type Use struct {
	Turn    string `json:"turn"`
	Job     string `json:"job,omitempty"`
	Process string `json:"process,omitempty"`
	PID     int    `json:"pid"`
	Comm    string `json:"comm,omitempty"`
	How     string `json:"how"` // cwd, root, exe, open, map
	Path    string `json:"path"`
}

// Quiet answers GET /v1/quiet: whether a directory can be taken away without
// pulling it from under a process of a turn or job.
type Quiet struct {
	Path string `json:"path"`
	// Quiet: no process of any turn or job has its cwd, root, program or an open
	// or mapped file at or below the path, and all could be looked at.
	Quiet bool  `json:"quiet"`
	Uses  []Use `json:"uses"` // at most 1000
	// Unseen lists what could not be looked at, and so may use it.
	Unseen []string `json:"unseen"`
	Grade  Grade    `json:"grade"`
}
