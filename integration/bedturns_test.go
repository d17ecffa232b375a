package integration

import (
	"os"
	"testing"
	"time"
)

// The tests of package turns, of the whole service, at grade scope under real
// systemds. Grade cgroup they test on this machine's own kernel. Counts are those
// of -short; with PINFOLD_TEST_LONG=1 Debian 12's systemd gets all of them.
func TestTurnsInBeds(t *testing.T) {
	needRoot(t)
	binary := PackageTests(t, "integration/turns")
	short := []string{"-test.short"}
	host := short
	if os.Getenv("PINFOLD_TEST_LONG") != "" {
		host = nil
	}
	for _, bed := range []struct {
		name, root string
		args       []string
	}{
		{"host", "", host},
		{"trixie", "trixie", short},
	} {
		t.Run(bed.name, func(t *testing.T) {
			InNamespaceBed(t, bed.root, BedOptions{Bed: "root", Binary: binary, Bin: true, Args: bed.args,
				Env: []string{"PINFOLD_TEST_GRADE=scope"}, Timeout: 10 * time.Minute}, ".")
		})
	}
}
