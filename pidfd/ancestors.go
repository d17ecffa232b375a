package pidfd

import (
	"fmt"
	"os"
	"slices"
	"sync"

	"pinfold.dev/internal/sys"
)

// RefuseAncestor returns ErrRefused for a process that we descend from: who
// ends that may end us, and it is nobody whom we launched.
//
// Who our ancestors are is read once. The list can only become shorter: when one
// of them ends, its children go to one above it. So a number that is not in it is
// none, and one that is in it is looked for again.
func RefuseAncestor(pid int) error {
	if slices.Contains(ancestors(), pid) && slices.Contains(readAncestors(), pid) {
		return fmt.Errorf("signal pid %d: %w: we descend from it", pid, ErrRefused)
	}
	return nil
}

var ancestors = sync.OnceValue(readAncestors)

// readAncestors lists our parent, its parent and so on, as far as that can be
// read; pid 1 and processes outside our PID namespace are left out.
func readAncestors() []int {
	var out []int
	inProc := ReadHere().Proc
	for pid := os.Getppid(); pid > 1 && !slices.Contains(out, pid); {
		out = append(out, pid)
		pid = parentOf(pid, inProc)
	}
	return out
}

// parentOf is a process's parent, or 0 where that cannot be read.
func parentOf(pid int, inProc bool) int {
	if inProc {
		if b, err := sys.ProcFile(pid, "stat"); err == nil {
			if s, err := sys.ParseStat(b); err == nil && s.PID == pid {
				return s.PPID
			}
		}
	}
	fd, err := sys.PidfdOpen(pid, 0)
	if err != nil {
		return 0
	}
	defer sys.Close(fd)
	in, err := sys.PidfdGetInfo(fd, sys.PidfdInfoPID)
	if err != nil || in.Mask&sys.PidfdInfoPID == 0 {
		return 0
	}
	return in.PPID
}
