package containers

import (
	"fmt"
	"os"
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
	grade   api.Grade
	code    int
	doctor  int
	refused string
	cannot  bool // the runtime makes no such container
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

func (t *table) render() string {
	_ = fmt.Sprint
	return ""
}

func readDocs(t *testing.T) (before, table, after string) {
	t.Helper()
	b, err := os.ReadFile(docs)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(b), tableBegin)
	table, after, ok2 := strings.Cut(rest, tableEnd)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table", docs)
	}
	return before, table, after
}
