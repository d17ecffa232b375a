package fallback

import (
	"fmt"
	"slices"

	"pinfold.dev/api"
	"pinfold.dev/pidfd"
)

// account sums an ending up.
func (g *ending) account(dead bool) Result {
	g.drop()
	res := g.res
	res.Outcome = Unconfirmed
	if dead {
		res.Outcome = Dead
		res.Evidence = append(res.Evidence, "the root has no child left that is not spared")
	} else {
		res.Evidence = append(res.Evidence, g.notes...)
	}
	for _, n := range g.past {
		res.Processes = append(res.Processes, n.Finding)
	}
	for _, n := range g.held {
		res.Processes = append(res.Processes, n.Finding)
		if !n.Spared {
			res.Survivors = append(res.Survivors, g.survivor(n))
		}
	}
	for pid, f := range g.refused {
		res.Processes = append(res.Processes, f)
		if f.Verdict == api.VerdictUnverifiable && !dead {
			res.Survivors = append(res.Survivors, api.Survivor{PID: pid, Comm: f.Comm, State: "?"})
		}
	}
	slices.SortFunc(res.Processes, func(a, b Finding) int { return a.Identity.PID - b.Identity.PID })
	slices.SortFunc(res.Survivors, func(a, b api.Survivor) int { return a.PID - b.PID })
	return res
}

// survivor describes a member that was not seen to end.
func (g *ending) survivor(n *node) api.Survivor {
	s := api.Survivor{PID: n.rec.PID, Comm: n.Member.Comm, State: "?"}
	seen, err := n.ref.read()
	if err == nil && seen.State != 0 {
		s.Comm, s.State = seen.Comm, string(seen.State)
	}
	channel := g.k.waitChannel(n.rec.PID)
	if n.ref.life() != pidfd.Reaped {
		s.WaitChannel = channel
	}
	return s
}

// String is an account in one line.
func (r Result) String() string {
	n := map[string]int{}
	for _, f := range r.Processes {
		switch {
		case f.Spared:
			n["spared"]++
		case f.Ended:
			n["ended"]++
		default:
			n[string(f.Verdict)]++
		}
	}
	return fmt.Sprintf("%s after %d rounds: %d ended, %d spared, %d owned and alive, %d foreign, %d unverifiable", r.Outcome, r.Rounds,
		n["ended"], n["spared"], n[string(api.VerdictOwned)], n[string(api.VerdictForeign)], n[string(api.VerdictUnverifiable)])
}
