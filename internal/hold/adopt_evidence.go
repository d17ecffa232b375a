package hold

import (
	"fmt"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/containment"
	"pinfold.dev/pidfd"
)

// unproved looks once more at launches of whose end nobody has told and that nobody
// holds: those that their keeper had written down and that could not be opened, or
// verified, when it was gone. What is in the turn's cgroup has ended with that; one
// that is proved to live elsewhere is ended by its handle, and one that is not
// proved is told, and left alone.
func (x *hold) unproved(deadline time.Time, out *containment.Killed) {
	for id, rec := range x.unheldRecords() {
		h, v, why := pidfd.OpenVerified(rec)
		switch v {
		case api.VerdictOwned:
			if err := x.vouched(h); err != nil {
				out.Refused = append(out.Refused, api.Refused{PID: rec.PID, Process: id, Comm: comm(rec.PID), Verdict: api.VerdictUnverifiable,
					Evidence: append(why, "only its keeper's journal names it, and that it is the turn's is not proved: "+err.Error())})
			} else {
				x.endEscaped(id, h, x.work.Path(), deadline, out)
			}
			_ = h.Close()
		case api.VerdictGone:
			if out.Evidence == nil {
				out.Evidence = map[string][]string{}
			}
			out.Evidence[id] = why
		default:
			out.Refused = append(out.Refused, api.Refused{PID: rec.PID, Process: id, Comm: comm(rec.PID), Verdict: v,
				Evidence: append(why, fmt.Sprintf("recorded as process %d, start tick %d, pidfs inode %d", rec.PID, rec.StartTicks, rec.Ino))})
		}
	}
}

func (x *hold) unheldRecords() map[string]api.Identity {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := map[string]api.Identity{}
	for id, p := range x.procs {
		if p.handle == nil && p.exit == nil && p.started.PID > 1 && x.jobs.of[id] == nil {
			rec := x.started(p.started).Identity
			rec.CgroupID = 0 // that one is empty by now
			out[id] = rec
		}
	}
	return out
}
