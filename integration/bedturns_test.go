package integration

import (
	"os"
	"strings"
	"testing"
	"time"
)

// The tests of package turns, of the whole service, at grade scope under real
// systemds. Grade cgroup they test on this machine's own kernel, where all of them
// run. Here counts are those of -short, and what takes long and is the same at each
// grade is left out; with PINFOLD_TEST_LONG=1 Debian 12's systemd gets everything.
func TestTurnsInBeds(t *testing.T) {
	needRoot(t)
	binary := PackageTests(t, "integration/turns")
	short := []string{"-test.short", "-test.skip=^Test(" + strings.Join([]string{"HostileClients", "DeadlineOutlivesTheService",
		"EndPolicy.*", "RestartAmidstEachClock", "(Killed|Stopped)Gateway", "SilentBuildIsNotIdle", "LogThatNobodyReads",
		"BackAtTheLastInstant", "WhatATurnHeldIsFree", "ExitIsNotHeldUpByAnybody", "StartOnABusyHost", "Much.*",
		"Adopt(ATree|Odd|By|The|At|Hostile|Without|While|Refuses).*", "AdoptedThatLeaves", "StatusOfAdopted", "ReceiptNames.*"}, "|") + ")$"}
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
