package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestManPages: one for each command, and the same each time.
func TestManPages(t *testing.T) {
	dir := t.TempDir()
	for _, sub := range []string{"a", "b"} {
		cmd := exec.Command("go", "run", "-tags", "man", ".", "man", filepath.Join(dir, sub))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	for _, c := range (&app{getenv: os.Getenv}).commands() {
		name := "pinfold-" + c.Name() + ".1"
		a, err := os.ReadFile(filepath.Join(dir, "a", name))
		if err != nil {
			t.Errorf("no man page: %v", err)
			continue
		}
		if b, _ := os.ReadFile(filepath.Join(dir, "b", name)); string(b) != string(a) {
			t.Errorf("%s differs from run to run", name)
		}
		if !strings.Contains(string(a), c.Short) || strings.Contains(string(a), "Auto generated") {
			t.Errorf("%s is not as it should be:\n%s", name, a)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "a", "pinfold.1")); err != nil {
		t.Error(err)
	}
}
