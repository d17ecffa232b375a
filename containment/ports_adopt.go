package containment

import (
	"context"
	"errors"
	"os"

	"pinfold.dev/api"
)

// Adopts is the part of a Hold that takes processes in that run already.
type Adopts interface {
	// Adopt finds the process, asks a.May about it before anything is done, and
	// about each that would come along, tells a.Before who it is, and takes it in:
	// into a fresh leaf where the hold has a cgroup, else, or where a.Token allows
	// it, by its identity. What cannot be moved is an error that names it, and all
	// that was moved is moved back. The error is an *api.Error, or ErrUsed.
	Adopt(ctx context.Context, a Adopting) (Adopted, error)
	// Readopt finds one again that an earlier service had adopted, with the
	// evidence. ErrUndone: that service was killed before it was done, and what it
	// had moved is where it was. One that was not moved is named by its record alone,
	// so may is asked once more.
	Readopt(ctx context.Context, process string, was api.Identity, moved bool, may func(Candidate) error) (api.Verdict, []string, error)
}

// ErrUndone tells that a process was not adopted after all.
var ErrUndone = errors.New("its adoption was undone")

// Adopting is a process that is to be adopted.
type Adopting struct {
	Process string // what it is to be called
	Said    api.Identity
	PIDFD   *os.File                 // nil: none came along
	Peer    func() (*os.File, error) // the caller's own handle; nil: nobody asks
	PeerPID int                      // its number, where the kernel has no such handle
	Tree    bool
	// Ancestor: it need not be looked whether it is one of the caller's.
	Ancestor bool
	Token    bool // its identity is enough
	May      func(Candidate) error
	// Before is told again when it turns out that it cannot be moved, and is held by
	// its identity.
	Before func(Adopted) error
}

// Candidate is a process that would be taken in.
type Candidate struct {
	Identity api.Identity
	Comm     string
	UIDs     [4]uint32 // real, effective, saved, of the file system
	Cgroup   string    // its 0:: line, empty where it has none
	// Above are its ancestors, the nearest first, as far as they are seen. Not of
	// one that comes along.
	Above []api.Identity
	// Caller tells that it is the caller or an ancestor of it.
	Caller bool
	Along  bool // it comes along with its ancestor
}

// Adopted is what is known of it.
type Adopted struct {
	Started  Started
	Grade    api.Grade
	Argv     []string
	Cwd      string
	UID      uint32
	From     string
	Moved    int
	Evidence []string
}
