package integration

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Containers where cgroup v2 has the controllers: who comes in by exec, a limit of
// tasks and one of memory, each grade. Here it takes seconds, there minutes: with
// PINFOLD_TEST_LONG=1 only.
func TestContainersInVM(t *testing.T) {
	if os.Getenv("PINFOLD_TEST_LONG") == "" {
		t.Skip("left out, as it takes minutes: containers in a virtual machine with controllers; PINFOLD_TEST_LONG=1 runs it")
	}
	needRoot(t)
	dir, err := filepath.Abs("containers")
	if err != nil {
		t.Fatal(err)
	}
	InVM(t, kernel(t, debian61), BedOptions{Bed: "vm", Bin: true, Timeout: 15 * time.Minute}, []vmRun{
		{Name: "containers", Binary: PackageTests(t, "integration/containers"), Dir: dir,
			Args: []string{"-test.parallel=1", "-test.run='^Test(Modes|Exec|OutOfMemory)$/^(each|crun|runc)$/(crun|cgroups_rw)/^(cgroups_writable|at_most_64_tasks|.*read-only)$'"},
			Env:  []string{"PINFOLD_TEST_SLOW=10"}},
	})
}
