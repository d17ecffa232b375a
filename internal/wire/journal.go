package wire

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
)

// JournalName is the keeper's journal in its turn's directory: one JSON object
// a line, only ever appended to.
const JournalName = "journal.jsonl"

// Fact is what a line of the journal tells.
type Fact string

// The facts. A launch is intended before its child is made, and then either
// started or not; an intended one without an outcome may have run.
const (
	FactKeeper     Fact = "keeper"      // the first line: Hello
	FactIntent     Fact = "intent"      // Started, as far as it is known
	FactStarted    Fact = "started"     // Started
	FactNotStarted Fact = "not_started" // Error
	FactExit       Fact = "exit"        // Exit
)

// Entry is a line of the journal.
type Entry struct {
	AtNS    int64    `json:"at_ns"` // unix time
	Fact    Fact     `json:"fact"`
	Process string   `json:"process,omitempty"`
	Hello   *Hello   `json:"hello,omitempty"`
	Started *Started `json:"started,omitempty"`
	Error   *Error   `json:"error,omitempty"`
	Exit    *Exit    `json:"exit,omitempty"`
}

// Append appends the entry's line, with its newline.
func (e *Entry) Append(b []byte) []byte { return append(encode(b, e), '\n') }

// MaxLine bounds a line of the journal: Started with its argv, cut, and the
// service's meta. A longer one is not read.
const MaxLine = 1 << 20

// ReadJournal reads a journal. Lines that are torn (a full disk, a kill) are
// passed over and counted; the last one may just be being written. The error
// is r's.
func ReadJournal(r io.Reader) (entries []Entry, torn int, err error) {
	in := bufio.NewReaderSize(r, lineRoom(r))
	for {
		line, err := in.ReadSlice('\n')
		long := errors.Is(err, bufio.ErrBufferFull)
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = in.ReadSlice('\n')
		}
		if err != nil && err != io.EOF {
			return entries, torn, &wrapped{"read journal: " + err.Error(), err}
		}
		if len(line) > 1 || long {
			var e Entry
			if long || decode(line, &e) != nil || !e.whole() {
				torn++
			} else {
				entries = append(entries, e)
			}
		}
		if err == io.EOF {
			return entries, torn, nil
		}
	}
}

// lineRoom is how long a line may be: as long as any, or as a file that is smaller
// than that, with what may come to it. Thousands may be read when a service starts.
func lineRoom(r io.Reader) int {
	const more = 16 << 10
	if f, ok := r.(interface{ Stat() (fs.FileInfo, error) }); ok {
		if fi, err := f.Stat(); err == nil && fi.Mode().IsRegular() && fi.Size() < MaxLine-more {
			return int(fi.Size()) + more
		}
	}
	return MaxLine
}

// whole tells whether an entry has what its fact says it has. An unknown fact
// is a newer keeper's.
func (e *Entry) whole() bool {
	switch e.Fact {
	case FactIntent, FactStarted:
		return e.Started != nil && e.Process != "" && e.Process == e.Started.Process
	case FactNotStarted:
		return e.Process != "" && e.Error != nil
	case FactExit:
		return e.Exit != nil && e.Process != "" && e.Process == e.Exit.Process
	}
	return e.Fact != ""
}

// Recorded is a launch as the journal tells it.
type Recorded struct {
	Process Process
	// Unsure tells that only the intent is on record: it may have run, and
	// Started then lacks its pid.
	Unsure bool
}

// Launches folds a journal into its launches, oldest first. Those that did not
// start are left out.
func Launches(entries []Entry) []Recorded {
	at := make(map[string]int)
	var list []Recorded
	for _, e := range entries {
		i, known := at[e.Process]
		switch {
		case e.Fact == FactIntent && !known:
			at[e.Process] = len(list)
			list = append(list, Recorded{Process: Process{Started: *e.Started}, Unsure: true})
		case e.Fact == FactStarted && !known:
			at[e.Process] = len(list)
			list = append(list, Recorded{Process: Process{Started: *e.Started}})
		case e.Fact == FactStarted:
			list[i].Process.Started, list[i].Unsure = *e.Started, false
		case e.Fact == FactNotStarted && known:
			list[i].Process.Started.Process = ""
			delete(at, e.Process)
		case e.Fact == FactExit && known:
			list[i].Process.Exit, list[i].Unsure = e.Exit, false
		}
	}
	kept := list[:0]
	for _, r := range list {
		if r.Process.Started.Process != "" {
			kept = append(kept, r)
		}
	}
	return kept
}
