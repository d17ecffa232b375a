package pidfd

import (
	"testing"

	"pinfold.dev/api"
)

// want is DESIGN's table, told another way than Table tells it: is it the same
// process, can that be told, and does it live?
func want(rec, now api.Identity, life Life) api.Verdict {
	const (
		same = iota
		other
		unknown
	)
	known := func(a, b uint64) bool { return a != 0 && b != 0 }
	it := func() int {
		switch {
		case rec.PID <= 0 || rec.Boot == "" || now.Boot == "":
			return unknown
		case rec.Boot != now.Boot:
			return other
		case known(rec.Ino, now.Ino) && rec.Ino == now.Ino:
			return same
		case known(rec.Ino, now.Ino):
			return other
		case !known(rec.PIDNS, now.PIDNS) || rec.PIDNS != now.PIDNS:
			return unknown
		case rec.PID != now.PID:
			return other
		case life == Reaped:
			return same // or one that had its number later: gone in either case
		case !known(rec.StartTicks, now.StartTicks) || rec.TimeNS != now.TimeNS:
			return unknown
		case rec.StartTicks != now.StartTicks:
			return other
		case rec.CgroupID != 0 && rec.CgroupID != now.CgroupID:
			return unknown
		}
		return same
	}()
	switch {
	case it == other:
		return api.VerdictForeign
	case it == same && life == Alive:
		return api.VerdictOwned
	case it == same && life != Unknown:
		return api.VerdictGone
	}
	return api.VerdictUnverifiable
}

// TestEveryCell walks each combination of what can be the same, another, not
// recorded or not readable, and of what the handle says of life.
func TestEveryCell(t *testing.T) {
	type pair struct{ rec, now uint64 }
	values := []pair{{5, 5}, {5, 6}, {0, 5}, {5, 0}}
	names := map[uint64]string{0: "", 5: "b", 6: "c"}
	hit := map[string]int{}
	cells := 0
	for _, boot := range values {
		for _, ino := range values {
			for _, pidns := range values {
				for _, pid := range []pair{{5, 5}, {5, 6}, {0, 5}} {
					for _, ticks := range values {
						for _, timens := range values {
							for _, cgroup := range values {
								for life := Unknown; life <= Reaped; life++ {
									rec := api.Identity{PID: int(pid.rec), Boot: names[boot.rec], PIDNS: pidns.rec, TimeNS: timens.rec,
										StartTicks: ticks.rec, Ino: ino.rec, CgroupID: cgroup.rec}
									now := api.Identity{PID: int(pid.now), Boot: names[boot.now], PIDNS: pidns.now, TimeNS: timens.now,
										StartTicks: ticks.now, Ino: ino.now, CgroupID: cgroup.now}
									cells++
									got, why := Compare(rec, now, life)
									if w := want(rec, now, life); got != w {
										t.Fatalf("%s, want %s: %v; recorded %+v, now %+v, life %d", got, w, why, rec, now, life)
									}
									for _, row := range Table() {
										if row.holds(rec, now, life) {
											hit[row.When]++
											if row.Verdict != "" {
												if row.Verdict != got {
													t.Fatalf("the first row that holds says %s, Compare %s", row.Verdict, got)
												}
												break
											}
										}
									}
								}
							}
						}
					}
				}
			}
		}
	}
	for _, row := range Table() {
		if hit[row.When] == 0 {
			t.Errorf("no cell comes to the row %q", row.When)
		}
	}
	t.Logf("%d cells", cells)
}
