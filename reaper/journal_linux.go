package reaper

import (
	"os"
	"path/filepath"
	"syscall"
	"time"

	"pinfold.dev/internal/fault"
	"pinfold.dev/internal/wire"
)

// journal is the turn's, append-only: each fact is one write.
type journal struct {
	fd     int
	failed int   // facts that could not be written
	err    error // why the last one could not
	torn   bool  // a write was short: the next begins a line of its own
	line   []byte
}

func (j *journal) open(dir string) (err error) {
	path := filepath.Join(dir, wire.JournalName)
	const flags = syscall.O_WRONLY | syscall.O_APPEND | syscall.O_CREAT | syscall.O_CLOEXEC | syscall.O_NOFOLLOW
	if j.fd, err = syscall.Open(path, flags, 0o600); err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	return nil
}

// write appends a fact and tells whether it is there.
func (j *journal) write(e wire.Entry) bool {
	e.AtNS = time.Now().UnixNano()
	j.line = j.line[:0]
	if j.torn {
		j.line = append(j.line, '\n')
	}
	j.line = e.Append(j.line)
	var n int
	var err error = syscall.EINTR
	fault.Point("journal.write")
	for err == syscall.EINTR {
		n, err = syscall.Write(j.fd, j.line)
	}
	fault.Point("journal.written")
	if n > 0 {
		j.torn = n < len(j.line)
	}
	if err == nil && n < len(j.line) {
		err = syscall.ENOSPC
	}
	if err != nil {
		j.failed++
		j.err = os.NewSyscallError("write journal", err)
	}
	return err == nil
}
