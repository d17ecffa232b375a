package hold

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"pinfold.dev/cgroup"
	"pinfold.dev/containment"
	"pinfold.dev/internal/sys"
	"pinfold.dev/pidfd"
)

// endBeside ends what has moved itself beside work/ while jobs live: then Release,
// which ends it otherwise, does not come.
func (x *hold) endBeside(deadline time.Time, out *containment.Killed) {
	if live, err := x.jobsAlive(); err != nil || !live || x.Alone() {
		return
	}
	beside := func(f cgroup.Found) bool {
		part, _, _ := strings.Cut(f.Dir, "/")
		return part != workName && part != jobsName && f.PID != x.facts.Keeper.PID // verified or not: jobs' streams hang on it
	}
	n := 0
	for first := true; ; first = false {
		left := 0
		_, err := x.dir.Each(func(h *pidfd.Handle, f cgroup.Found) error {
			if !beside(f) {
				return nil
			}
			if left++; first {
				n++
			}
			if err := h.Signal(syscall.SIGKILL); !errors.Is(err, pidfd.ErrGone) {
				return err
			}
			return nil
		})
		switch {
		case left == 0 && err == nil:
			out.Notes = append(out.Notes, fmt.Sprintf("%d processes were beside the turn's launches and its jobs, and were ended", n))
			return
		case !time.Now().Before(deadline):
			for _, s := range x.dir.Survivors() {
				if beside(cgroup.Found{PID: s.PID, Dir: s.Cgroup}) {
					out.Survivors = append(out.Survivors, s)
				}
			}
			return
		}
		sys.Nanosleep(int64(100 * time.Microsecond))
	}
}
