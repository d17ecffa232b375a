package containment

import (
	"encoding/json"
	"fmt"
	"syscall"
	"time"

	"pinfold.dev/api"
)

// meta is what the service wants to know of a launch after a restart. It goes
// to the keeper with the launch and comes back with the process.
type meta struct {
	Labels   map[string]string        `json:"labels,omitempty"`
	Stop     syscall.Signal           `json:"stop,omitempty"`
	Key      string                   `json:"key,omitempty"`
	Hash     string                   `json:"hash,omitempty"` // of the request
	Kept     map[api.StreamName]int64 `json:"kept,omitempty"` // bytes kept of each stream
	Stdin    api.StdioMode            `json:"stdin,omitempty"`
	Terminal bool                     `json:"terminal,omitempty"`
	// Deadline is on the host's monotonic clock, which no clock setter moves;
	// DeadlineAt is the same for people.
	Deadline   time.Duration `json:"deadline_ns,omitempty"`
	DeadlineAt *time.Time    `json:"deadline_at,omitempty"`
	// Stood is how long the turn had been frozen before.
	Stood time.Duration `json:"stood_ns,omitempty"`
}

// begin sets the deadline, from now on the monotonic clock, in a turn that has
// been frozen for so long.
func (mt *meta) begin(now, stood time.Duration, deadlineMS int64) {
	if deadlineMS == 0 {
		return
	}
	d := time.Duration(deadlineMS) * time.Millisecond
	at := time.Now().Add(d).UTC().Round(0)
	mt.Deadline, mt.DeadlineAt, mt.Stood = now+d, &at, stood
}

func (mt *meta) encode() (string, error) {
	b, err := json.Marshal(mt)
	if err != nil {
		return "", fmt.Errorf("encode launch: %w", err)
	}
	return string(b), nil
}

// decodeMeta reads what came back. Of another version's, labels and the like
// are lost, no more.
func decodeMeta(s string) (mt meta) {
	_ = json.Unmarshal([]byte(s), &mt)
	return mt
}

// newProcess makes a process of a launch; the lock is held.
func (t *turn) newProcess(k Recovered, mt meta) *process {
	text, raw := shown(k.Argv)
	p := &process{meta: mt, view: api.Process{ID: k.Started.Process, Turn: t.id, PID: k.Started.PID,
		Argv: text, ArgvB64: raw, Cwd: k.Cwd, UID: k.UID, Labels: mt.Labels, Status: api.Status{State: api.ProcessRunning},
		StartedAt: k.Started.At.UTC(), Identity: k.Started.Identity, Grade: t.view.Grade, Placement: k.Started.Placement,
		Stdin: mt.Stdin, Terminal: mt.Terminal, Deadline: mt.DeadlineAt}}
	if len(mt.Kept) > 0 {
		p.view.Output = make(map[api.StreamName]api.StreamStatus, len(mt.Kept))
		for name, most := range mt.Kept {
			p.view.Output[name] = api.StreamStatus{MaxBytes: most}
		}
	}
	if k.Exit != nil {
		p.end(*k.Exit)
	}
	return p
}

// ownMeta is that of processes of which the keeper knows nothing; the lock is held.
func (t *turn) ownMeta() map[string]string {
	var out map[string]string
	for _, p := range t.procs {
		if !p.view.InPlace && p.view.Adopted == nil || p.view.Status.State != api.ProcessRunning && p.meta.Key == "" {
			continue
		}
		if text, err := p.meta.encode(); err == nil && text != "{}" {
			if out == nil {
				out = map[string]string{}
			}
			out[p.view.ID] = text
		}
	}
	return out
}
