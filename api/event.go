package api

import "time"

// EventKind names what happened.
type EventKind string

// The kinds.
const (
	EventBegun      EventKind = "begun"
	EventLaunch     EventKind = "launch"
	EventAdopted    EventKind = "adopted" // a process that ran was taken into the turn
	EventExit       EventKind = "exit"
	EventOOM        EventKind = "oom"      // a process, or a whole turn, ended for want of memory
	EventLimit      EventKind = "limit"    // a bound was reached: output, processes
	EventDegraded   EventKind = "degraded" // the turn is held less well, or its keeper is gone
	EventFrozen     EventKind = "frozen"
	EventThawed     EventKind = "thawed"
	EventTaken      EventKind = "taken" // a new client, a new epoch
	EventClientGone EventKind = "client_gone"
	EventEnding     EventKind = "ending"
	EventEnded      EventKind = "ended"      // the receipt is there
	EventUnkillable EventKind = "unkillable" // and survivors remain
	EventResolved   EventKind = "resolved"   // they have gone
	EventLeftover   EventKind = "leftover"   // something was kept, or what was kept has gone
	EventOutside    EventKind = "outside"    // something had left the turn's cgroup
	EventJob        EventKind = "job"        // started, promoted, ejected, transferred, ended
	EventGap        EventKind = "gap"        // events up to this one are not kept any more
)

// EventKinds lists them, in the order of a turn's life.
func EventKinds() []EventKind {
	return []EventKind{EventBegun, EventLaunch, EventAdopted, EventExit, EventOOM, EventLimit, EventDegraded, EventFrozen, EventThawed, EventTaken,
		EventClientGone, EventEnding, EventEnded, EventUnkillable, EventResolved, EventLeftover, EventOutside, EventJob, EventGap}
}

// Event is one thing that happened. Seq rises from event to event, and
// is the cursor: a reader that has seen it goes on after it.
type Event struct {
	Seq     int64     `json:"seq"`
	At      time.Time `json:"at"`
	Kind    EventKind `json:"kind"`
	Owner   uint32    `json:"owner"`
	Turn    string    `json:"turn,omitempty"`
	Epoch   int64     `json:"epoch,omitempty"`
	Session string    `json:"session,omitempty"`
	Process string    `json:"process,omitempty"`
	Job     string    `json:"job,omitempty"`
	State   State     `json:"state,omitempty"` // of the turn, after it
	Reason  Reason    `json:"reason,omitempty"`
	Status  *Status   `json:"status,omitempty"`
	// Stopped tells that the turn was being ended, or had ended, when this
	// happened: nothing that waits for it is to be woken.
	Stopped bool   `json:"stopped,omitempty"`
	Message string `json:"message,omitempty"`
	Grade   Grade  `json:"grade,omitempty"`
}

// EventLine is one line of GET /v1/events: an event, or the last line, which has
// Next; an empty object comes now and then while there is nothing to tell.
type EventLine struct {
	Event *Event `json:"event,omitempty"`
	Next  *int64 `json:"next,omitempty"` // the cursor to go on after
	Error *Error `json:"error,omitempty"`
	Grade Grade  `json:"grade,omitempty"`
}

// AckRequest says that a consumer has dealt with every event up to Seq.
type AckRequest struct {
	Consumer string `json:"consumer"` // 1 to 64 letters, digits, dots, dashes and underscores; of the caller's uid
	Seq      int64  `json:"seq"`
}

// AckAnswer tells how far the consumer is. Repeated: it was that far before, so
// whoever asked now is not the one to act.
type AckAnswer struct {
	Consumer string `json:"consumer"`
	Seq      int64  `json:"seq"`
	Repeated bool   `json:"repeated,omitempty"`
	Grade    Grade  `json:"grade"`
}
