package hold

import (
	"os"

	"pinfold.dev/api"
)

// checkProc refuses a host without procfs, proc(5): turns might be held there,
// but who asks for something could not be told from who is inside a turn.
func checkProc() error {
	if _, err := os.Stat("/proc/self/fdinfo"); err != nil {
		return api.Errorf(api.CodeGradeUnavailable, "this host cannot hold turns: /proc is not there: %v", err).
			WithRemedy("mount it: mount -t proc proc /proc; a container runtime does so unless it is told otherwise")
	}
	return nil
}
