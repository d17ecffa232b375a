package integration

import (
	"testing"
	"time"
)

// The scenes of package model at grade scope, under a real systemd. Grade cgroup
// they play on this machine's own kernel.
func TestModelInBed(t *testing.T) {
	needRoot(t)
	InNamespaceBed(t, "", BedOptions{Bed: "root", Binary: PackageTests(t, "integration/model"), Bin: true, Args: []string{"-test.short"},
		Env: []string{"PINFOLD_TEST_GRADE=scope"}, Timeout: 10 * time.Minute}, ".")
}
