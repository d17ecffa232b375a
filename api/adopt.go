package api

import (
	"strconv"
	"time"
)

// AdoptRequest takes a process that runs already into a turn. Which one is said
// by a pidfd that comes along with the request (SCM_RIGHTS), or by Process with
// its start ticks or its pidfs inode. A number alone names nobody for sure, and
// is refused; so is whatever does not fit together.
type AdoptRequest struct {
	// Process is what the caller has seen of it. With a pidfd all of it may be
	// missing, and what is there has to be true.
	Process Identity `json:"process,omitzero"`
	// Tree takes its descendants along, as far as their parents live: one whose
	// parent has ended is not known to be a descendant.
	Tree bool `json:"tree,omitempty"`
	// Ancestor allows that it is an ancestor of the caller, or the turn's client:
	// ending the turn then ends that.
	Ancestor bool `json:"ancestor,omitempty"`
	// MinGrade is how well it has to be held. Empty: it is moved where the turn has
	// a cgroup, or refused; token: where it cannot be moved it is held by its
	// identity alone, and its descendants are not held.
	MinGrade   Grade             `json:"min_grade,omitempty"`
	Labels     map[string]string `json:"labels,omitempty"`
	StopSignal string            `json:"stop_signal,omitempty"`
	// IdempotencyKey makes the same request adopt once, as with a launch.
	IdempotencyKey string `json:"idempotency_key,omitempty"`
	Epoch          int64  `json:"epoch,omitempty"`
}

// Adoption is how a process that ran already came into its turn.
type Adoption struct {
	At time.Time `json:"at"`
	By Actor     `json:"by"`
	// From is the cgroup that it was in.
	From string `json:"from,omitempty"`
	// Moved is how many processes were moved into the turn's cgroup; 0: it is
	// held by its identity, and what it has forked is not held.
	Moved int `json:"moved"`
	// Stdio is theirs: nothing of its streams is kept, or can be written to.
	Stdio StdioMode `json:"stdio"`
	// Evidence is what it was known by.
	Evidence []string `json:"evidence"`
}

// AdoptRefusal is details.reason of the code adopt_refused.
type AdoptRefusal string

// Refuse makes the error of a process that is not adopted.
func (r AdoptRefusal) Refuse(pid int, format string, args ...any) *Error {
	e := Errorf(CodeAdoptRefused, format, args...).With("reason", string(r))
	if pid > 0 {
		e = e.With("pid", strconv.Itoa(pid))
	}
	return e
}

// The reasons. details.pid is the process that is meant.
const (
	// AdoptAmbiguous: what was said does not name one process for sure.
	AdoptAmbiguous AdoptRefusal = "ambiguous"
	// AdoptForeign: it is not the process that was described.
	AdoptForeign AdoptRefusal = "foreign"
	// AdoptGone: it has exited, as a zombie has, or does not exist.
	AdoptGone AdoptRefusal = "gone"
	// AdoptThread: the number is a thread's; details.process is its process.
	AdoptThread AdoptRefusal = "thread"
	// AdoptKernel: it is a thread of the kernel's.
	AdoptKernel AdoptRefusal = "kernel"
	// AdoptOther: one of its user ids is not the turn's owner's.
	AdoptOther AdoptRefusal = "other_user"
	// AdoptPinfold: it is the service, a keeper or an ancestor of the service.
	AdoptPinfold AdoptRefusal = "pinfold"
	// AdoptAncestor: it is the caller, an ancestor of it, or the turn's client.
	AdoptAncestor AdoptRefusal = "ancestor"
	// AdoptHeld: a turn holds it; details.turn is which.
	AdoptHeld AdoptRefusal = "held"
	// AdoptUnmovable: the kernel or the service manager does not move it;
	// details.errno_name says why.
	AdoptUnmovable AdoptRefusal = "unmovable"
	// AdoptTooMany: it has more descendants than are moved at once.
	AdoptTooMany AdoptRefusal = "too_many"
)
