package integration

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// SCENARIOS.md names tests that there are.
func TestScenarios(t *testing.T) {
	b, err := os.ReadFile("SCENARIOS.md")
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{} // by directory: what tests, and scripts by name, it has
	named := regexp.MustCompile("`([a-z0-9/]+): ([A-Za-z0-9_.]+)`").FindAllStringSubmatch(string(b), -1)
	for _, m := range named {
		dir, name := m[1], m[2]
		if _, ok := texts[dir]; !ok {
			texts[dir] = testsBelow(t, filepath.Join("..", dir))
		}
		if !strings.Contains(texts[dir], "\n"+name+"\n") {
			t.Errorf("%s has no %s", dir, name)
		}
	}
	if len(named) < 50 {
		t.Errorf("only %d tests are named", len(named))
	}
}

// testsBelow lists the tests of a directory, one a line: functions of Go and
// Python, and scripts by their file names.
func testsBelow(t *testing.T, dir string) string {
	t.Helper()
	found := regexp.MustCompile(`(?m)^(?:func |\s*(?:async )?def )(Test\w+|test_\w+)\(`)
	out := "\n"
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != dir && d.Name() != "testdata" && d.Name() != "script":
			return fs.SkipDir
		case filepath.Ext(path) == ".txtar":
			out += d.Name() + "\n"
		case filepath.Ext(path) == ".go" || filepath.Ext(path) == ".py":
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, m := range found.FindAllStringSubmatch(string(b), -1) {
				out += m[1] + "\n"
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
