package containment

import (
	"slices"
	"syscall"
	"time"

	"pinfold.dev/api"
)

// newReceipt begins the account of an ending.
func (t *turn) newReceipt(e EndRequest) api.Receipt {
	t.mu.Lock()
	defer t.mu.Unlock()
	return api.Receipt{Turn: t.id, Epoch: t.view.Epoch, Owner: t.owner, Label: t.view.Label, State: t.view.State,
		Reason: e.Reason, Actor: e.Actor, Grade: t.view.Grade, Mechanism: "none", AskedAt: e.AskedAt, GraceMS: e.GraceMS,
		Processes: []api.ReceiptProcess{}, Leftovers: []api.Leftover{}, Outside: []api.Outside{},
		Survivors: []api.Survivor{}, Usage: api.NoUsage()}
}

// fill enters what became of each launched process, and the counts; the lock
// is held. empty tells that the turn was seen empty.
func (t *turn) fill(r *api.Receipt, empty bool) {
	r.Complete = empty
	r.Processes = make([]api.ReceiptProcess, 0, len(t.procs))
	gone, ours := 0, 0
	for _, p := range t.procs {
		j := t.job(p.view.ID)
		rp := p.account(r, empty, j != nil && j.EndedAt == nil && t.view.Kind != api.KindJob, t.lost != "")
		t.explain(p, &rp, r)
		switch rp.EndedBy {
		case "itself":
			gone++
		case api.EndedByDeadline, api.EndedByStop:
			if at := p.view.EndedAt; at != nil && at.Before(r.AskedAt) {
				gone++
			}
		case "term", "kill":
			ours++
		}
		r.Processes = append(r.Processes, rp)
	}
	r.Counts.AlreadyGone = gone
	r.Jobs = nil
	for _, j := range t.jobs {
		r.Jobs = append(r.Jobs, t.showJob(j))
	}
	settleReaped(r, empty)
	countRefused(r)
	r.Counts.Survivors = len(r.Survivors)
	r.Counts.Ended = max(r.Counts.Ended, ours+len(r.Survivors)) // what was ended where it had gone was not seen
	if r.Survivors == nil {
		r.Survivors = []api.Survivor{}
	}
}

// account is what became of one launched process; job tells that it is one, which
// the ending did not touch, and keeperless that the turn's keeper had died.
func (p *process) account(r *api.Receipt, empty, job, keeperless bool) api.ReceiptProcess {
	v := p.view
	rp := api.ReceiptProcess{ID: v.ID, PID: v.PID, Argv: v.Argv, Status: v.Status, Identity: v.Identity,
		Verdict: api.VerdictGone, Escaped: p.escaped, Adopted: v.Adopted != nil}
	switch {
	case v.Status.State == api.ProcessRunning && job:
		rp.Verdict, rp.EndedBy = api.VerdictOwned, "nobody"
		rp.Evidence = append(rp.Evidence, "it is a job, held in a cgroup beside the turn's work")
	case v.Status.State == api.ProcessRunning && empty:
		p.end(Exit{At: time.Now(), Status: api.Status{State: api.ProcessLost, Why: "it is gone, and nobody has told how it ended"}})
		rp.Status = p.view.Status
		rp.EndedBy = "unknown"
		rp.Evidence = append(rp.Evidence, seenEmpty(r.Grade))
	case v.Status.State == api.ProcessRunning:
		rp.Verdict, rp.EndedBy = api.VerdictOwned, "nobody"
	case v.Status.State == api.ProcessLost:
		rp.EndedBy = "unknown"
	default:
		rp.EndedBy = endedBy(v, r)
		rp.Evidence = append(rp.Evidence, p.endSeen(keeperless))
	}
	return rp
}

// endedBy tells who ended a process, as far as times and signals show.
func endedBy(v api.Process, r *api.Receipt) string {
	switch {
	case v.Status.EndedBy != "":
		return v.Status.EndedBy
	case v.EndedAt == nil || v.EndedAt.Before(r.AskedAt):
		return "itself"
	case r.KilledAt != nil && !v.EndedAt.Before(*r.KilledAt) && v.Status.SignalNumber == int(syscall.SIGKILL):
		return "kill"
	case r.TermAt != nil && !v.EndedAt.Before(*r.TermAt):
		return "term"
	}
	return "itself"
}

// markEscaped notes launches that had left the turn's cgroup.
func (t *turn) markEscaped(ids []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, id := range ids {
		if p := t.byID[id]; p != nil {
			p.escaped = true
		}
	}
}

// mergeHeld enters launches that the keeper knows and we do not: those whose
// answer never reached us. The lock is held.
func (t *turn) mergeHeld() {
	if t.hold == nil {
		return
	}
	for _, k := range t.hold.Processes() {
		if t.byID[k.Started.Process] == nil {
			t.addProcess(t.recovered(k))
		} else if k.Exit != nil {
			t.byID[k.Started.Process].end(*k.Exit)
		}
	}
}

// recovered makes a process of what the keeper or its journal remembers; the
// lock is held.
func (t *turn) recovered(k Recovered) *process { return t.newProcess(k, decodeMeta(k.Meta)) }

// dyingFor is how long one whose main thread has ended may take to end altogether.
const dyingFor = 20 * time.Millisecond

// stillThere are the members, looked at again for a moment where wanted and where one
// has no main thread any more: it may be on the point of ending, or run on in others.
func stillThere(h Hold, members []api.Member, wanted bool) []api.Member {
	dying := func(m api.Member) bool { return m.State == "Z" }
	for end := time.Now().Add(dyingFor); wanted && slices.ContainsFunc(members, dying) && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
		if now, err := h.Members(); err == nil {
			members = now
		}
	}
	return members
}

// leftovers lists what a finished turn leaves running.
func leftovers(members []api.Member) []api.Leftover {
	out := make([]api.Leftover, 0, len(members))
	for _, m := range members {
		out = append(out, api.Leftover{PID: m.PID, Process: m.Process, Comm: m.Comm, AgeMS: m.AgeMS, RSS: m.RSS})
	}
	return out
}

// stamp is now, for a receipt.
func stamp() *time.Time {
	now := time.Now().UTC()
	return &now
}
