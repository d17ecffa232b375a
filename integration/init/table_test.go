package inits

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

const (
	docs       = "../../docs/init.md"
	tableBegin = "<!-- table: written by go test ./integration/init -run TestTable -update -->\n"
	tableEnd   = "<!-- end of table -->\n"
)

// peer is an init of the table.
type peer struct{ name, bin string }

// row is one question; ask answers it for an init.
type row struct {
	what string
	ask  func(t *testing.T, p peer) string
	ours string // what pinfold-init must answer
	why  string // where that differs
}

// TestTable asks every init the same, and compares with what the documentation says.
func TestTable(t *testing.T) {
	needRoot(t)
	t.Parallel()
	peers := []peer{{"tini", needProgram(t, "tini")}, {"dumb-init", needProgram(t, "dumb-init")},
		{"catatonit", needProgram(t, "catatonit")}, {"pinfold-init", run.early}}
	var text strings.Builder
	text.WriteString(tableBegin + "| | tini | dumb-init | catatonit | pinfold-init | |\n| --- | --- | --- | --- | --- | --- |\n")
	answers := askAll(t, rows(), peers)
	for i, r := range rows() {
		fmt.Fprintf(&text, "| %s |", r.what)
		for i, answer := range answers[i] {
			fmt.Fprintf(&text, " %s |", answer)
			if peers[i].bin == run.early && answer != r.ours {
				t.Errorf("%s: pinfold-init: %s, want %s", r.what, answer, r.ours)
			}
		}
		fmt.Fprintf(&text, " %s |\n", r.why)
	}
	text.WriteString(tableEnd)
	compareTable(t, text.String())
}

// askAll asks all side by side: most of it is waiting.
func askAll(t *testing.T, rows []row, peers []peer) [][]string {
	answers := make([][]string, len(rows))
	t.Run("ask", func(t *testing.T) {
		for n, r := range rows {
			answers[n] = make([]string, len(peers))
			for i, p := range peers {
				t.Run(r.what+"/"+p.name, func(t *testing.T) {
					t.Parallel()
					answers[n][i] = r.ask(t, p)
				})
			}
		}
	})
	return answers
}

func compareTable(t *testing.T, table string) {
	b, err := os.ReadFile(docs)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(b), tableBegin)
	_, after, ok2 := strings.Cut(rest, tableEnd)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table", docs)
	}
	text := before + table + after
	switch {
	case text == string(b):
	case *update && !t.Failed():
		if err := os.WriteFile(docs, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("the table of %s is not what was seen; -update writes it:\n%s", docs, table)
	}
}

// TestFallbackAnswersTheSame: what the table says holds without the early entry, but
// for what only that can have.
func TestFallbackAnswersTheSame(t *testing.T) {
	needRoot(t)
	t.Parallel()
	for _, r := range rows() {
		if strings.Contains(r.why, "before the runtime") {
			continue
		}
		t.Run(r.what, func(t *testing.T) {
			t.Parallel()
			if answer := r.ask(t, peer{"pinfold-init", run.plain}); answer != r.ours {
				t.Errorf("%s, want %s", answer, r.ours)
			}
		})
	}
}
