package hosts

import (
	"os"
	"strings"
	"testing"

	"pinfold.dev/api"
)

const (
	tableFile  = "../../docs/grades.md"
	tableBegin = "<!-- The table is written by `PINFOLD_TEST_LONG=1 go test ./integration/hosts -update`. -->\n"
	tableEnd   = "<!-- End of the table. -->\n"
)

// checkTable compares the table in the docs with what was seen.
func checkTable(t *testing.T, all []stage, seen []*outcome) {
	var b strings.Builder
	b.WriteString("| host | grade | turn abandoned | service killed before | keeper killed before | both killed before |\n| --- | --- | --- | --- | --- | --- |\n")
	tried := map[string]string{}
	for i, s := range all {
		if seen[i] != nil {
			tried[s.Name] = row(s, seen[i])
			b.WriteString(tried[s.Name])
		}
	}
	for _, g := range []api.Grade{api.GradePIDNS, api.GradeSubreaper, api.GradeToken} {
		for i, s := range all {
			if seen[i] != nil && seen[i].Grade == g && s.UID == 0 {
				tried[string(g)] = claims(seen[i])
				b.WriteString(tried[string(g)])
				break
			}
		}
	}
	doc, err := os.ReadFile(tableFile)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(doc), tableBegin)
	was, after, ok2 := strings.Cut(rest, tableEnd)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table", tableFile)
	}
	if !*update {
		for name, line := range tried {
			if !strings.Contains(was, line) {
				t.Errorf("the table in %s is not what was seen (PINFOLD_TEST_LONG=1 go test ./integration/hosts -update); %s:\n%s", tableFile, name, line)
			}
		}
		return
	}
	if len(tried) != len(all)+3 {
		t.Fatalf("%d of %d hosts and grades were tried: the table needs all", len(tried), len(all)+3)
	}
	if err := os.WriteFile(tableFile, []byte(before+tableBegin+b.String()+tableEnd+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// claims are what a turn says that it lacks.
func claims(o *outcome) string {
	return "\nA turn at grade `" + string(o.Grade) + "` says of itself (`degraded`):\n\n- " + strings.Join(o.Claims, "\n- ") + "\n"
}

func row(s stage, o *outcome) string {
	line := "| " + s.Name + " | `" + string(o.Grade) + "`"
	for _, one := range o.Trials[:4] {
		line += " | " + one.words()
	}
	return line + " |\n"
}

// words are what a trial's cell says.
func (o trial) words() string {
	switch {
	case o.Shown:
		return "unverifiable: kept, shown, nothing signalled"
	case o.Complete:
		first, _, _ := strings.Cut(o.Mechanism, "+") // what came after it depends on how busy the host is
		if strings.Contains(o.Name, "keeper killed") || strings.Contains(o.Name, "both") {
			return "all ended" // by whom depends on who had seen what by then
		}
		return "all ended, by " + first
	case o.State == api.StateLost && o.Unconfirmed == "":
		return "over: its init was found gone"
	case o.Unconfirmed != "" && o.Survivors == 0:
		return "unconfirmed"
	case o.Unconfirmed != "":
		return "unconfirmed, survivors named"
	}
	return "survivors named"
}
