package integration

import (
	"path/filepath"
	"testing"
	"time"
)

// The same load, and restarts, on Debian 12's own kernel with all controllers:
// its pidfds have no inode of their own, and tell nothing of who was reaped.
func TestRestartInVM(t *testing.T) {
	needRoot(t)
	units, err := filepath.Abs("../packaging/systemd/system")
	if err != nil {
		t.Fatal(err)
	}
	InVM(t, kernel(t, debian61), BedOptions{Bed: "vm", Bin: true, Timeout: 5 * time.Minute}, []vmRun{
		{Name: "load", Binary: executable(t), Args: []string{"-test.run='^TestRestartUnderLoadThere$'"},
			Env: []string{"PINFOLD_BED=service", "PINFOLD_TEST_SLOW=8", "PINFOLD_UNITS=" + units}},
	})
}
