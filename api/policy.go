package api

// Fate is what happens to something when its turn ends.
type Fate string

// End ends it; Keep leaves it running, held and listed.
const (
	FateEnd  Fate = "end"
	FateKeep Fate = "keep"
)

// EndRule says what happens when a turn ends for a reason.
type EndRule struct {
	// Processes is for what the turn launched and what that has forked; what is
	// kept are leftovers.
	Processes Fate `json:"processes,omitempty"`
	// Jobs is for the turn's jobs.
	Jobs Fate `json:"jobs,omitempty"`
}

// EndPolicy is the table: for each reason the rule. In a request it has the
// rows, and in them the fields, that differ from the default.
type EndPolicy map[Reason]EndRule

// DefaultPolicy is the table of a turn that says nothing.
func DefaultPolicy() EndPolicy {
	ended := EndRule{Processes: FateEnd, Jobs: FateKeep}
	return EndPolicy{
		ReasonFinished:     {Processes: FateKeep, Jobs: FateKeep},
		ReasonStop:         ended,
		ReasonSuperseded:   ended,
		ReasonIdle:         ended,
		ReasonWall:         ended,
		ReasonClientGone:   ended,
		ReasonLeaseExpired: ended,
		ReasonLimit:        ended,
		ReasonOperator:     ended,
	}
}

// With returns the table with what over says otherwise.
func (p EndPolicy) With(over EndPolicy) EndPolicy {
	out := make(EndPolicy, len(p))
	for r, rule := range p {
		if o := over[r]; o.Processes != "" {
			rule.Processes = o.Processes
		}
		if o := over[r]; o.Jobs != "" {
			rule.Jobs = o.Jobs
		}
		out[r] = rule
	}
	return out
}

// PolicyAnswer answers GET /v1/policy: the table of a turn that says nothing.
type PolicyAnswer struct {
	Policy EndPolicy `json:"policy"`
	Grade  Grade     `json:"grade"` // what new turns get
}
