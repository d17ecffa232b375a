//go:build unix

package token

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"pinfold.dev/internal/sys"
)

// readPS asks ps(1), which is the last resort: it takes a process of its own,
// and its seconds are wide. A start within the second in which it was asked is
// errYoung: another process could have the same number and second still, however
// long ps takes to tell. sys.ErrNoEntry: it has no such row.
func readPS(pid int) (sys.ProcEntry, error) { return readBy("/bin/ps", pid) }

func readBy(program string, pid int) (sys.ProcEntry, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	args := []string{"-p", strconv.Itoa(pid)}
	for _, column := range strings.Fields(sys.PSColumns) {
		args = append(args, "-o", column)
	}
	asked := time.Now()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = []string{"LC_ALL=C", "TZ=UTC0"}
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 && len(exit.Stderr) == 0 && len(out) == 0 {
		return sys.ProcEntry{}, sys.ErrNoEntry
	}
	if err != nil {
		return sys.ProcEntry{}, fmt.Errorf("run ps: %w", err)
	}
	e, err := sys.ParsePS(out)
	if err != nil {
		return sys.ProcEntry{}, fmt.Errorf("read ps: %w", err)
	}
	if e.PID != pid {
		return sys.ProcEntry{}, fmt.Errorf("read ps: %w", sys.ErrParse)
	}
	if e.StartUS/1e6 >= uint64(asked.Unix()) {
		return sys.ProcEntry{}, errYoung
	}
	return e, nil
}
