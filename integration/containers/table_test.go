package containers

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"pinfold.dev/api"
)

// table is what was measured, for docs/containers.md.
type table struct {
	mu    sync.Mutex
	cells map[string]map[string]cell // by mode and runtime
}

type cell struct {
	grade  api.Grade
	code   int
	doctor int
	cannot bool // the runtime makes no such container
}

func (t *table) add(mode string, rt oci, c cell) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cells == nil {
		t.cells = map[string]map[string]cell{}
	}
	if t.cells[mode] == nil {
		t.cells[mode] = map[string]cell{}
	}
	t.cells[mode][rt.name] = c
}

const (
	docs       = "../../docs/containers.md"
	tableBegin = "<!-- table: made by integration/containers -update -->\n"
	tableEnd   = "<!-- end of table -->\n"
)

// row is a line of the table, or nothing when it was not measured whole.
func (t *table) row(mode string) string {
	crun, ok := t.cells[mode]["crun"]
	runc, ok2 := t.cells[mode]["runc"]
	if !ok || !ok2 {
		return ""
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s |\n", mode, crun, runc,
		both(crun, runc, func(c cell) string { return strconv.Itoa(c.code) }),
		both(crun, runc, func(c cell) string { return strconv.Itoa(c.doctor) }))
}

// String is the grade, or why there is none.
func (c cell) String() string {
	switch {
	case c.cannot:
		return "makes no such container"
	case c.grade == "":
		return "none: the service says why"
	}
	return "`" + string(c.grade) + "`"
}

// both is what both runtimes have come to.
func both(a, b cell, text func(cell) string) string {
	switch {
	case a.cannot:
		return text(b)
	case b.cannot || text(a) == text(b):
		return text(a)
	}
	return text(a) + " and " + text(b)
}

// check compares the table in the docs with what was measured, or writes it.
// What could not be measured on this host stays as it is.
func (t *table) check(tb testing.TB, modes []mode) {
	tb.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	before, old, after := readDocs(tb)
	text := "| container | crun | runc | ended with TERM: code | `pinfold doctor`: code |\n| --- | --- | --- | --- | --- |\n"
	for _, m := range modes {
		row := t.row(m.name)
		if row == "" {
			row = lineOf(old, "| "+m.name+" |")
		}
		text += row
	}
	switch {
	case *update:
		if err := os.WriteFile(docs, []byte(before+tableBegin+text+tableEnd+after), 0o644); err != nil {
			tb.Fatal(err)
		}
	case text != old:
		tb.Errorf("%s is not what was measured (go test ./integration/containers -run TestModes -update writes it):\n%s", docs, text)
	}
}

// lineOf is the line of a text that begins so.
func lineOf(text, begin string) string {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, begin) {
			return line
		}
	}
	return ""
}

func readDocs(tb testing.TB) (before, table, after string) {
	tb.Helper()
	b, err := os.ReadFile(docs)
	if err != nil {
		tb.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(b), tableBegin)
	table, after, ok2 := strings.Cut(rest, tableEnd)
	if !ok || !ok2 {
		tb.Fatalf("%s has no place for the table", docs)
	}
	return before, table, after
}
