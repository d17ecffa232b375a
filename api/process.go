package api

import "time"

// StdioMode says where a stream of a launched process goes.
type StdioMode string

// Null is /dev/null; Pass is a descriptor that the caller sent with the
// request (SCM_RIGHTS).
const (
	StdioNull StdioMode = "null"
	StdioPass StdioMode = "pass"
)

// Stream describes one of a process's standard streams.
type Stream struct {
	Mode StdioMode `json:"mode"`
	// FD is, for pass, the index into the descriptors that came with the
	// request, from 0. Two streams may name the same one.
	FD int `json:"fd,omitempty"`
}

// Stdio describes the standard streams; a zero Stream is null.
type Stdio struct {
	Stdin  Stream `json:"stdin,omitzero"`
	Stdout Stream `json:"stdout,omitzero"`
	Stderr Stream `json:"stderr,omitzero"`
}

// LaunchRequest starts a process in a turn. No shell stands in between.
type LaunchRequest struct {
	Argv []string `json:"argv"`
	// Env is the exact environment, as NAME=value; [] is an empty one. Nil, or
	// null, means the base: PATH, HOME, USER, LOGNAME, SHELL and LANG of the
	// user it runs as. Variables that belong to a service manager
	// (NOTIFY_SOCKET, LISTEN_*, ...) never pass.
	Env []string `json:"env,omitzero"`
	// Cwd must exist; empty means the user's home, or / where there is none.
	Cwd   string `json:"cwd,omitempty"`
	Stdio Stdio  `json:"stdio,omitzero"`
	// User is a name or uid; only root may name another than its own. Empty
	// means the peer's own uid, gid and groups.
	User string `json:"user,omitempty"`
	// StopSignal is sent first when the turn ends with a grace; empty: TERM.
	StopSignal string `json:"stop_signal,omitempty"`
	// MinGrade refuses the launch where the turn is held less well.
	MinGrade Grade             `json:"min_grade,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"`
	// Epoch, when not 0, must be the turn's.
	Epoch int64 `json:"epoch,omitempty"`
}

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
	// Code is the exit code, for exited.
	Code int `json:"code,omitempty"`
	// Signal is the signal's name (SIGKILL), for signaled and oom.
	Signal string `json:"signal,omitempty"`
	// SignalNumber is its number on this host.
	SignalNumber int `json:"signal_number,omitempty"`
	// Core tells that a core was dumped.
	Core bool `json:"core,omitempty"`
	// Why says, for lost, why nobody knows.
	Why string `json:"why,omitempty"`
}

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
}

// Process is one launched process, as shown to callers.
type Process struct {
	ID        string            `json:"id"` // p1, p2, … within its turn
	Turn      string            `json:"turn"`
	PID       int               `json:"pid"`
	Argv      []string          `json:"argv"`
	Cwd       string            `json:"cwd,omitempty"`
	UID       uint32            `json:"uid"`
	Labels    map[string]string `json:"labels,omitempty"`
	Status    Status            `json:"status"`
	StartedAt time.Time         `json:"started_at"`
	EndedAt   *time.Time        `json:"ended_at,omitempty"`
	Identity  Identity          `json:"identity"`
	Grade     Grade             `json:"grade"`
	// Placement tells how it got into its cgroup: clone (born there) or gate
	// (held at a gate, moved, then let go).
	Placement string `json:"placement,omitempty"`
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
	State   string `json:"state"` // the letter of /proc/pid/stat
	Comm    string `json:"comm"`
	Process string `json:"process,omitempty"` // the launch whose leaf holds it
	Cgroup  string `json:"cgroup"`            // below the turn's
	RSS     int64  `json:"rss_bytes"`
	AgeMS   int64  `json:"age_ms"`
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
	Epoch  int64  `json:"epoch,omitempty"`
}

// SignalAnswer tells what became of it.
type SignalAnswer struct {
	Process string  `json:"process"`
	Signal  string  `json:"signal"`
	Verdict Verdict `json:"verdict"` // owned: sent; gone: it had exited
	Grade   Grade   `json:"grade"`
}
