package integration

import "testing"

// The tests of package turns, of the whole service, under real systemds.
func TestTurnsInBeds(t *testing.T) {
	needRoot(t)
	binary := PackageTests(t, "integration/turns")
	for _, bed := range []struct{ name, root string }{{"host", ""}, {"trixie", "trixie"}} {
		t.Run(bed.name, func(t *testing.T) {
			InNamespaceBed(t, bed.root, BedOptions{Bed: "root", Binary: binary, Bin: true}, ".")
		})
	}
}
