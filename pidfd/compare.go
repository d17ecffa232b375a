package pidfd

import (
	"errors"
	"fmt"

	"pinfold.dev/api"
)

// Life is what an open handle says of its process.
type Life int

// A zombie is Exited, one that was reaped is Reaped. Unknown is for handles
// that could not be asked.
const (
	Unknown Life = iota
	Alive
	Exited
	Reaped
)

// Row is a row of the table of verdicts: when, what, and the evidence in words.
type Row struct {
	When    string
	Verdict api.Verdict // none: one more thing agrees, and the next row is asked
	holds   func(rec, now api.Identity, life Life) bool
	says    func(rec, now api.Identity) string
}

// Table is the table of verdicts, of which the first row that holds decides.
// A zero field is one that could not be read, or was not recorded: it never
// counts as equal and never as different.
//
// The pidfs inode decides where both have it. Without it the pid and the start
// tick must be equal, in the same boot, PID namespace and time namespace; since
// a number can come back within one tick, a recorded cgroup has to be the same
// as well.
func Table() []Row {
	type id = api.Identity
	inodes := func(rec, now id) bool { return rec.Ino != 0 && now.Ino != 0 }
	same := func(rec, now id) bool { return inodes(rec, now) && rec.Ino == now.Ino }
	const owned, gone, foreign, cannot = api.VerdictOwned, api.VerdictGone, api.VerdictForeign, api.VerdictUnverifiable
	return []Row{
		{"no pid was recorded", cannot, func(r, n id, _ Life) bool { return r.PID <= 0 }, nil},
		{"the boot id was not recorded, or cannot be read", cannot, func(r, n id, _ Life) bool { return r.Boot == "" || n.Boot == "" }, nil},
		{"recorded in another boot", foreign, func(r, n id, _ Life) bool { return r.Boot != n.Boot }, nil},
		{"same boot", "", always, nil},

		{"another pidfs inode", foreign, func(r, n id, _ Life) bool { return inodes(r, n) && r.Ino != n.Ino },
			func(r, n id) string { return fmt.Sprintf("pidfs inode is %d, recorded %d", n.Ino, r.Ino) }},
		{"same pidfs inode, and it is alive", owned, func(r, n id, l Life) bool { return same(r, n) && l == Alive }, nil},
		{"same pidfs inode, and it has exited", gone, func(r, n id, l Life) bool { return same(r, n) && l == Exited }, nil},
		{"same pidfs inode, and it was reaped", gone, func(r, n id, l Life) bool { return same(r, n) && l == Reaped }, nil},
		{"same pidfs inode, and one cannot tell whether it lives", cannot, func(r, n id, _ Life) bool { return same(r, n) }, nil},

		{"the PID namespace was not recorded, or cannot be read", cannot, func(r, n id, _ Life) bool { return r.PIDNS == 0 || n.PIDNS == 0 }, nil},
		{"recorded in another PID namespace", cannot, func(r, n id, _ Life) bool { return r.PIDNS != n.PIDNS }, nil},
		{"another pid", foreign, func(r, n id, _ Life) bool { return r.PID != n.PID },
			func(r, n id) string { return fmt.Sprintf("pid is %d, recorded %d", n.PID, r.PID) }},
		{"no such process (ESRCH)", gone, func(_, _ id, l Life) bool { return l == Reaped }, nil},

		{"no start tick was recorded", cannot, func(r, _ id, _ Life) bool { return r.StartTicks == 0 }, nil},
		{"the start tick cannot be read", cannot, func(_, n id, _ Life) bool { return n.StartTicks == 0 }, nil},
		{"the start tick was recorded in another time namespace", cannot, func(r, n id, _ Life) bool { return r.TimeNS != n.TimeNS }, nil},
		{"another start tick", foreign, func(r, n id, _ Life) bool { return r.StartTicks != n.StartTicks },
			func(r, n id) string { return fmt.Sprintf("start tick is %d, recorded %d", n.StartTicks, r.StartTicks) }},
		{"same pid and start tick", "", always, nil},

		{"a cgroup was recorded, and cannot be read", cannot, func(r, n id, _ Life) bool { return r.CgroupID != 0 && n.CgroupID == 0 }, nil},
		{"another cgroup", cannot, func(r, n id, _ Life) bool { return r.CgroupID != 0 && r.CgroupID != n.CgroupID },
			func(r, n id) string { return fmt.Sprintf("cgroup is %d, recorded %d", n.CgroupID, r.CgroupID) }},
		{"same cgroup", "", func(r, _ id, _ Life) bool { return r.CgroupID != 0 }, nil},
		{"no cgroup was recorded", "", func(r, _ id, _ Life) bool { return r.CgroupID == 0 }, nil},
		{"it is alive", owned, func(_, _ id, l Life) bool { return l == Alive }, nil},
		{"it has exited", gone, func(_, _ id, l Life) bool { return l == Exited }, nil},
		{"one cannot tell whether it lives", cannot, always, nil},
	}
}

func always(_, _ api.Identity, _ Life) bool { return true }

// theTable is made once: Compare stands before every signal.
var theTable = Table()

// Compare decides by Table whether the process that now describes is the recorded
// one, and returns the evidence in words.
func Compare(rec, now api.Identity, life Life) (api.Verdict, []string) {
	return decide(theTable, rec, now, life)
}

// decide goes down a table to the first row that holds and has a verdict.
func decide(table []Row, rec, now api.Identity, life Life) (api.Verdict, []string) {
	evidence := make([]string, 0, 4)
	for i := range table {
		row := &table[i]
		if !row.holds(rec, now, life) {
			continue
		}
		text := row.When
		if row.says != nil {
			text = row.says(rec, now)
		}
		evidence = append(evidence, text)
		if row.Verdict != "" {
			return row.Verdict, evidence
		}
	}
	return api.VerdictUnverifiable, evidence
}

// Verify compares the process with a record of one, and says on what evidence.
// See Compare.
func (h *Handle) Verify(rec api.Identity) (api.Verdict, []string) {
	now, err := h.Identity()
	if err != nil {
		return api.VerdictUnverifiable, []string{err.Error()}
	}
	return Compare(rec, now, h.Life())
}

// Life asks the handle. It is to be asked after everything else was read.
func (h *Handle) Life() Life {
	if exited, err := h.Exited(); err != nil {
		return Unknown
	} else if !exited {
		return Alive
	}
	if errors.Is(h.held(), ErrGone) {
		return Reaped
	}
	return Exited
}

// NumberMeans tells with an empty verdict that a recorded pid means the same
// where we are.
func NumberMeans(rec api.Identity, now Here) (api.Verdict, []string) {
	var v api.Verdict
	var why string
	switch {
	case rec.PID <= 1:
		v, why = api.VerdictUnverifiable, "no usable pid was recorded"
	case rec.Boot == "" || now.Boot == "":
		v, why = api.VerdictUnverifiable, "the boot id was not recorded, or cannot be read"
	case rec.Boot != now.Boot:
		v, why = api.VerdictForeign, "recorded in another boot"
	case rec.PIDNS == 0 || now.PIDNS == 0:
		v, why = api.VerdictUnverifiable, "the PID namespace was not recorded, or cannot be read"
	case rec.PIDNS != now.PIDNS:
		v, why = api.VerdictUnverifiable, "recorded in another PID namespace"
	default:
		return "", nil
	}
	return v, []string{why}
}
