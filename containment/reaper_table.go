package containment

import "pinfold.dev/api"

// Found is what a service comes upon when it starts: a record, or what a record
// names.
type Found string

// What may be found.
const (
	FoundOpen    Found = "open turn"
	FoundEnding  Found = "turn that is being ended"
	FoundOver    Found = "turn that is over"
	FoundUnbegun Found = "turn that had not begun"
	FoundJob     Found = "job"
	FoundKeeper  Found = "keeper of a turn"
	FoundClient  Found = "client of an open turn"
	FoundStray   Found = "cgroup without a record"
)

// OtherBoot stands beside the verdicts: the record is of another boot, so
// nothing that it names can be there.
const OtherBoot api.Verdict = "another boot"

// Deed is what is done about it. None but DeedEnd, DeedResume and, for a client,
// DeedGone leads to a signal; and those only where the verdict is owned, of the
// cgroup that is ended.
type Deed string

// The deeds.
const (
	DeedAdopt   Deed = "adopt"   // it goes on as if nothing had been
	DeedResume  Deed = "resume"  // its ending goes on
	DeedClose   Deed = "close"   // it is closed, with what its keeper had written
	DeedLose    Deed = "lose"    // it is closed as lost
	DeedShow    Deed = "show"    // it stays as it is, and is shown
	DeedDiscard Deed = "discard" // its record goes
	DeedRetire  Deed = "retire"  // it is closed as lost, and its owner is told
	DeedWithout Deed = "without" // the turn is held without it
	DeedGone    Deed = "gone"    // the turn's on_gone is carried out
	DeedEnd     Deed = "end"     // it is ended and removed, and that is reported
	DeedLeave   Deed = "leave"   // it is left alone
)

// Rule is one cell of the table.
type Rule struct {
	Found   Found
	Verdict api.Verdict
	Do      Deed
	Says    string // for people
}

// ReaperTable is all that a service does about what it finds at its start, see
// docs/restart.md. Recovery looks its decisions up here.
func ReaperTable() []Rule {
	const (
		owned, gone, foreign, unsure = api.VerdictOwned, api.VerdictGone, api.VerdictForeign, api.VerdictUnverifiable
		written                      = "statuses that its keeper had written are kept, the others are lost"
		quiet                        = "nothing is signalled"
	)
	return []Rule{
		{FoundOpen, owned, DeedAdopt, "goes on, with its clocks, output and statuses"},
		{FoundOpen, gone, DeedLose, "closed as lost; " + written},
		{FoundOpen, foreign, DeedLose, "closed as lost; " + written + "; " + quiet},
		{FoundOpen, unsure, DeedShow, "kept and shown; " + quiet},
		{FoundOpen, OtherBoot, DeedLose, "closed as lost; " + written + "; " + quiet},

		{FoundEnding, owned, DeedResume, "its ending goes on"},
		{FoundEnding, gone, DeedClose, "closed with its receipt: only an empty cgroup can be removed; " + written},
		{FoundEnding, foreign, DeedLose, "closed as lost; " + written + "; " + quiet},
		{FoundEnding, unsure, DeedShow, "kept and shown; " + quiet},
		{FoundEnding, OtherBoot, DeedLose, "closed as lost; " + written + "; " + quiet},

		{FoundOver, owned, DeedAdopt, "leftovers and jobs stay held; without any it is put away"},
		{FoundOver, gone, DeedClose, "its receipt stands; leftovers are noted gone; " + written},
		{FoundOver, foreign, DeedLose, "its receipt stands; " + written + "; " + quiet},
		{FoundOver, unsure, DeedShow, "kept and shown; " + quiet},
		{FoundOver, OtherBoot, DeedLose, "its receipt stands; " + written + "; " + quiet},

		{FoundUnbegun, owned, DeedDiscard, "its keeper, which holds nothing, is ended; the record goes"},
		{FoundUnbegun, gone, DeedDiscard, "the record goes"},
		{FoundUnbegun, foreign, DeedDiscard, "the record goes; " + quiet},
		{FoundUnbegun, unsure, DeedShow, "kept and shown; " + quiet},
		{FoundUnbegun, OtherBoot, DeedDiscard, "the record goes"},

		{FoundJob, owned, DeedAdopt, "goes on, with its clock"},
		{FoundJob, gone, DeedClose, "ended; the status that its keeper had written, else lost"},
		{FoundJob, foreign, DeedRetire, "retired, its owner is told; the status that its keeper had written, else lost; " + quiet},
		{FoundJob, unsure, DeedShow, "kept and shown, its owner is told; " + quiet},
		{FoundJob, OtherBoot, DeedRetire, "retired, its owner is told; the status that its keeper had written, else lost; " + quiet},

		{FoundKeeper, owned, DeedAdopt, "spoken to again"},
		{FoundKeeper, gone, DeedWithout, "the turn is held, and ended, without it; " + written},
		{FoundKeeper, foreign, DeedWithout, "the same; who has its number now is left alone"},
		{FoundKeeper, unsure, DeedWithout, "the same; what has its number is left alone"},
		{FoundKeeper, OtherBoot, DeedWithout, "so is its turn"},

		{FoundClient, owned, DeedAdopt, "watched again; a connection has its time to come back"},
		{FoundClient, gone, DeedGone, "client_gone: the turn's on_gone is carried out"},
		{FoundClient, foreign, DeedGone, "the same; who has its number now is left alone"},
		{FoundClient, unsure, DeedShow, "not watched, and told; no turn is ended for what cannot be known"},
		{FoundClient, OtherBoot, DeedLeave, "so is its turn"},

		{FoundStray, owned, DeedEnd, "it bears our mark: ended, removed and reported"},
		{FoundStray, gone, DeedLeave, "removed meanwhile"},
		{FoundStray, foreign, DeedLeave, "it bears another's mark: left alone"},
		{FoundStray, unsure, DeedLeave, "it bears no mark, or none that can be read: left alone, unless it is empty and in our own directory"},
		{FoundStray, OtherBoot, DeedLeave, "no cgroup outlives a boot"},
	}
}

// RuleFor looks a cell up. What is not in the table is shown and left alone.
func RuleFor(f Found, v api.Verdict) Rule {
	for _, r := range ReaperTable() {
		if r.Found == f && r.Verdict == v {
			return r
		}
	}
	return Rule{Found: f, Verdict: v, Do: DeedShow, Says: "not in the table: kept and shown"}
}

// found is the row of a turn's record.
func (r *Record) found() Found {
	switch {
	case !r.Facts.Begun(): // nobody was ever told of it
		return FoundUnbegun
	case r.Turn.State.Terminal():
		return FoundOver
	case r.Turn.State != api.StateOpen || r.Ending != nil || r.Draft != nil || r.Receipt != nil:
		return FoundEnding
	}
	return FoundOpen
}
