package containment

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"pinfold.dev/api"
)

// What is told here is told again by a service that finds the turn again; the
// keys see to it that readers see each once. Of the hold of a job, what is told of
// the job says all. The lock is held in all of these.

// once is the key of what happens once in a turn.
const once = "turn"

// survivorsWent begins the note of a receipt that was unkillable before.
const survivorsWent = "the survivors went "

func (t *turn) ofJob() bool { return t.view.Kind == api.KindJob }

func (t *turn) tellBegun() {
	if !t.ofJob() {
		t.tell(api.EventBegun, once, func(e *api.Event) { e.At, e.Message = t.view.CreatedAt, t.view.Label })
	}
	if len(t.facts.Degraded) > 0 {
		t.tell(api.EventDegraded, once, func(e *api.Event) { e.Message = strings.Join(t.facts.Degraded, "; ") })
	}
}

// tellProcess tells of a process that came to run, and of its end.
func (t *turn) tellProcess(p *process) {
	kind := api.EventLaunch
	if p.view.Adopted != nil {
		kind = api.EventAdopted
	}
	if !t.ofJob() && !p.joining {
		t.tell(kind, p.view.ID, func(e *api.Event) {
			e.At, e.Process, e.Message = p.view.StartedAt, p.view.ID, brief(strings.Join(p.view.Argv, " "))
		})
	}
	t.tellExit(p)
}

// brief is the beginning of what somebody else has chosen.
func brief(s string) string {
	const most = 200
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// tellExit tells of the end of a process, if that is known and was not told.
func (t *turn) tellExit(p *process) {
	if p.told || p.joining || p.view.Status.State == api.ProcessRunning {
		return
	}
	p.told = true
	with := func(e *api.Event) {
		st := p.view.Status
		e.Process, e.Status = p.view.ID, &st
		if p.view.EndedAt != nil {
			e.At = *p.view.EndedAt
		}
	}
	if p.view.Status.State == api.ProcessOOM {
		t.tell(api.EventOOM, p.view.ID, with)
	}
	if !t.ofJob() {
		t.tell(api.EventExit, p.view.ID, with)
	}
}

func (t *turn) tellEnding() {
	if e := t.ending; e != nil && !t.ofJob() {
		t.tell(api.EventEnding, strconv.FormatInt(e.AskedAt.UnixNano(), 10), func(v *api.Event) { v.At, v.Reason = e.AskedAt, e.Reason })
	}
}

func (t *turn) tellJobEnded(j *job) {
	t.tell(api.EventJob, j.Process+"/ended", func(e *api.Event) {
		e.Job, e.Process, e.Message, e.Reason, e.Stopped = jobID(t.id, j.Process), j.Process, "ended", j.Reason, false
		if p := t.byID[j.Process]; p != nil {
			st := p.view.Status
			e.Status = &st
		}
	})
}

// tellReceipt tells what the receipt says, as it is stored.
func (t *turn) tellReceipt() {
	r := t.receipt
	if r == nil {
		return
	}
	for _, p := range t.procs {
		t.tellExit(p)
	}
	why := func(message string) func(*api.Event) {
		return func(e *api.Event) { e.Reason, e.Message = r.Reason, message }
	}
	oom := func(p *process) bool { return p.view.Status.State == api.ProcessOOM }
	if n := max(r.Usage.OOMKills, r.Usage.OOMGroupKills); n > 0 && !slices.ContainsFunc(t.procs, oom) {
		t.tell(api.EventOOM, once, why(fmt.Sprintf("%d processes were ended for want of memory", n)))
	}
	if n := len(r.Outside); n > 0 {
		t.tell(api.EventOutside, strconv.Itoa(n), why(names(n, "outside the turn's cgroup", func(i int) string {
			return fmt.Sprintf("%s (%d)", r.Outside[i].Comm, r.Outside[i].PID)
		})))
	}
	if n := len(r.Leftovers); n > 0 && !t.ofJob() {
		t.tell(api.EventLeftover, "kept", why(names(n, "kept", func(i int) string {
			return fmt.Sprintf("%s (%d)", r.Leftovers[i].Comm, r.Leftovers[i].PID)
		})))
	}
	if r.State == api.StateUnkillable {
		t.tell(api.EventUnkillable, once, why(names(len(r.Survivors), "cannot be ended", func(i int) string {
			return fmt.Sprintf("%s (%d, %s)", r.Survivors[i].Comm, r.Survivors[i].PID, r.Survivors[i].State)
		})))
	}
	if r.State.Terminal() {
		if i := slices.IndexFunc(r.Notes, func(n string) bool { return strings.HasPrefix(n, survivorsWent) }); i >= 0 {
			t.tell(api.EventResolved, once, why(r.Notes[i]))
		}
		if !t.ofJob() {
			t.tell(api.EventEnded, once, why(""))
		}
	}
	if r.LeftoversEndedAt != nil && !t.ofJob() {
		t.tell(api.EventLeftover, "gone", func(e *api.Event) { e.At, e.Message = *r.LeftoversEndedAt, "all that was kept has gone" })
	}
}

// names tells how many there are, and the first of them by name.
func names(n int, what string, name func(int) string) string {
	const shown = 5
	var some []string
	for i := range min(n, shown) {
		some = append(some, brief(name(i)))
	}
	if n > shown {
		some = append(some, "…")
	}
	if n == 1 {
		return "1 process " + what + ": " + some[0]
	}
	return fmt.Sprintf("%d processes %s: %s", n, what, strings.Join(some, ", "))
}

// toldAll waits until what was told of a turn outlives the service, before its
// record goes: nobody would tell it again. It does not wait long.
func (m *Manager) toldAll(t *turn) {
	ctx, cancel := context.WithTimeout(context.Background(), tidyTime)
	defer cancel()
	if err := m.cfg.Events.Flush(ctx); err != nil {
		m.log.Warn("a turn goes to the history, and what was told of it is not on disk", "turn", t.id, "error", err)
	}
}

// toldNoMore is for a turn that is in the history.
func (m *Manager) toldNoMore(t *turn) {
	t.mu.Lock()
	t.events = nil
	t.mu.Unlock()
	m.cfg.Events.Forget(t.id)
}
