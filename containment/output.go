package containment

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"time"

	"pinfold.dev/api"
)

// Reading is one reader of a kept stream.
type Reading interface {
	Output
	// Await waits until the stream has had more than total bytes. Over tells
	// that it will not: it is closed, its writer is gone, or, with drain at
	// least 0, its process ended that long ago. The error is ctx's.
	Await(ctx context.Context, total int64, drain time.Duration) (over bool, err error)
	// Exit is how the process ended; nil while it runs.
	Exit() *api.Status
	// Grade is the turn's.
	Grade() api.Grade
}

type reading struct {
	Output
	turn  *turn // nil: it is over, and out of memory
	proc  string
	exit  *api.Status // of a process of a turn that is out of memory
	grade api.Grade
}

// Output opens a kept stream of a process for reading.
func (m *Manager) Output(ctx context.Context, id, proc string, s api.StreamName) (Reading, error) {
	if s != api.StreamStdout && s != api.StreamStderr {
		return nil, api.Errorf(api.CodeBadRequest, "there is no stream %q: name stdout or stderr", s)
	}
	v, t, err := m.look(id, proc)
	if err != nil {
		return nil, err
	}
	if _, ok := v.Output[s]; !ok {
		return nil, api.Errorf(api.CodeNotFound, "%s of process %s in turn %s is not kept", s, proc, id).
			WithRemedy("launch with mode spool or pty; a terminal's output is stdout")
	}
	out, err := m.cfg.Outputs.Open(id, proc, s)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, api.Errorf(api.CodeNotFound, "%s of process %s in turn %s is not kept any more", s, proc, id).
			WithRemedy("read it before it is acknowledged, and within the service's --output-retention")
	case err != nil:
		return nil, api.Errorf(api.CodeInternal, "open %s of process %s in turn %s: %v", s, proc, id, err)
	}
	r := &reading{Output: out, turn: t, proc: proc, grade: v.Grade}
	if t == nil {
		r.exit = &v.Status
	}
	return r, nil
}

// look finds a process, in memory or in the history; the turn is nil then.
func (m *Manager) look(id, proc string) (api.Process, *turn, error) {
	t, ok := m.live(id)
	if !ok {
		v, err := m.endedProcess(id, proc)
		return v, nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.byID[proc]; p != nil {
		return p.view, t, nil
	}
	return api.Process{}, t, t.noProcess(proc)
}

func (r *reading) Grade() api.Grade { return r.grade }

func (r *reading) Exit() *api.Status {
	if r.turn == nil {
		return r.exit
	}
	r.turn.mu.Lock()
	defer r.turn.mu.Unlock()
	p := r.turn.byID[r.proc]
	if p == nil || p.view.Status.State == api.ProcessRunning {
		return nil
	}
	st := p.view.Status
	return &st
}

// errOver ends a wait for output that cannot come any more.
var errOver = errors.New("nothing more will come")

func (r *reading) Await(ctx context.Context, total int64, drain time.Duration) (over bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if r.turn == nil {
		return true, nil
	}
	go func() {
		if r.turn.awaitSilence(ctx, r.proc, drain) {
			cancel(errOver)
		}
	}()
	err = r.Wait(ctx, total)
	switch {
	case errors.Is(context.Cause(ctx), errOver):
		return true, nil
	case err != nil:
		return false, err
	}
	st, closed, err := r.Status()
	return closed && st.BytesTotal <= total, err
}

// awaitSilence waits until a process's streams have no writer any more, as far
// as the turn can tell, or the process's drain is over; false: ctx was first.
func (t *turn) awaitSilence(ctx context.Context, proc string, drain time.Duration) bool {
	for {
		t.mu.Lock()
		p, changed := t.byID[proc], t.changed
		silent := p == nil || t.hold == nil || t.lost != ""
		var left <-chan time.Time
		if !silent && drain >= 0 && p.view.EndedAt != nil {
			d := time.Until(p.view.EndedAt.Add(drain))
			silent = d <= 0
			left = time.After(d)
		}
		t.mu.Unlock()
		if silent {
			return true
		}
		select {
		case <-changed:
		case <-left:
		case <-ctx.Done():
			return false
		}
	}
}

// Drain waits until the kept streams of a process that has ended have ended,
// too, or d is over, and returns the process as it is then.
func (m *Manager) Drain(ctx context.Context, id, proc string, d time.Duration) (api.Process, error) {
	v, t, err := m.look(id, proc)
	if err != nil {
		return v, err
	}
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	for name := range v.Output {
		if t == nil {
			break
		}
		r, err := m.Output(ctx, id, proc, name)
		if err != nil {
			continue // not kept any more
		}
		for over := false; !over && err == nil; {
			var st api.StreamStatus
			if st, over, err = r.Status(); err == nil && !over {
				over, err = r.Await(ctx, st.BytesTotal, -1)
			}
		}
		r.Close()
	}
	return m.Process(context.WithoutCancel(ctx), id, proc)
}

// Acknowledge says that the exit and the output of a process were taken: the
// output is removed.
func (m *Manager) Acknowledge(ctx context.Context, id, proc string) (api.Process, error) {
	v, t, err := m.look(id, proc)
	if err != nil {
		return v, err
	}
	if v.Status.State == api.ProcessRunning {
		return v, api.Errorf(api.CodeBadRequest, "process %s of turn %s is running", proc, id).
			WithRemedy("acknowledge it when it has ended: GET …/wait")
	}
	v = m.withOutput(v)
	v.Acknowledged = true
	if t != nil {
		t.mu.Lock()
		if p := t.byID[proc]; p != nil {
			p.view.Acknowledged, p.view.Output = true, v.Output
		}
		t.mu.Unlock()
	}
	if err := m.cfg.Outputs.Remove(id, proc); err != nil {
		return v, api.Errorf(api.CodeInternal, "remove the output of process %s in turn %s: %v", proc, id, err)
	}
	return v, nil
}

// withOutput tells how far a process's kept streams are. What cannot be read
// stays as it was known, and says so.
func (m *Manager) withOutput(v api.Process) api.Process {
	if len(v.Output) == 0 || v.Acknowledged {
		return v
	}
	v.Output = maps.Clone(v.Output)
	for name, st := range v.Output {
		if st.EOF {
			continue
		}
		now, err := m.outputStatus(v.Turn, v.ID, name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			st.Error = "not kept any more"
		case err != nil:
			st.Error = "cannot be read: " + err.Error()
		default:
			st = now
		}
		v.Output[name] = st
	}
	return v
}

func (m *Manager) outputStatus(id, proc string, name api.StreamName) (api.StreamStatus, error) {
	out, err := m.cfg.Outputs.Open(id, proc, name)
	if err != nil {
		return api.StreamStatus{}, err
	}
	defer out.Close()
	st, _, err := out.Status()
	return st, err
}

// keeps tells whether output of a process is kept.
func (t *turn) keeps(process string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.byID[process]
	return p != nil && len(p.view.Output) > 0
}

// noteOutputs remembers how far kept streams are, for when they are not any
// more.
func (m *Manager) noteOutputs(t *turn) (any bool) {
	t.mu.Lock()
	views := t.snapshot().Processes
	t.mu.Unlock()
	for _, v := range views {
		if len(v.Output) == 0 {
			continue
		}
		any = true
		v = m.withOutput(v)
		t.mu.Lock()
		if p := t.byID[v.ID]; p != nil && !p.view.Acknowledged {
			p.view.Output = v.Output
		}
		t.mu.Unlock()
	}
	return any
}
