package pidfd

import (
	"fmt"
	"slices"
	"strings"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys"
)

// token is what a process's start is known by on one system or another.
type token struct {
	what string
	of   func(api.Identity) uint64
}

func tokens() []token {
	return []token{
		{"creation time", func(id api.Identity) uint64 { return id.Created }},
		{"start time", func(id api.Identity) uint64 { return id.StartUS }},
		{"start second", func(id api.Identity) uint64 { return id.StartS }},
	}
}

// StartTable is the table of verdicts of systems other than Linux, as Table is
// Linux's. The number and a start token decide, which is one of StartUS, StartS
// and Created; one that is of another kind says nothing.
//
// Boots are told apart by their ids. One that is no more than the time of the
// boot also changes when the clock is set, so another one says nothing either.
// A creation time of Windows is of the calendar and needs no boot.
func StartTable() []Row {
	type id = api.Identity
	const owned, gone, foreign, cannot = api.VerdictOwned, api.VerdictGone, api.VerdictForeign, api.VerdictUnverifiable
	calendar := func(r id) bool { return r.Created != 0 }
	none := func(i id) bool { return i.Created == 0 && i.StartUS == 0 && i.StartS == 0 }
	timed := func(r, n id) bool {
		return strings.HasPrefix(r.Boot, sys.BootTimeID) || strings.HasPrefix(n.Boot, sys.BootTimeID)
	}
	table := []Row{
		{"no pid was recorded", cannot, func(r, n id, _ Life) bool { return r.PID <= 0 }, nil},
		{"no start time was recorded", cannot, func(r, _ id, _ Life) bool { return none(r) }, nil},
		{"the boot id was not recorded, or cannot be read", cannot,
			func(r, n id, _ Life) bool { return !calendar(r) && (r.Boot == "" || n.Boot == "") }, nil},
		{"recorded in another boot, or before the clock was set", cannot,
			func(r, n id, _ Life) bool { return !calendar(r) && r.Boot != n.Boot && timed(r, n) }, nil},
		{"recorded in another boot", foreign, func(r, n id, _ Life) bool { return !calendar(r) && r.Boot != n.Boot }, nil},
		{"same boot", "", func(r, n id, _ Life) bool { return !calendar(r) }, nil},
		{"no process has its number", gone, func(_, _ id, l Life) bool { return l == Reaped }, nil},
		{"another pid", foreign, func(r, n id, _ Life) bool { return r.PID != n.PID },
			func(r, n id) string { return fmt.Sprintf("pid is %d, recorded %d", n.PID, r.PID) }},
		{"the start time cannot be read", cannot, func(_, n id, _ Life) bool { return none(n) }, nil},
	}
	both := func(t token, r, n id) bool { return t.of(r) != 0 && t.of(n) != 0 }
	for _, t := range tokens() {
		table = append(table, Row{"another " + t.what, foreign,
			func(r, n id, _ Life) bool { return both(t, r, n) && t.of(r) != t.of(n) },
			func(r, n id) string { return fmt.Sprintf("%s is %d, recorded %d", t.what, t.of(n), t.of(r)) }})
	}
	for _, t := range tokens() {
		table = append(table, Row{"same pid and " + t.what, "", func(r, n id, _ Life) bool { return both(t, r, n) }, nil})
	}
	agree := func(r, n id) bool {
		return slices.ContainsFunc(tokens(), func(t token) bool { return both(t, r, n) })
	}
	return append(table,
		Row{"the start time was recorded from another source", cannot, func(r, n id, _ Life) bool { return !agree(r, n) }, nil},
		Row{"it is alive", owned, func(_, _ id, l Life) bool { return l == Alive }, nil},
		Row{"it has exited", gone, func(_, _ id, l Life) bool { return l == Exited }, nil},
		Row{"one cannot tell whether it lives", cannot, always, nil})
}

var theStartTable = StartTable()

// CompareStart is Compare for systems other than Linux, by StartTable.
func CompareStart(rec, now api.Identity, life Life) (api.Verdict, []string) {
	return decide(theStartTable, rec, now, life)
}
