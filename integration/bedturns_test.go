package integration

import (
	"testing"
	"time"
)

// The tests of package turns, of the whole service, at grade scope under real
// systemds. Grade cgroup they test on this machine's own kernel.
func TestTurnsInBeds(t *testing.T) {
	needRoot(t)
	binary := PackageTests(t, "integration/turns")
	for _, bed := range []struct {
		name, root string
		args       []string
	}{
		{"host", "", nil},
		{"trixie", "trixie", []string{"-test.short"}},
	} {
		t.Run(bed.name, func(t *testing.T) {
			InNamespaceBed(t, bed.root, BedOptions{Bed: "root", Binary: binary, Bin: true, Args: bed.args,
				Env: []string{"PINFOLD_TEST_GRADE=scope"}, Timeout: 10 * time.Minute}, ".")
		})
	}
}
