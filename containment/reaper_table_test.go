package containment

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"pinfold.dev/api"
)

// Every thing that may be found has one rule for each verdict.
func TestReaperTableIsWhole(t *testing.T) {
	cells := map[string]int{}
	found := map[Found]bool{}
	for _, r := range ReaperTable() {
		found[r.Found] = true
		cells[fmt.Sprint(r.Found, "/", r.Verdict)]++
		if r.Says == "" || RuleFor(r.Found, r.Verdict) != r {
			t.Errorf("%+v", r)
		}
	}
	if len(found) != 8 {
		t.Errorf("rows: %v", found)
	}
	for f := range found {
		for _, v := range []api.Verdict{api.VerdictOwned, api.VerdictGone, api.VerdictForeign, api.VerdictUnverifiable, OtherBoot} {
			if n := cells[fmt.Sprint(f, "/", v)]; n != 1 {
				t.Errorf("%s, %s: %d rules", f, v, n)
			}
		}
	}
}

// Nothing is ended but what was proved ours, and what cannot be known is neither
// ended nor closed.
func TestReaperTableKeepsTheRules(t *testing.T) {
	for _, r := range ReaperTable() {
		ends := r.Do == DeedEnd || r.Do == DeedResume
		if ends && r.Verdict != api.VerdictOwned {
			t.Errorf("%s, %s: %s", r.Found, r.Verdict, r.Do)
		}
		closes := r.Do == DeedClose || r.Do == DeedLose || r.Do == DeedRetire || r.Do == DeedDiscard || r.Do == DeedGone
		if closes && r.Verdict == api.VerdictUnverifiable {
			t.Errorf("%s, %s: %s", r.Found, r.Verdict, r.Do)
		}
	}
	if r := RuleFor("something", "else"); r.Do != DeedShow {
		t.Errorf("what is not in the table: %+v", r)
	}
}

// docs/restart.md has the table.
func TestReaperTableIsDocumented(t *testing.T) {
	b, err := os.ReadFile("../docs/restart.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range ReaperTable() {
		if line := fmt.Sprintf("| %s | %s | %s | %s |\n", r.Found, r.Verdict, r.Do, r.Says); !strings.Contains(string(b), line) {
			t.Errorf("docs/restart.md has not: %s", line)
		}
	}
}
