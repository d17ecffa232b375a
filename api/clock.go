package api

import "time"

// Activity is something that shows that a turn is not idle.
type Activity string

// The activities.
const (
	ActivityTouch  Activity = "touch"  // POST …/touch, a launch, input
	ActivityOutput Activity = "output" // bytes in kept output
	ActivityCPU    Activity = "cpu"    // more than 1 % of one CPU, as the cgroup counts
	ActivityIO     Activity = "io"     // bytes read or written, where there is an io controller
)

// Activities lists them.
func Activities() []Activity {
	return []Activity{ActivityTouch, ActivityOutput, ActivityCPU, ActivityIO}
}

// ClientBind says what a turn's client is.
type ClientBind string

// The bindings.
const (
	// BindNone: nobody is watched.
	BindNone ClientBind = "none"
	// BindProcess: the process that began the turn, or took it over, is watched
	// by its pidfd.
	BindProcess ClientBind = "process"
	// BindConnection: the client is there while it holds GET …/hold open.
	BindConnection ClientBind = "connection"
)

// OnGone says what happens when a turn's client has gone.
type OnGone string

// The turn is abandoned, for the reason client_gone, or goes on without one.
const (
	OnGoneAbandon OnGone = "abandon"
	OnGoneDetach  OnGone = "detach"
)

// Client binds a turn to who began it.
type Client struct {
	Bind ClientBind `json:"bind,omitempty"` // empty: none
	// OnGone is what happens when the client has gone; empty: abandon.
	OnGone OnGone `json:"on_gone,omitempty"`
	// AfterMS is how long the client may be gone: another that takes the turn
	// (POST …/take), or holds it again, in time is the client from then on. For
	// bind connection it is also the time for the first GET …/hold; there 0
	// means 10 s.
	AfterMS int64 `json:"after_ms,omitempty"`
}

// ClockName names a clock of a turn.
type ClockName string

// The clocks.
const (
	ClockWall      ClockName = "wall"
	ClockLease     ClockName = "lease"
	ClockIdle      ClockName = "idle"
	ClockClient    ClockName = "client"    // runs while the client is gone
	ClockLeftovers ClockName = "leftovers" // runs when the turn has ended and leftovers run on
	ClockJob       ClockName = "job"       // of a job: its maximum lifetime
)

// Clock is one clock of a turn as it stands. Clocks are monotonic, go on while
// the service is down, and stand still while the turn is frozen.
type Clock struct {
	Name    ClockName `json:"name"`
	LimitMS int64     `json:"limit_ms"`
	LeftMS  int64     `json:"left_ms"`
	// Running is false while the clock stands still.
	Running bool `json:"running"`
	// DueAt is when it would run out, if nothing happens.
	DueAt *time.Time `json:"due_at,omitempty"`
}

// TouchRequest tells that the turn is wanted: it renews the lease and counts as
// activity.
type TouchRequest struct {
	Epoch int64 `json:"epoch,omitempty"`
}

// TouchAnswer tells the clocks after it.
type TouchAnswer struct {
	Turn   string  `json:"turn"`
	Epoch  int64   `json:"epoch"`
	Clocks []Clock `json:"clocks"`
	Grade  Grade   `json:"grade"`
}

// FreezeRequest stops, or lets go on, every process of the turn.
type FreezeRequest struct {
	Epoch int64 `json:"epoch,omitempty"`
}

// TakeRequest makes the caller the turn's client, and gives the turn a new
// epoch: calls that carry an older one are refused from then on.
type TakeRequest struct {
	// Epoch, when not 0, must be the turn's: of two that take it at once, one
	// is refused.
	Epoch int64 `json:"epoch,omitempty"`
}

// HoldLine is one line of GET …/hold: the first when the turn is held, the last
// when it is over. Between them an empty object comes now and then.
type HoldLine struct {
	Turn  string `json:"turn,omitempty"`
	State State  `json:"state,omitempty"`
	Error *Error `json:"error,omitempty"`
	Grade Grade  `json:"grade,omitempty"`
}
