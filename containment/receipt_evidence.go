package containment

import (
	"fmt"
	"slices"
	"strings"

	"pinfold.dev/api"
)

// explain adds to a row what the process was known by, and what spoke when the turn
// was ended; and it says where nothing proved it any more. The lock is held.
func (t *turn) explain(p *process, rp *api.ReceiptProcess, r *api.Receipt) {
	rp.Evidence = slices.Concat(p.knownBy(), p.spoke, rp.Evidence)
	if p.escaped {
		rp.Evidence = append(rp.Evidence, "it had left the turn's cgroup, and was ended through its handle")
	}
	if rp.Status.State != api.ProcessLost && rp.Status.State != api.ProcessRunning {
		return
	}
	if rp.Status.Why != "" {
		rp.Evidence = append(rp.Evidence, rp.Status.Why)
	}
	if t.found.Verdict == OtherBoot {
		rp.Verdict = api.VerdictForeign
		rp.Evidence = append(rp.Evidence, "recorded in another boot: whatever has its number now is another")
	}
	if strings.HasPrefix(rp.Status.Why, foundAs(api.VerdictForeign)) {
		rp.Verdict, rp.EndedBy = api.VerdictForeign, "nobody"
	}
	runs := rp.Status.State == api.ProcessRunning
	i := slices.IndexFunc(r.Refused, func(o api.Refused) bool { return o.Process == p.view.ID && (runs || o.PID == p.view.PID) })
	if i >= 0 {
		rp.Verdict, rp.EndedBy = r.Refused[i].Verdict, "nobody"
		rp.Evidence = append(rp.Evidence, r.Refused[i].Evidence...)
		rp.Evidence = append(rp.Evidence, "so nothing was sent to it")
	}
}

// knownBy is what a process is known by.
func (p *process) knownBy() []string {
	v := p.view
	var out []string
	switch {
	case v.Adopted != nil:
		out = slices.Clone(v.Adopted.Evidence)
	case v.InPlace:
		out = append(out, "it moved itself in, by the pidfd of its connection")
	case v.Placement == "join":
		out = append(out, "it was seen in the leaf of a launched process, and made a job")
	case v.Placement != "":
		out = append(out, fmt.Sprintf("launched by the turn's keeper (%s)", v.Placement))
	default:
		out = append(out, "launched by the turn's keeper")
	}
	if v.Adopted != nil { // it says so
		return out
	}
	if v.Identity.Ino != 0 {
		out = append(out, fmt.Sprintf("pidfs inode %d", v.Identity.Ino))
	} else if v.Identity.StartTicks != 0 {
		out = append(out, fmt.Sprintf("start tick %d", v.Identity.StartTicks))
	}
	return out
}

// endSeen is by what the end of one was seen that did not get lost. What a keeper that
// has died had told or written, and what its handle told since, are not told apart.
func (p *process) endSeen(keeperless bool) string {
	switch {
	case p.byHandle():
		return "its pidfd told how it ended; its parent reaped it"
	case keeperless:
		return "its keeper, which has died, had told how it ended, or its pidfd told"
	}
	return "its keeper reaped it"
}

// byHandle tells that it is no child of the keeper, which knows nothing of it.
func (p *process) byHandle() bool {
	return p.view.InPlace || p.view.Adopted != nil || p.view.Placement == "join"
}

// seenEmpty is by what a turn was seen to be over.
func seenEmpty(g api.Grade) string {
	if g.AtLeast(api.GradeCgroup) {
		return "its cgroup reads populated 0"
	}
	return "nobody is left below the turn's keeper"
}

// countRefused counts what was not signalled, each once: processes of the list,
// rows of launched ones, and what is outside and was left alone.
func countRefused(r *api.Receipt) {
	r.Counts.Foreign, r.Counts.Unverifiable = 0, 0
	seen := map[int]bool{}
	count := func(pid int, v api.Verdict) {
		if pid > 0 && seen[pid] {
			return
		}
		switch v {
		case api.VerdictForeign:
			r.Counts.Foreign++
		case api.VerdictUnverifiable:
			r.Counts.Unverifiable++
		default:
			return
		}
		seen[pid] = true
	}
	for _, o := range r.Refused {
		count(o.PID, o.Verdict)
	}
	for _, p := range r.Processes {
		count(p.PID, p.Verdict)
	}
	for _, o := range r.Outside {
		if !o.Ended {
			count(o.PID, o.Verdict)
		}
	}
}

// markEvidence notes what spoke for launches that were signalled.
func (t *turn) markEvidence(of map[string][]string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, lines := range of {
		if p := t.byID[id]; p != nil && len(p.spoke) == 0 {
			p.spoke = lines
		}
	}
}
