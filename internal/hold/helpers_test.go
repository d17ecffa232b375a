//go:build linux

package hold

import "os/exec"

// sleeper is a process beside the turn.
func sleeper() *exec.Cmd { return exec.Command("sleep", "1000") }
