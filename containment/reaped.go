package containment

import (
	"fmt"
	"slices"

	"pinfold.dev/api"
)

// reapedMost bounds the list: it goes into a receipt.
const reapedMost = 64

// reaps enters those of members that an ending is about to end, launched processes
// apart, which have a row of their own.
func (t *turn) reaps(r *api.Receipt, members []api.Member) {
	t.mu.Lock()
	defer t.mu.Unlock()
	members = slices.DeleteFunc(slices.Clone(members), func(m api.Member) bool {
		return slices.ContainsFunc(t.procs, func(p *process) bool { return p.view.PID == m.PID && p.view.Status.State == api.ProcessRunning })
	})
	if more := len(members) - reapedMost; more > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("%d more than are named were reaped", more))
		members = members[:reapedMost]
	}
	for _, m := range members {
		where := "seen below the turn's keeper"
		if r.Grade.AtLeast(api.GradeCgroup) {
			where = "listed in the turn's cgroup, in " + m.Cgroup
		}
		r.Reaped = append(r.Reaped, api.Reaped{PID: m.PID, Process: m.Process, Comm: m.Comm, AgeMS: m.AgeMS,
			Evidence: []string{where + ", when it was finished"}})
	}
}

// settleReaped says what became of those that were reaped; empty tells that the turn
// was seen empty.
func settleReaped(r *api.Receipt, empty bool) {
	r.Reaped = slices.Clone(r.Reaped)
	for i, one := range r.Reaped {
		v, why := api.VerdictUnverifiable, "nobody has seen its end"
		switch {
		case slices.ContainsFunc(r.Survivors, func(s api.Survivor) bool { return s.PID == one.PID }):
			v, why = api.VerdictOwned, "it could not be ended"
		case empty:
			v, why = api.VerdictGone, seenEmpty(r.Grade)
		}
		r.Reaped[i].Verdict, r.Reaped[i].Evidence = v, append(slices.Clone(one.Evidence[:min(1, len(one.Evidence))]), why)
	}
}
