package api

import "time"

// FinishRequest says that the turn's work is done.
type FinishRequest struct {
	// Leftovers overrides the turn's policy; empty: the turn's.
	Leftovers LeftoverPolicy `json:"leftovers,omitempty"`
	Epoch     int64          `json:"epoch,omitempty"`
	GraceMS   *int64         `json:"grace_ms,omitempty"`
}

// AbandonRequest ends a turn: every process of it, nothing else.
type AbandonRequest struct {
	// Reason is recorded; empty means stop.
	Reason Reason `json:"reason,omitempty"`
	// GraceMS is the time between TERM and KILL; 0 kills at once, nil means
	// the turn's. Of a turn that is being ended it cuts a longer one short.
	GraceMS *int64 `json:"grace_ms,omitempty"`
	Epoch   int64  `json:"epoch,omitempty"`
	// Leftovers ends what a finished turn left running; without it a second
	// call returns the first receipt and touches nothing but a longer grace.
	Leftovers bool `json:"leftovers,omitempty"`
	// Jobs ends the turn's jobs, too; without it the turn's policy says.
	Jobs bool `json:"jobs,omitempty"`
}

// Actor is who asked for an ending.
type Actor struct {
	UID    uint32 `json:"uid"`
	PID    int    `json:"pid,omitempty"`
	Ino    uint64 `json:"pidfs_ino,omitempty"`
	Cgroup string `json:"cgroup,omitempty"`
	// Name is set when the service itself acted: pinfold.
	Name string `json:"name,omitempty"`
}

// Counts sums up an ending. Ended counts what the turn's cgroup was seen to
// hold before the kill, survivors too, and launched processes that were ended where
// they had gone; forks make it a lower bound. Foreign and Unverifiable were refused,
// that is not signalled: launched processes that could not be proved any more, and
// what was outside and not ended.
type Counts struct {
	Ended        int `json:"ended"`
	AlreadyGone  int `json:"already_gone"`
	Foreign      int `json:"foreign"`
	Unverifiable int `json:"unverifiable"`
	Survivors    int `json:"survivors"`
}

// ReceiptProcess is what became of one launched process.
type ReceiptProcess struct {
	ID      string   `json:"id"`
	PID     int      `json:"pid"`
	Argv    []string `json:"argv,omitempty"`
	Status  Status   `json:"status"`
	EndedBy string   `json:"ended_by"` // itself, term, kill, stop or deadline (see Status), nobody (still running), unknown
	// Verdict is gone when it was seen to have ended; owned when it lives and is
	// proved; foreign or unverifiable when it was refused: nothing was sent to it.
	Verdict Verdict `json:"verdict"`
	// Evidence is what the verdict rests on: how it was known, and how its end was
	// seen, or why it was refused.
	Evidence []string `json:"evidence,omitempty"`
	Identity Identity `json:"identity"`
	// Adopted tells that it ran before it was taken into the turn.
	Adopted bool `json:"adopted,omitempty"`
	// Escaped tells that it had left the turn's cgroup and was ended through
	// its handle.
	Escaped bool `json:"escaped,omitempty"`
}

// Survivor is a process that could not be ended in bounded time.
type Survivor struct {
	PID         int    `json:"pid"`
	TID         int    `json:"tid,omitempty"` // when only a thread is left
	Comm        string `json:"comm,omitempty"`
	State       string `json:"state"` // the letter of /proc/pid/stat
	WaitChannel string `json:"wait_channel,omitempty"`
	Cgroup      string `json:"cgroup,omitempty"`
	Why         string `json:"why,omitempty"` // it may not be signalled, being another user's
}

// Refused is a process that was looked at when a turn was ended, and not signalled:
// it could not be proved to be the turn's.
type Refused struct {
	PID      int      `json:"pid"`
	Process  string   `json:"process,omitempty"` // the launch that it was looked at for
	Comm     string   `json:"comm,omitempty"`
	Verdict  Verdict  `json:"verdict"` // foreign or unverifiable
	Evidence []string `json:"evidence"`
}

// Leftover is a process kept running when its turn finished.
type Leftover struct {
	PID     int      `json:"pid"`
	Process string   `json:"process,omitempty"` // the launch it descends from
	Comm    string   `json:"comm"`
	Argv    []string `json:"argv,omitempty"`
	AgeMS   int64    `json:"age_ms"`
	RSS     int64    `json:"rss_bytes"`
}

// Reaped is a process that ran on when its turn was finished, and was ended with it.
type Reaped struct {
	PID     int    `json:"pid"`
	Process string `json:"process,omitempty"` // the launch it descends from
	Comm    string `json:"comm"`
	AgeMS   int64  `json:"age_ms"`
	// Verdict is gone when it was seen to have ended; owned when it survives;
	// unverifiable when nobody has seen its end.
	Verdict  Verdict  `json:"verdict"`
	Evidence []string `json:"evidence"` // where it was seen, and by what its end
}

// Outside is something seen that belongs to the turn's story but is not in
// its cgroup. It is reported; only what Ended says was ended.
type Outside struct {
	PID      int    `json:"pid"`
	Process  string `json:"process,omitempty"` // set when it was launched by us
	Comm     string `json:"comm,omitempty"`
	Cgroup   string `json:"cgroup"`
	Evidence string `json:"evidence"`
	Ended    bool   `json:"ended"`
	// Verdict is foreign for what was left alone: that it descends from the turn
	// does not prove that it is the turn's still. Gone: it was ended.
	Verdict Verdict `json:"verdict,omitempty"`
}

// Usage is what the turn used, as far as the host's controllers tell; -1 means
// that the host does not say.
type Usage struct {
	CPUUsec       int64 `json:"cpu_usec"`
	UserUsec      int64 `json:"user_usec"`
	SystemUsec    int64 `json:"system_usec"`
	MemoryPeak    int64 `json:"memory_peak_bytes"`
	PIDsPeak      int64 `json:"pids_peak"`
	OOMKills      int64 `json:"oom_kills"`
	OOMGroupKills int64 `json:"oom_group_kills"`
	IOReadBytes   int64 `json:"io_read_bytes"`
	IOWriteBytes  int64 `json:"io_write_bytes"`
}

// NoUsage is a Usage that says nothing.
func NoUsage() Usage { return Usage{-1, -1, -1, -1, -1, -1, -1, -1, -1} }

// Receipt is the account of an ending: what was asked, by whom, on what
// evidence, what was signalled and what was seen afterwards.
type Receipt struct {
	Turn   string `json:"turn"`
	Epoch  int64  `json:"epoch"`
	Owner  uint32 `json:"owner"` // uid
	Label  string `json:"label,omitempty"`
	State  State  `json:"state"`
	Reason Reason `json:"reason"`
	Actor  Actor  `json:"actor"`
	Grade  Grade  `json:"grade"`
	// Mechanism is how it was ended: cgroup.kill; cgroup.kill+members when
	// one write was not enough; freeze+members where there is no cgroup.kill;
	// none when nothing had to be ended. Without a cgroup: walk, by the service
	// below the turn's keeper; keeper, by the keeper of its own children; kill -1,
	// in the turn's PID namespace; init, by killing the init of that; handles, of
	// launched processes and what is below them; or several, joined by a plus.
	Mechanism string `json:"mechanism"`

	AskedAt     time.Time  `json:"asked_at"`
	FencedAt    *time.Time `json:"fenced_at,omitempty"`
	TermAt      *time.Time `json:"term_at,omitempty"`
	KilledAt    *time.Time `json:"killed_at,omitempty"`
	SeenEmptyAt *time.Time `json:"seen_empty_at,omitempty"`
	// LeftoversEndedAt is set when leftovers that were kept have gone or were
	// ended.
	LeftoversEndedAt *time.Time `json:"leftovers_ended_at,omitempty"`
	GraceMS          int64      `json:"grace_ms"`
	Rounds           int        `json:"rounds"` // of the kill loop

	Complete  bool             `json:"complete"`
	Counts    Counts           `json:"counts"`
	Processes []ReceiptProcess `json:"processes"`
	Leftovers []Leftover       `json:"leftovers"`
	// Reaped are those that ran on when the turn was finished, and were ended, since
	// it reaps its leftovers; what was launched is among Processes. 64 at most.
	Reaped []Reaped `json:"reaped,omitempty"`
	// ServedBy are processes of the turn that were connected to a daemon outside it:
	// what that did for them is not contained. They are those that were seen while the
	// grace lasted, or that a finished turn left running; 64 at most. Nobody looks
	// where there was no grace, or not enough.
	ServedBy []Served `json:"served_by,omitempty"`
	// Jobs are those of the turn, as they were when it ended.
	Jobs      []Job      `json:"jobs,omitempty"`
	Outside   []Outside  `json:"outside"`
	Survivors []Survivor `json:"survivors"`
	// Refused are processes that were looked at and not signalled, since nothing
	// proved them the turn's.
	Refused []Refused `json:"refused,omitempty"`
	// Unconfirmed says why it cannot be told whether all has ended. Complete is
	// false then; the grades without a cgroup know such endings.
	Unconfirmed string `json:"unconfirmed,omitempty"`
	Usage       Usage  `json:"usage"`
	// Notes say in words what could not be done or seen.
	Notes []string `json:"notes,omitempty"`
}

// ReceiptList answers GET /v1/receipts, newest first.
type ReceiptList struct {
	Receipts []Receipt `json:"receipts"`
	Grade    Grade     `json:"grade"` // what new turns get
}
