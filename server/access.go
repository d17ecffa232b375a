package server

import "pinfold.dev/api"

// Peer is who is at the other end of a connection, as the kernel told it when
// the connection was accepted.
type Peer struct {
	UID, GID uint32
	Groups   []uint32
	PID      int    // 0 when it is not visible in the service's PID namespace
	Ino      uint64 // pidfs inode, Linux >= 6.9; else 0
	Cgroup   string // its 0:: line
	// Known tells that Cgroup was read, and was this process's. Nothing else
	// shows that a peer is not inside a turn.
	Known bool
	Why   string // why it is not Known
	// InTurn is the turn whose cgroup the peer is in; empty for none.
	InTurn string
	// Admin is root, or a member of the admin group.
	Admin bool
}

// action is what a route does, as far as the rules tell actions apart.
type action int

const (
	actLook   action = iota // at the host and at the API: for everybody
	actBegin                // a turn
	actList                 // turns or receipts
	actRead                 // one turn
	actLaunch               // into one turn
	actSignal               // a process of one turn
	actEnd                  // one turn
)

// target is the turn that a request is about.
type target struct {
	id    string
	owner uint32
	found bool
}

// decide is the rule of who may do what; nil allows it.
//
//   - A uid sees and ends its own turns. Another's answers as if there were
//     none. Root and the admin group see and end all.
//   - A peer inside a turn may read that turn and launch into it, whoever it
//     runs as; and signal its processes, if the turn is its uid's. Everything
//     else is refused, also to root: what runs in a turn neither ends it nor
//     reaches another.
//   - A peer of which nobody can say whether it is inside a turn may only look
//     at the host.
func decide(p Peer, a action, t target) *api.Error {
	switch {
	case a == actLook:
		return nil
	case !p.Known:
		return unverifiable(p)
	case p.InTurn != "":
		return decideInside(p, a, t)
	case a == actBegin || a == actList:
		return nil
	case !t.found || (t.owner != p.UID && !p.Admin):
		return noTurn(t.id)
	}
	return nil
}

func decideInside(p Peer, a action, t target) *api.Error {
	mine := t.id != "" && t.id == p.InTurn
	switch {
	case !mine:
	case !t.found:
		return noTurn(t.id)
	case a == actRead, a == actLaunch:
		return nil
	case a == actSignal && (p.UID == 0 || p.UID == t.owner):
		return nil
	}
	e := api.Errorf(api.CodeForbidden, "this process is inside turn %s and may only read it and launch into it", p.InTurn).With("turn", p.InTurn)
	if a == actBegin {
		return e.WithRemedy("what it starts by itself is held there already: start it without pinfold, or with `pinfold run --turn %s`", p.InTurn)
	}
	return e.WithRemedy("ask from outside the turn: whoever began it can")
}

func unverifiable(p Peer) *api.Error {
	return api.Errorf(api.CodePeerUnverifiable, "cannot tell whether process %d is inside a turn: %s", p.PID, p.Why).
		WithRemedy("ask from a process that stays alive and that the service can see in its /proc")
}

// noTurn is the one answer for a turn that there is not and for one that is
// somebody else's.
func noTurn(id string) *api.Error {
	return api.Errorf(api.CodeNotFound, "no turn %q", id).WithRemedy("list your turns with `pinfold ps -a`")
}

// noJob is the same for a job.
func noJob(id string) *api.Error {
	return api.Errorf(api.CodeNotFound, "no job %q", id).WithRemedy("list your jobs with `pinfold jobs -a`")
}
