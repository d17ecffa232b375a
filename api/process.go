package api

import (
	"encoding/json"
	"time"
)

// ProcessState is where a launched process is in its life.
type ProcessState string

// The process states. Lost means that nobody saw the exit status; it is never
// told as a code.
const (
	ProcessRunning  ProcessState = "running"
	ProcessExited   ProcessState = "exited"
	ProcessSignaled ProcessState = "signaled"
	ProcessOOM      ProcessState = "oom"
	ProcessLost     ProcessState = "lost"
)

// Status is how a process is or how it ended.
type Status struct {
	State ProcessState `json:"state"`
	// Code is the exit code, for exited; then it is always there, 0 too.
	Code int `json:"code,omitempty"`
	// Signal is the signal's name (SIGKILL), for signaled and oom.
	Signal string `json:"signal,omitempty"`
	// SignalNumber is its number on this host.
	SignalNumber int `json:"signal_number,omitempty"`
	// Core tells that a core was dumped.
	Core bool `json:"core,omitempty"`
	// Why says, for lost, why nobody knows.
	Why string `json:"why,omitempty"`
	// EndedBy is deadline or stop when Pinfold ended, or is ending, it for that;
	// else empty.
	EndedBy string `json:"ended_by,omitempty"`
}

// MarshalJSON writes the code of everything that has exited, 0 too.
func (s Status) MarshalJSON() ([]byte, error) {
	type plain Status
	if s.State != ProcessExited {
		return json.Marshal(plain(s))
	}
	return json.Marshal(struct {
		plain
		Code int `json:"code"`
	}{plain(s), s.Code})
}

// EndedByDeadline is Status.EndedBy of a process whose deadline was over.
const EndedByDeadline = "deadline"

// EndedByStop is Status.EndedBy of a process that was ended while its turn was not:
// on request, or as a job that ends with a turn.
const EndedByStop = "stop"

// ShellCode is the status as a shell shows it: the code, 128+n for a signal,
// 255 for lost.
func (s Status) ShellCode() int {
	switch s.State {
	case ProcessExited:
		return s.Code
	case ProcessSignaled, ProcessOOM:
		return 128 + s.SignalNumber
	}
	return 255
}

// Identity is what was recorded of a process to know it again. See DESIGN:
// a recorded pid is a claim; the rest of the tuple is what proves it.
type Identity struct {
	PID        int    `json:"pid"`
	Boot       string `json:"boot,omitempty"`        // boot id
	PIDNS      uint64 `json:"pid_ns,omitempty"`      // inode of the PID namespace
	TimeNS     uint64 `json:"time_ns,omitempty"`     // inode of the time namespace
	StartTicks uint64 `json:"start_ticks,omitempty"` // field 22 of /proc/pid/stat
	Ino        uint64 `json:"pidfs_ino,omitempty"`   // pidfs inode, Linux >= 6.9
	CgroupID   uint64 `json:"cgroup_id,omitempty"`   // at launch
	// StartUS, StartS and Created are start tokens of systems other than Linux,
	// which record one of them and nothing of the above but pid and boot.
	StartUS uint64 `json:"start_us,omitempty"`      // microseconds: macOS since 1970, FreeBSD since the boot
	StartS  uint64 `json:"start_s,omitempty"`       // seconds since 1970: of ps(1)
	Created uint64 `json:"created_100ns,omitempty"` // 100 ns since 1601: Windows
}

// Process is one launched process, as shown to callers.
type Process struct {
	ID   string   `json:"id"` // p1, p2, … within its turn
	Turn string   `json:"turn"`
	PID  int      `json:"pid"`
	Argv []string `json:"argv"`
	// ArgvB64 is argv as it is, where Argv cannot say it: in base64.
	ArgvB64 [][]byte `json:"argv_b64,omitempty"`
	// Cwd is the directory that it was started in.
	Cwd       string            `json:"cwd,omitempty"`
	UID       uint32            `json:"uid"`
	Labels    map[string]string `json:"labels,omitempty"`
	Status    Status            `json:"status"`
	StartedAt time.Time         `json:"started_at"`
	EndedAt   *time.Time        `json:"ended_at,omitempty"`
	Identity  Identity          `json:"identity"`
	Grade     Grade             `json:"grade"`
	// Placement tells how it got into its cgroup: clone (born there), gate
	// (held at a gate, moved, then let go), join or adopt (moved while it ran), or
	// token: it is in no cgroup of the turn's.
	Placement string `json:"placement,omitempty"`
	// InPlace tells that it is the caller's own child, moved into the turn.
	InPlace bool `json:"in_place,omitempty"`
	// Adopted tells that it ran before it was taken into the turn, and how that
	// was. It is somebody else's child, and its streams are none of the turn's.
	Adopted *Adoption `json:"adopted,omitempty"`
	// FinishesTurn tells that its turn is finished when it has ended.
	FinishesTurn bool `json:"finishes_turn,omitempty"`
	// Stdin is its mode, where the process's stdin can be written to: pipe or
	// pty.
	Stdin StdioMode `json:"stdin,omitempty"`
	// Terminal tells that it has a terminal of its own.
	Terminal bool `json:"terminal,omitempty"`
	// Output is how far its kept streams are, by name. It is left out where that was
	// not read: of running turns in a list, and in answers that change a turn.
	Output   map[StreamName]StreamStatus `json:"output,omitempty"`
	Deadline *time.Time                  `json:"deadline,omitempty"`
	// Acknowledged tells that its exit was, and that its output is not kept any
	// more.
	Acknowledged bool `json:"acknowledged,omitempty"`
	// Repeated tells, in the answer to a launch, that this is an earlier one
	// with the same idempotency key.
	Repeated bool `json:"repeated,omitempty"`
}

// ProcessList answers GET /v1/turns/{turn}/processes.
type ProcessList struct {
	Processes []Process `json:"processes"`
	Grade     Grade     `json:"grade"`
}

// Member is one process that the turn's cgroup holds now.
type Member struct {
	PID     int    `json:"pid"`
	PPID    int    `json:"ppid"`
	UID     uint32 `json:"uid"`
	State   string `json:"state"` // the letter of /proc/pid/stat; Z: its main thread has ended, others run
	Comm    string `json:"comm"`
	Process string `json:"process,omitempty"` // the launch whose leaf holds it
	Cgroup  string `json:"cgroup"`            // below the turn's
	RSS     int64  `json:"rss_bytes"`
	AgeMS   int64  `json:"age_ms"`
	// Grade is token for one that is held by its identity alone: then Cgroup is
	// wherever it is. Else empty.
	Grade Grade `json:"grade,omitempty"`
}

// Tree answers GET /v1/turns/{turn}/tree.
type Tree struct {
	Turn    string   `json:"turn"`
	Grade   Grade    `json:"grade"`
	Members []Member `json:"members"`
}

// SignalRequest sends a signal to a launched process, through its handle.
type SignalRequest struct {
	Signal string `json:"signal"` // name with or without SIG, or a number
	// Group sends it to the process's group, as a terminal does: to what the
	// process has started and that has made no group of its own. Before Linux 6.9
	// it goes to the process only. One that joined, or was adopted, is in somebody
	// else's group, which is not the turn's: that is refused.
	Group bool  `json:"group,omitempty"`
	Epoch int64 `json:"epoch,omitempty"`
}

// SignalAnswer tells what became of it.
type SignalAnswer struct {
	Process string  `json:"process"`
	Signal  string  `json:"signal"`
	Verdict Verdict `json:"verdict"` // owned: sent; gone: it had exited
	Grade   Grade   `json:"grade"`
}
