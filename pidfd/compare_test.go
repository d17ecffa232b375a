package pidfd

import (
	"strings"
	"testing"

	"pinfold.dev/api"
)

func TestCompare(t *testing.T) {
	full := api.Identity{PID: 44, Boot: "b", PIDNS: 7, TimeNS: 8, StartTicks: 900, Ino: 5, CgroupID: 6}
	with := func(change func(*api.Identity)) api.Identity {
		id := full
		change(&id)
		return id
	}
	old := with(func(id *api.Identity) { id.Ino = 0 }) // as on kernels before 6.9
	bare := with(func(id *api.Identity) { id.Ino, id.CgroupID = 0, 0 })
	const (
		owned   = api.VerdictOwned
		gone    = api.VerdictGone
		foreign = api.VerdictForeign
		cannot  = api.VerdictUnverifiable
	)
	for name, test := range map[string]struct {
		rec, now api.Identity
		life     Life
		want     api.Verdict
		says     string
	}{
		"same inode":                   {full, full, Alive, owned, "same pidfs inode"},
		"same inode, zombie":           {full, full, Exited, gone, "exited"},
		"same inode, reaped":           {full, full, Reaped, gone, "reaped"},
		"same inode, cannot ask":       {full, full, Unknown, cannot, "cannot tell"},
		"other inode":                  {full, with(func(n *api.Identity) { n.Ino = 9 }), Alive, foreign, "inode"},
		"other inode, same all else":   {with(func(r *api.Identity) { r.Ino = 9 }), full, Alive, foreign, "inode"},
		"same inode, it moved":         {full, with(func(n *api.Identity) { n.CgroupID = 9 }), Alive, owned, "inode"},
		"same inode, other pid ns":     {full, with(func(n *api.Identity) { n.PIDNS, n.PID = 9, 1000 }), Alive, owned, "inode"},
		"other boot":                   {full, with(func(n *api.Identity) { n.Boot = "c" }), Alive, foreign, "another boot"},
		"other boot, reaped":           {full, with(func(n *api.Identity) { n.Boot = "c" }), Reaped, foreign, "another boot"},
		"boot not recorded":            {with(func(r *api.Identity) { r.Boot = "" }), full, Alive, cannot, "boot id"},
		"boot not readable":            {full, with(func(n *api.Identity) { n.Boot = "" }), Alive, cannot, "boot id"},
		"nothing recorded":             {api.Identity{}, full, Alive, cannot, "no pid was recorded"},
		"ticks":                        {bare, bare, Alive, owned, "same pid and start tick"},
		"ticks and cgroup":             {old, old, Alive, owned, "same cgroup"},
		"ticks, recorded before 6.9":   {old, full, Alive, owned, "same pid and start tick"},
		"ticks, kernel went back":      {full, old, Alive, owned, "same pid and start tick"},
		"ticks, zombie":                {bare, bare, Exited, gone, "exited"},
		"ticks, cannot ask":            {bare, bare, Unknown, cannot, "cannot tell"},
		"no such process":              {old, with(func(n *api.Identity) { n.Ino, n.StartTicks = 0, 0 }), Reaped, gone, "ESRCH"},
		"other tick":                   {bare, with(func(n *api.Identity) { n.Ino, n.StartTicks = 0, 901 }), Alive, foreign, "tick is 901"},
		"other pid":                    {bare, with(func(n *api.Identity) { n.Ino, n.PID = 0, 45 }), Alive, foreign, "pid is 45"},
		"same tick, other cgroup":      {old, with(func(n *api.Identity) { n.Ino, n.CgroupID = 0, 9 }), Alive, cannot, "cgroup is 9"},
		"same tick, cgroup unreadable": {old, with(func(n *api.Identity) { n.Ino, n.CgroupID = 0, 0 }), Alive, cannot, "cgroup was recorded, and cannot"},
		"tick not recorded":            {with(func(r *api.Identity) { r.Ino, r.StartTicks = 0, 0 }), old, Alive, cannot, "no start tick"},
		"tick unreadable (hidepid)":    {old, with(func(n *api.Identity) { n.Ino, n.StartTicks = 0, 0 }), Alive, cannot, "cannot be read"},
		"other pid namespace":          {old, with(func(n *api.Identity) { n.Ino, n.PIDNS = 0, 9 }), Alive, cannot, "another PID namespace"},
		"pid namespace not recorded":   {with(func(r *api.Identity) { r.Ino, r.PIDNS = 0, 0 }), old, Alive, cannot, "PID namespace was not recorded"},
		"other time namespace":         {old, with(func(n *api.Identity) { n.Ino, n.TimeNS = 0, 9 }), Alive, cannot, "time namespace"},
	} {
		t.Run(name, func(t *testing.T) {
			got, evidence := Compare(test.rec, test.now, test.life)
			if got != test.want {
				t.Errorf("%s, want %s; evidence %q", got, test.want, evidence)
			}
			if all := strings.Join(evidence, "; "); !strings.Contains(all, test.says) {
				t.Errorf("evidence %q does not say %q", all, test.says)
			}
		})
	}
}

// TestCompareNeverOwnsInDoubt leaves out, and changes, each field of a record
// and a reading: nothing but a full match may be owned.
func TestCompareNeverOwnsInDoubt(t *testing.T) {
	full := api.Identity{PID: 44, Boot: "b", PIDNS: 7, TimeNS: 8, StartTicks: 900, CgroupID: 6}
	changes := map[string]func(*api.Identity){
		"no boot":   func(id *api.Identity) { id.Boot = "" },
		"no pid ns": func(id *api.Identity) { id.PIDNS = 0 },
		"no ticks":  func(id *api.Identity) { id.StartTicks = 0 },
		"time ns":   func(id *api.Identity) { id.TimeNS = 9 },
		"cgroup":    func(id *api.Identity) { id.CgroupID = 9 },
		"boot":      func(id *api.Identity) { id.Boot = "c" },
		"pid ns":    func(id *api.Identity) { id.PIDNS = 9 },
		"ticks":     func(id *api.Identity) { id.StartTicks++ },
		"pid":       func(id *api.Identity) { id.PID++ },
	}
	for name, change := range changes {
		id := full
		change(&id)
		for _, pair := range [][2]api.Identity{{id, full}, {full, id}} {
			if v, ev := Compare(pair[0], pair[1], Alive); v == api.VerdictOwned {
				t.Errorf("%s: owned, evidence %q", name, ev)
			}
		}
	}
	if v, ev := Compare(full, full, Alive); v != api.VerdictOwned {
		t.Errorf("unchanged: %s, evidence %q", v, ev)
	}
}
