package containment

import "pinfold.dev/api"

// still is what was seen of a process that nobody had seen end, in a turn that
// nobody holds any more.
type still struct {
	verdict api.Verdict
	says    string
}

// stillThere looks at those: what holds a turn may go without them, as a keeper does
// without who was adopted. Nothing is sent to anybody.
func (m *Manager) stillThere(t *turn) map[string]still {
	t.mu.Lock()
	var all []api.Process
	for _, p := range t.procs {
		if p.view.Status.State == api.ProcessRunning && t.found.Verdict != OtherBoot {
			all = append(all, p.view)
		}
	}
	t.mu.Unlock()
	out := map[string]still{}
	for _, v := range all {
		id := v.Identity
		if v.Adopted != nil {
			id.CgroupID = 0 // it was moved, or is in none of the turn's
		}
		_, stop, verdict, err := m.cfg.Host.Watch(Client{FD: -1, Recorded: id}, func() {})
		if stop != nil {
			stop()
		}
		s := still{verdict: verdict, says: "it lives, and is that process: nobody holds it any more"}
		if err != nil {
			s.says = err.Error()
		}
		proved := v.Adopted == nil && t.facts.GoneIsProof() && verdict != api.VerdictOwned
		if verdict != api.VerdictGone && !proved {
			out[v.ID] = s
		}
	}
	return out
}

// tellStill enters them: what lives is a survivor, and none of them is gone.
func tellStill(r *api.Receipt, all map[string]still) {
	for i := range r.Processes {
		p := &r.Processes[i]
		s, ok := all[p.ID]
		if !ok {
			continue
		}
		p.Verdict, p.EndedBy = s.verdict, "nobody"
		p.Evidence = append(p.Evidence, s.says, "so nothing was sent to it")
		comm := ""
		if len(p.Argv) > 0 {
			comm = p.Argv[0]
		}
		if s.verdict == api.VerdictOwned {
			r.Survivors = append(r.Survivors, api.Survivor{PID: p.PID, Comm: comm, State: "?"})
		} else {
			r.Refused = append(r.Refused, api.Refused{PID: p.PID, Process: p.ID, Verdict: s.verdict, Evidence: []string{s.says}})
		}
	}
	countRefused(r)
	r.Counts.Survivors = len(r.Survivors)
}

// facts are those of a record, with whom else the turn may have.
func (r *Record) facts() Facts {
	f := r.Facts
	for _, v := range r.Turn.Processes {
		if v.Adopted != nil && v.Status.State == api.ProcessRunning {
			id := v.Identity
			id.CgroupID = 0 // see stillThere
			f.Adopted = append(f.Adopted, id)
		}
	}
	return f
}
