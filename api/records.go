package api

import "time"

// Standing is how a turn's record stands.
type Standing string

// The standings.
const (
	StandingLive       Standing = "live"       // it is a turn's that is not over, or that holds something
	StandingOver       Standing = "over"       // the turn is over; it is on its way to the history
	StandingUnverified Standing = "unverified" // whether the turn is there cannot be told
	StandingUnread     Standing = "unread"     // the record cannot be read, or is not to be trusted
	StandingNewer      Standing = "newer"      // it is of a newer version of the service
)

// RecordList answers GET /v1/records: what is on disk, and what is left over.
type RecordList struct {
	Records []TurnRecord `json:"records"` // live ones, oldest first
	// LeftOver is what is ours and belongs to no turn, with what gc would do
	// about it; empty for whoever may not call that.
	LeftOver []LeftOver `json:"left_over"`
	// History is of the turns that are over; nil for whoever may not call gc.
	History *HistoryInfo `json:"history,omitempty"`
	Grade   Grade        `json:"grade"`
}

// TurnRecord is a record of the runtime directory.
type TurnRecord struct {
	Turn     string   `json:"turn"`
	Standing Standing `json:"standing"`
	Owner    *uint32  `json:"owner,omitempty"` // nil: it cannot be read
	State    State    `json:"state,omitempty"`
	Job      bool     `json:"job,omitempty"` // it is the hold of a started job
	// Found, Verdict and Deed tell what this service found when it started, and
	// what it did about it (docs/restart.md); empty for a turn begun since.
	Found   string  `json:"found,omitempty"`
	Verdict Verdict `json:"verdict,omitempty"`
	Deed    string  `json:"deed,omitempty"`
	Why     string  `json:"why,omitempty"`
	Remedy  string  `json:"remedy,omitempty"`
}

// LeftOverKind is what is left over.
type LeftOverKind string

// The kinds.
const (
	LeftOverCgroup    LeftOverKind = "cgroup"
	LeftOverDirectory LeftOverKind = "directory" // a turn's runtime directory, without a record
	LeftOverRecord    LeftOverKind = "record"    // with one that cannot be read
)

// LeftOver is something that belongs to no turn.
type LeftOver struct {
	Kind LeftOverKind `json:"kind"`
	Path string       `json:"path"`
	Turn string       `json:"turn"` // whose it was, by its name
	// Remove tells that gc removes it, Removed that it has.
	Remove  bool   `json:"remove"`
	Removed bool   `json:"removed"`
	Why     string `json:"why"`
}

// HistoryInfo describes the history.
type HistoryInfo struct {
	Path     string     `json:"path"`
	Turns    int        `json:"turns"`
	Bytes    int64      `json:"bytes"`      // of the records
	FileSize int64      `json:"file_bytes"` // of the file
	Oldest   *time.Time `json:"oldest,omitempty"`
	MaxAgeMS int64      `json:"max_age_ms"`
	MaxTurns int        `json:"max_turns"`
	MaxBytes int64      `json:"max_bytes"`
	Waiting  int        `json:"waiting"`           // turns that could not be moved there yet
	Problem  string     `json:"problem,omitempty"` // why it cannot be written, or what happened to it
}

// GCRequest removes what is left over and ours.
type GCRequest struct {
	DryRun bool `json:"dry_run,omitempty"` // only tell
}

// GCAnswer tells what was left over, why, and what became of it.
type GCAnswer struct {
	LeftOver []LeftOver `json:"left_over"`
	Grade    Grade      `json:"grade"`
}
