package api

// StdioMode says where a stream of a launched process goes.
type StdioMode string

// The modes.
const (
	// StdioNull is /dev/null.
	StdioNull StdioMode = "null"
	// StdioPass is a descriptor that the caller sent with the request
	// (SCM_RIGHTS).
	StdioPass StdioMode = "pass"
	// StdioSpool keeps what the process writes, bounded, on disk: stdout and
	// stderr.
	StdioSpool StdioMode = "spool"
	// StdioPTY is the process's own terminal, which all streams of this mode
	// share. Its output is kept as stream stdout.
	StdioPTY StdioMode = "pty"
	// StdioData is Stream.Data, then the end: stdin.
	StdioData StdioMode = "data"
	// StdioPipe is a pipe that POST …/stdin writes to: stdin.
	StdioPipe StdioMode = "pipe"
	// StdioStdout is whatever stdout is: stderr.
	StdioStdout StdioMode = "stdout"
	// StdioTheirs is told of an adopted process, and cannot be asked for: its
	// streams are what they were before.
	StdioTheirs StdioMode = "theirs"
)

// Stream describes one of a process's standard streams.
type Stream struct {
	Mode StdioMode `json:"mode"`
	// FD is, for pass, the index into the descriptors that came with the
	// request, from 0. Two streams may name the same one.
	FD int `json:"fd,omitempty"`
	// Data is, for data, what the process reads: at most 1 MiB.
	Data []byte `json:"data,omitempty"`
	// MaxBytes is, for spool and pty, how much is kept, from 4 KiB to 1 GiB: the
	// first quarter and the latest rest; 0: 16 MiB.
	MaxBytes int64 `json:"max_bytes,omitempty"`
}

// Stdio describes the standard streams; a zero Stream is null.
type Stdio struct {
	Stdin  Stream `json:"stdin,omitzero"`
	Stdout Stream `json:"stdout,omitzero"`
	Stderr Stream `json:"stderr,omitzero"`
	// PTY is the size of the terminal; nil: 24 rows of 80 columns.
	PTY *WinSize `json:"pty,omitempty"`
}

// WinSize is a terminal's size in characters. It is brought into 1 to 1000 rows
// and 1 to 4096 columns.
type WinSize struct {
	Rows int `json:"rows"`
	Cols int `json:"cols"`
}

// StreamName names an output stream.
type StreamName string

// The streams whose output is kept.
const (
	StreamStdout StreamName = "stdout" // also a terminal's
	StreamStderr StreamName = "stderr"
)

// StreamStatus is how far a kept stream is.
type StreamStatus struct {
	// BytesTotal is what the process has written.
	BytesTotal int64 `json:"bytes_total"`
	// BytesDropped is how much of that cannot be read any more: what a gap
	// tells, whatever the cause.
	BytesDropped int64 `json:"bytes_dropped"`
	// BytesLost is how much of that was never kept: the disk was full, or the
	// turn's output_max was reached.
	BytesLost int64 `json:"bytes_lost,omitempty"`
	MaxBytes  int64 `json:"max_bytes"`
	// EOF tells that every writer has closed it. It may come long after the
	// process's exit, or never, when a descendant holds it.
	EOF bool `json:"eof"`
	// Error is the last error of writing it to disk, or why it cannot be read:
	// then the numbers are those that were known last.
	Error string `json:"error,omitempty"`
}

// Headers of a raw answer of GET …/output. Pinfold-Next-Offset is a trailer: it
// is known at the end.
const (
	OffsetHeader     = "Pinfold-Offset"      // of the first byte sent
	TotalHeader      = "Pinfold-Total"       // bytes_total when the answer began
	DroppedHeader    = "Pinfold-Dropped"     // bytes_dropped when the answer began
	NextOffsetHeader = "Pinfold-Next-Offset" // where to go on
)

// NDJSON is the media type of streaming answers: one JSON value a line.
const NDJSON = "application/x-ndjson"

// OutputLine is one line of GET …/output with Accept: application/x-ndjson.
// Bytes and gaps come in order of their offsets; the last line has Next, and an
// answer without it was cut off.
type OutputLine struct {
	// Offset is that of the first byte of Data.
	Offset *int64  `json:"offset,omitempty"`
	Data   []byte  `json:"data,omitempty"`
	Gap    *Gap    `json:"gap,omitempty"`
	Next   *int64  `json:"next,omitempty"` // where to go on
	EOF    bool    `json:"eof,omitempty"`  // the stream has ended
	Exit   *Status `json:"exit,omitempty"` // of the process, if it has
	Error  *Error  `json:"error,omitempty"`
	Grade  Grade   `json:"grade,omitempty"` // in the last line
}

// Gap is a run of bytes that cannot be read: From up to, but not including, To.
type Gap struct {
	From int64 `json:"from"`
	To   int64 `json:"to"`
	// Reason is overwritten, lost (the disk was full), refused (output_max) or
	// unknown.
	Reason string `json:"reason"`
}

// InputAnswer answers POST …/stdin.
type InputAnswer struct {
	Process string `json:"process"`
	// Bytes is how many were taken. They reach the process in their order; those
	// of a request with a Content-Length of at most 64 KiB all together, or none
	// of them, and without others between.
	Bytes  int64 `json:"bytes"`
	Closed bool  `json:"closed,omitempty"` // stdin was closed after them
	Grade  Grade `json:"grade"`
}

// ResizeRequest changes the size of a process's terminal.
type ResizeRequest struct {
	Rows  int   `json:"rows"`
	Cols  int   `json:"cols"`
	Epoch int64 `json:"epoch,omitempty"`
}

// ResizeAnswer tells the size that the terminal has now.
type ResizeAnswer struct {
	Process string `json:"process"`
	Rows    int    `json:"rows"`
	Cols    int    `json:"cols"`
	Grade   Grade  `json:"grade"`
}
