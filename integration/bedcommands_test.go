package integration

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// The tests of the command line at grade scope: root at root's service, a user
// at root's service, and a user in a log-in session at their own. What hangs on
// no grade is left out; package cmd/pinfold itself tests grade cgroup.
func TestCommandsInBeds(t *testing.T) {
	needRoot(t)
	const tests = "^Test(InPlace|Run|TTY|Attach|Stop).*$|^TestScripts$/^(run|run_options|run_places|run_signals|run_leftovers|logs|turn|abandon)$"
	for _, bed := range []struct {
		name, root string
		o          BedOptions
	}{
		{"root", "", BedOptions{Bed: "root"}},
		{"user of root's", "", BedOptions{Bed: "root", Env: []string{"PINFOLD_TEST_UID=4242"}}},
		{"session", "", BedOptions{Bed: "session", User: "bed"}},
		{"trixie session", "trixie", BedOptions{Bed: "session", User: "bed", Args: []string{"-test.skip=FastCommands|WhenTheServiceGoes|TestTTY|TestScripts/run_places"}}},
	} {
		t.Run(bed.name, func(t *testing.T) {
			bed.o.Binary, bed.o.Bin, bed.o.Timeout = PackageTests(t, "cmd/pinfold"), true, 8*time.Minute
			bed.o.Env = append(bed.o.Env, "PINFOLD_TEST_GRADE=scope")
			bed.o.Tree = []string{"cmd/pinfold/testdata", "examples/demo"}
			bed.o.Dir = "cmd/pinfold"
			bed.o.Args = append([]string{"-test.skip=FastCommands|WhenTheServiceGoes"}, bed.o.Args...)
			InNamespaceBed(t, bed.root, bed.o, tests)
		})
	}
}

// stageTree copies directories of this module into dir, where tests find them
// beside theirs, and returns the directory of those tests.
func stageTree(t *testing.T, dir string, o BedOptions) string {
	t.Helper()
	for _, d := range o.Tree {
		if err := os.CopyFS(filepath.Join(dir, d), os.DirFS(filepath.Join("..", d))); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, o.Dir)
}
