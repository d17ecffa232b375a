package fallback

import (
	"errors"
	"fmt"
	"syscall"

	"pinfold.dev/api"
	"pinfold.dev/pidfd"
)

// RecordGroup records the members of a group whose leader is proven, as
// witnesses for the time when the leader is gone: each was held, and seen in the
// group, before the leader was seen to be there still.
func (h *Host) RecordGroup(leader *Process) (GroupRecord, error) {
	rec := GroupRecord{Leader: leader.rec}
	pgid := leader.rec.PID
	seen, v, why := leader.look()
	if v != api.VerdictOwned || seen.Group != pgid {
		return rec, fmt.Errorf("record group %d: its leader is %s, and in group %d: %v", pgid, v, seen.Group, why)
	}
	pids, err := h.k.members(pgid)
	if err != nil {
		return rec, fmt.Errorf("record group %d: %w", pgid, err)
	}
	for _, pid := range pids {
		r, err := h.k.open(pid)
		if err != nil || pid == pgid {
			if err == nil {
				_ = r.close()
			}
			continue
		}
		s, err := r.read()
		if err == nil && s.Group == pgid && r.life() == pidfd.Alive {
			rec.Witnesses = append(rec.Witnesses, s.Identity)
		}
		_ = r.close()
	}
	if _, v, why := leader.look(); v != api.VerdictOwned {
		return GroupRecord{Leader: leader.rec}, fmt.Errorf("record group %d: its leader went meanwhile: %s, %v", pgid, v, why)
	}
	return rec, nil
}

// SignalGroup signals a recorded group, if it is proven to be that one. A handle
// of the leader, if there is one, names it exactly from Linux 6.9 on, also when
// the leader has been reaped. Otherwise the leader has to be owned and in it, or a
// recorded witness has to be; the kernel hands a number out again only when no
// group has it. Then its members are signalled, each held and verified, the one
// who proves it last. How old a member is proves nothing.
func (h *Host) SignalGroup(rec GroupRecord, leader *pidfd.Handle, sig syscall.Signal) GroupResult {
	pgid := rec.Leader.PID
	if err := pidfd.RefuseGroup(pgid, h.k.ownGroup()); err != nil {
		return GroupResult{Verdict: api.VerdictUnverifiable, Evidence: []string{err.Error()}}
	}
	if v, why := pidfd.NumberMeans(rec.Leader, h.k.here()); v != "" {
		return GroupResult{Verdict: v, Evidence: why}
	}
	if leader != nil {
		if res, done := byLeader(rec, leader, sig); done {
			return res
		}
	}
	done := map[api.Identity]bool{}
	var all GroupResult
	for range len(rec.Witnesses) + 1 { // an anchor may go meanwhile
		anchor, res := h.anchor(rec)
		all.Evidence = append(all.Evidence, res.Evidence...)
		if all.Verdict != api.VerdictOwned {
			all.Verdict = res.Verdict
		}
		if anchor == nil {
			return all
		}
		lost := h.signalMembers(anchor, pgid, sig, &all, done)
		_ = anchor.Close()
		if !lost {
			return all
		}
	}
	return all
}

// byLeader has the kernel signal the group that a handle names.
func byLeader(rec GroupRecord, leader *pidfd.Handle, sig syscall.Signal) (GroupResult, bool) {
	v, why := leader.Verify(rec.Leader)
	if v == api.VerdictForeign {
		return GroupResult{Verdict: v, Evidence: append(why, "the handle is not the leader's")}, true
	}
	if v == api.VerdictUnverifiable {
		return GroupResult{}, false
	}
	err := leader.SignalGroup(sig)
	switch {
	case err == nil:
		return GroupResult{Verdict: api.VerdictOwned, Evidence: append(why, "signalled by the leader's handle, which names the group")}, true
	case errors.Is(err, pidfd.ErrGone):
		return GroupResult{Verdict: api.VerdictGone, Evidence: append(why, "the group has no member (ESRCH)")}, true
	case errors.Is(err, errors.ErrUnsupported):
		return GroupResult{}, false
	}
	return GroupResult{Verdict: api.VerdictUnverifiable, Evidence: append(why, err.Error())}, true
}

// anchor finds a recorded process that is in the group now: while it is, the
// number means that group.
func (h *Host) anchor(rec GroupRecord) (*Process, GroupResult) {
	res := GroupResult{Verdict: api.VerdictUnverifiable}
	for i, id := range append([]api.Identity{rec.Leader}, rec.Witnesses...) {
		who := "witness"
		if i == 0 {
			who = "leader"
		}
		p, v, why := h.Recall(id)
		res.Evidence = append(res.Evidence, fmt.Sprintf("%s %d: %s (%v)", who, id.PID, v, why))
		if i == 0 && v == api.VerdictForeign {
			res.Verdict = v // the number was free in between: the group had gone
			return nil, res
		}
		if p == nil {
			continue
		}
		if seen, v, _ := p.look(); v == api.VerdictOwned && seen.Group == rec.Leader.PID {
			res.Verdict = api.VerdictOwned
			return p, res
		}
		res.Evidence = append(res.Evidence, fmt.Sprintf("%s %d is not in the group any more", who, id.PID))
		_ = p.Close()
	}
	empty, err := h.k.groupEmpty(rec.Leader.PID)
	switch {
	case err != nil:
		res.Evidence = append(res.Evidence, err.Error())
	case empty:
		res.Verdict = api.VerdictGone
		res.Evidence = append(res.Evidence, "the group has no member (ESRCH)")
	default:
		res.Evidence = append(res.Evidence, "the group has members, and none of those recorded is among them")
	}
	return nil, res
}

// signalMembers signals the members until no new one is found, and then the
// anchor. A member counts only if the anchor was in the group after the reading.
// Lost: the anchor left the group meanwhile.
func (h *Host) signalMembers(anchor *Process, pgid int, sig syscall.Signal, res *GroupResult, done map[api.Identity]bool) (lost bool) {
	for fresh, n := true, 0; fresh && n < 20; n++ {
		pids, err := h.k.members(pgid)
		if err != nil {
			res.Evidence = append(res.Evidence, err.Error())
			break
		}
		fresh = false
		for _, pid := range pids {
			if pid == anchor.rec.PID {
				continue
			}
			f, ok := h.signalMember(anchor, pid, pgid, sig, done)
			if lost = ok && f.Verdict == ""; lost {
				return true
			}
			if ok {
				res.Members = append(res.Members, f)
				fresh = fresh || f.Verdict == api.VerdictOwned
			}
		}
	}
	if done[anchor.rec] {
		return false
	}
	done[anchor.rec] = true
	if a, v, _ := anchor.look(); v == api.VerdictOwned && a.Group == pgid {
		res.Members = append(res.Members, signalled(anchor, a.Comm, sig))
	}
	return false
}

// signalMember signals one process if it is a member; ok is false for one that
// is gone, is none, or was signalled before. No verdict: the anchor has left the
// group.
func (h *Host) signalMember(anchor *Process, pid, pgid int, sig syscall.Signal, done map[api.Identity]bool) (f Finding, ok bool) {
	refuse := func(v api.Verdict, why string) (Finding, bool) {
		id := api.Identity{PID: pid}
		defer func() { done[id] = true }()
		return Finding{Identity: id, Verdict: v, Evidence: []string{why}}, !done[id]
	}
	p, err := h.Hold(pid)
	if errors.Is(err, pidfd.ErrGone) {
		return f, false
	}
	if err != nil {
		return refuse(api.VerdictUnverifiable, err.Error())
	}
	defer p.Close()
	seen, v, why := p.look()
	if v == api.VerdictGone || done[p.rec] {
		return f, false
	}
	if v != api.VerdictOwned || seen.Group == 0 {
		return refuse(api.VerdictUnverifiable, fmt.Sprintf("its group cannot be read: %v", why))
	}
	if seen.Group != pgid {
		return f, false
	}
	if a, v, _ := anchor.look(); v != api.VerdictOwned || a.Group != pgid {
		return f, true
	}
	done[p.rec] = true
	return signalled(p, seen.Comm, sig), true
}

// signalled signals one verified member, and tells.
func signalled(p *Process, comm string, sig syscall.Signal) Finding {
	v, why, err := p.Signal(sig)
	f := Finding{Identity: p.rec, Comm: comm, How: p.How(), Verdict: v, Evidence: why}
	if v == api.VerdictOwned && err == nil {
		f.Signals = []syscall.Signal{sig}
	}
	return f
}
