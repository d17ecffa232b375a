// Package inherited remembers what this process was started with and the
// standard library then changes.
//
// It imports nothing, and that is what makes it work: packages are initialised
// in the order of their paths, as soon as what they import is (Go
// specification, "Program initialization"). So it comes before package syscall,
// which raises the limit of open files.
package inherited

// Limit is a resource limit, as the kernel has it (struct rlimit64).
type Limit struct{ Soft, Hard uint64 }

// Nofile is the limit of open files (RLIMIT_NOFILE); zero if it is unknown.
var Nofile = nofile()

const rlimitNofile = 7

// getrlimit is prlimit64(0, resource, nil, l).
//
//go:noescape
func getrlimit(resource uintptr, l *Limit) (errno uintptr)

func nofile() (l Limit) {
	if getrlimit(rlimitNofile, &l) != 0 {
		return Limit{}
	}
	return l
}
