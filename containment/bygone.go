package containment

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"pinfold.dev/api"
)

// What a turn's record notes of itself, and of its receipt.
const (
	bygone        = "its record went with an earlier boot: this is what the log of events tells"
	bygoneReceipt = "its receipt went with an earlier boot, and with it who had asked and what was seen"
)

// Unearth writes records of earlier boots again that went with them, as the runtime
// directory usually does, so that Recover closes their turns as its table says. gone
// are turns that the log of events has not seen the last of, and their boots. One that
// has a record, or is in the history, is left as it is.
func (m *Manager) Unearth(ctx context.Context, gone map[string]string) error {
	found := map[string]*Record{}
	for id, boot := range gone {
		if boot == m.cfg.Boot || m.cfg.Recorded != nil && m.cfg.Recorded(id) {
			continue
		}
		if _, over, err := m.cfg.Records.Ended(id); err != nil {
			return fmt.Errorf("turn %s: %w", id, err)
		} else if !over {
			found[id] = &Record{Schema: RecordSchema, Boot: boot}
		}
	}
	if len(found) == 0 {
		return nil
	}
	if err := m.replay(ctx, found); err != nil {
		return err
	}
	var errs []error
	for id, r := range found {
		if r.Turn.ID == "" { // nothing of it is kept but its name
			continue
		}
		m.findOutputs(r)
		if err := m.cfg.Records.Save(*r); err != nil {
			errs = append(errs, fmt.Errorf("turn %s: %w", id, err))
		}
	}
	return errors.Join(errs...)
}

// replay enters what the log tells of turns.
func (m *Manager) replay(ctx context.Context, found map[string]*Record) error {
	for at := int64(0); ; {
		events, next, err := m.cfg.Events.After(ctx, at, eventPage)
		if err != nil || next == at {
			return err
		}
		for _, e := range events {
			if r := found[e.Turn]; r != nil {
				r.hear(e)
			}
		}
		at = next
	}
}

// findOutputs enters which output of the record's processes is kept.
func (m *Manager) findOutputs(r *Record) {
	for i := range r.Turn.Processes {
		p := &r.Turn.Processes[i]
		p.Output = map[api.StreamName]api.StreamStatus{}
		for _, s := range []api.StreamName{api.StreamStdout, api.StreamStderr} {
			o, err := m.cfg.Outputs.Open(r.Turn.ID, p.ID, s)
			if err != nil {
				continue
			}
			if st, _, err := o.Status(); err == nil {
				p.Output[s] = st
			}
			_ = o.Close()
		}
	}
}

// hear enters what an event tells of the record's turn.
func (r *Record) hear(e api.Event) {
	v := &r.Turn
	if v.ID == "" {
		*v = api.Turn{ID: e.Turn, Owner: e.Owner, CreatedAt: e.At, Leftovers: api.LeftoversKeep, Degraded: []string{bygone}, Processes: []api.Process{}}
		r.Facts = Facts{Cgroup: "/nonexistent/" + e.Turn} // it had begun, and held something
	}
	v.Epoch, v.Session, v.State, v.Grade = e.Epoch, e.Session, e.State, e.Grade
	r.Facts.Grade = e.Grade
	switch e.Kind {
	case api.EventBegun:
		v.Label, v.CreatedAt = e.Message, e.At
	case api.EventLaunch, api.EventAdopted:
		r.process(e).Argv = []string{e.Message}
	case api.EventExit:
		r.exit(e)
	case api.EventJob:
		r.hearJob(e)
	case api.EventEnded:
		at := e.At
		v.Reason, v.EndedAt = e.Reason, &at
		r.Receipt = &api.Receipt{Turn: v.ID, Epoch: v.Epoch, Owner: v.Owner, Label: v.Label, State: v.State, Reason: v.Reason, Grade: v.Grade,
			Mechanism: "none", Actor: api.Actor{Name: "pinfold"}, AskedAt: at, Processes: []api.ReceiptProcess{}, Leftovers: []api.Leftover{}, Outside: []api.Outside{},
			Survivors: []api.Survivor{}, Usage: api.NoUsage(), Notes: []string{bygoneReceipt}}
	}
}

// process is what the record has of the event's process.
func (r *Record) process(e api.Event) *api.Process {
	ps := r.Turn.Processes
	if i := slices.IndexFunc(ps, func(p api.Process) bool { return p.ID == e.Process }); i >= 0 {
		return &ps[i]
	}
	r.Turn.Processes = append(ps, api.Process{ID: e.Process, Turn: e.Turn, Argv: []string{}, UID: e.Owner, StartedAt: e.At, Grade: e.Grade,
		Status: api.Status{State: api.ProcessRunning}})
	return &r.Turn.Processes[len(ps)]
}

func (r *Record) exit(e api.Event) {
	if e.Status != nil {
		p, at := r.process(e), e.At
		p.Status, p.EndedAt = *e.Status, &at
	}
}

// hearJob enters what became of a job.
func (r *Record) hearJob(e api.Event) {
	r.process(e)
	i := slices.IndexFunc(r.Jobs, func(j JobRecord) bool { return j.Process == e.Process })
	if i < 0 {
		i = len(r.Jobs)
		r.Jobs = append(r.Jobs, JobRecord{Process: e.Process, Origin: api.JobPromoted, Session: e.Session, CreatedAt: e.At})
	}
	switch e.Message {
	case "started":
		r.Turn.Kind, r.Jobs[i].Origin = api.KindJob, api.JobStarted
	case "ended":
		at := e.At
		r.Jobs[i].EndedAt, r.Jobs[i].Reason = &at, e.Reason
		r.exit(e)
	}
}
