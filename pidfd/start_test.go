package pidfd

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys"
)

// wantStart is what StartTable is to say, told another way: is it the same
// process, can that be told, and does it live?
func wantStart(rec, now api.Identity, life Life) api.Verdict {
	const (
		same = iota
		other
		unknown
	)
	differs := func(a, b uint64) bool { return a != 0 && b != 0 && a != b }
	equal := func(a, b uint64) bool { return a != 0 && a == b }
	it := func() int {
		switch {
		case rec.PID <= 0 || rec.Created == 0 && rec.StartUS == 0 && rec.StartS == 0:
			return unknown
		case rec.Created != 0:
		case rec.Boot == "" || now.Boot == "":
			return unknown
		case rec.Boot != now.Boot && (rec.Boot[:1] == sys.BootTimeID[:1] || now.Boot[:1] == sys.BootTimeID[:1]):
			return unknown
		case rec.Boot != now.Boot:
			return other
		}
		switch {
		case life == Reaped:
			return same // or one that had its number later: gone in either case
		case rec.PID != now.PID:
			return other
		case differs(rec.Created, now.Created) || differs(rec.StartUS, now.StartUS) || differs(rec.StartS, now.StartS):
			return other
		case equal(rec.Created, now.Created) || equal(rec.StartUS, now.StartUS) || equal(rec.StartS, now.StartS):
			return same
		}
		return unknown
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

// TestEveryStartCell walks each combination of what can be the same, another,
// not recorded or not readable. A creation time beside a start time is nothing
// that one system says: the table must not be confused by it either.
func TestEveryStartCell(t *testing.T) {
	type pair struct{ rec, now uint64 }
	values := []pair{{5, 5}, {5, 6}, {0, 5}, {5, 0}, {0, 0}}
	const timed = sys.BootTimeID
	boots := [][2]string{{"x", "x"}, {"x", "y"}, {"", "x"}, {"x", ""}, {timed + "1", timed + "1"}, {timed + "1", timed + "2"}, {timed + "1", "x"}, {"", ""}}
	hit := map[string]int{}
	cell := func(rec, now api.Identity, life Life) {
		got, why := CompareStart(rec, now, life)
		if w := wantStart(rec, now, life); got != w {
			t.Fatalf("%s, want %s: %v; recorded %+v, now %+v, life %d", got, w, why, rec, now, life)
		}
		for _, row := range StartTable() {
			if row.holds(rec, now, life) {
				hit[row.When]++
				if row.Verdict != "" {
					break
				}
			}
		}
	}
	for _, boot := range boots {
		for _, pid := range []pair{{5, 5}, {5, 6}, {0, 5}} {
			for _, created := range values {
				for _, us := range values {
					for _, s := range values {
						for life := Unknown; life <= Reaped; life++ {
							cell(api.Identity{PID: int(pid.rec), Boot: boot[0], Created: created.rec, StartUS: us.rec, StartS: s.rec},
								api.Identity{PID: int(pid.now), Boot: boot[1], Created: created.now, StartUS: us.now, StartS: s.now}, life)
						}
					}
				}
			}
		}
	}
	for _, row := range StartTable() {
		if hit[row.When] == 0 {
			t.Errorf("no cell comes to the row %q", row.When)
		}
	}
}

// TestTablesDoNotMix: a record of one system says nothing on another.
func TestTablesDoNotMix(t *testing.T) {
	linux := api.Identity{PID: 44, Boot: "b", PIDNS: 7, TimeNS: 8, StartTicks: 900, Ino: 5, CgroupID: 6}
	for name, id := range map[string]api.Identity{
		"macOS":   {PID: 44, Boot: "b", StartUS: 5},
		"ps":      {PID: 44, Boot: "b", StartS: 5},
		"Windows": {PID: 44, Created: 5},
	} {
		for _, life := range []Life{Unknown, Alive, Exited, Reaped} {
			if v, why := Compare(id, linux, life); v != api.VerdictUnverifiable {
				t.Errorf("a record of %s on Linux: %s, %q", name, v, why)
			}
			if life == Reaped {
				continue // nothing was read of anybody
			}
			if v, why := CompareStart(linux, id, life); v != api.VerdictUnverifiable {
				t.Errorf("a record of Linux on %s: %s, %q", name, v, why)
			}
		}
	}
}

// TestStartTableIsInTheDocs: docs/platforms.md has the table as it is.
func TestStartTableIsInTheDocs(t *testing.T) {
	if runtime.GOOS == "windows" {
		return // there it is run without the tree, see integration/wine
	}
	b, err := os.ReadFile(filepath.Join("..", "docs", "platforms.md"))
	if err != nil {
		t.Fatal(err)
	}
	table := "| when | verdict |\n| --- | --- |\n"
	for _, row := range StartTable() {
		v := string(row.Verdict)
		if v == "" {
			v = "→ next"
		}
		table += fmt.Sprintf("| %s | %s |\n", row.When, v)
	}
	if !strings.Contains(string(b), "\n"+table+"\n") {
		t.Errorf("docs/platforms.md does not say\n%s", table)
	}
}
