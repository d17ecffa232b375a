package containment

import "pinfold.dev/api"

// JobFilter narrows a list of jobs; a zero field does not.
type JobFilter struct {
	Owner   *uint32
	Session string
	Turn    string            // that it was made in, or given to
	Cwd     string            // its cwd is there or below; absolute
	Labels  map[string]string // all of them
	All     bool              // ended ones, too
}

// EventQuery says which events to read.
type EventQuery struct {
	After   int64   // a number that was seen; 0: from the start; -1: from now on
	Owner   *uint32 // nil: everybody's
	Turn    string
	Session string
	Kinds   []api.EventKind // empty: all
	Limit   int
}
