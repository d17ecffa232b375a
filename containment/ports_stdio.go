package containment

import (
	"context"
	"io/fs"
	"os"
	"syscall"
	"time"

	"pinfold.dev/api"
)

// Streams is the part of a Hold that deals with single processes and their
// standard streams. What the turn's keeper is too old for is refused with
// api.ErrUnsupported.
type Streams interface {
	// Input has bytes written to a process's stdin, at most MaxInput, and with
	// eof the end after them. It returns once the keeper has taken them;
	// api.ErrStdinClosed: nobody reads them any more.
	Input(ctx context.Context, process string, data []byte, eof bool) error
	// Resize changes the size of a process's terminal.
	Resize(ctx context.Context, process string, size api.WinSize) error
	// EndProcess ends a launched process with its descendants, as far as they
	// are in its leaf: stop to each, the grace, then kill, until they are seen
	// gone. When bound runs out first, the error says who is left.
	EndProcess(ctx context.Context, process string, stop syscall.Signal, grace, bound time.Duration) error
	// Join moves a live process that is none of ours, held by its pidfd, into a
	// fresh leaf. where is told the cgroup it is in and may refuse; before is
	// told who it is, before anything is done, and may refuse, too.
	Join(ctx context.Context, process string, peer *os.File, where func(cgroup string) error, before func(Started) error) error
	// Rejoin finds a process that had joined before the service was restarted.
	// Anything but owned means that it is not in the turn any more; exit is
	// then told when it has ended.
	Rejoin(process string, was api.Identity) (api.Verdict, error)
}

// MaxInput bounds one call of Streams.Input.
const MaxInput = 64 << 10

// Outputs is where keepers put what launches write. It is implemented by
// package internal/outputs.
type Outputs interface {
	// Dir is the turn's directory, which need not exist.
	Dir(turn string) string
	// Open opens a kept stream; fs.ErrNotExist: it is not kept (any more).
	Open(turn, process string, s api.StreamName) (Output, error)
	// Remove removes what a process wrote, or, with "", what all of a turn did.
	Remove(turn, process string) error
	// Ended notes that a turn is over.
	Ended(turn string) error
	// List tells what is there.
	List() ([]Kept, error)
	// Sizes tells the bytes on disk of each process of a turn.
	Sizes(turn string) (map[string]int64, error)
}

// Kept is what is kept of one turn's output.
type Kept struct {
	Turn  string
	Bytes int64     // on disk
	At    time.Time // when it ended, for one that has
}

// Output is one kept stream, open for reading.
type Output interface {
	// Status tells how far the stream is; closed that nothing is written any
	// more.
	Status() (st api.StreamStatus, closed bool, err error)
	// Tail is the offset of the n-th last byte, or of the first after it that is
	// still there.
	Tail(n int64) (int64, error)
	// ReadAt reads from an offset: bytes up to next, or a gap up to next, or
	// nothing when that is not written yet; io.EOF when it never will be.
	ReadAt(p []byte, off int64) (n int, next int64, gap *api.Gap, err error)
	// Wait returns when the stream has had more than total bytes, or is closed.
	Wait(ctx context.Context, total int64) error
	Close() error
}

// noOutputs keeps nothing.
type noOutputs struct{}

func (noOutputs) Dir(string) string { return "" }

func (noOutputs) Open(turn, process string, s api.StreamName) (Output, error) {
	return nil, fs.ErrNotExist
}
func (noOutputs) Remove(turn, process string) error      { return nil }
func (noOutputs) Ended(string) error                     { return nil }
func (noOutputs) List() ([]Kept, error)                  { return nil, nil }
func (noOutputs) Sizes(string) (map[string]int64, error) { return nil, nil }
