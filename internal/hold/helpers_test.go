//go:build linux

package hold

import (
	"os/exec"
	"testing"

	"pinfold.dev/internal/sys"
)

// sleeper is a process beside the turn.
func sleeper() *exec.Cmd { return exec.Command("sleep", "1000") }

func openPidfd(t *testing.T, pid int) int {
	t.Helper()
	fd, err := sys.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sys.Close(fd) })
	return fd
}
