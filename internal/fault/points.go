//go:build faultpoints

package fault

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Enabled tells a build with fault points.
const Enabled = true

// variable says which points act: NAME[#NTH]=ACTION[:FILE], separated by commas.
// With a FILE a rule is armed only while that file exists; a point that is
// reached then makes FILE.reached before it acts. NTH counts from 1, armed
// visits only; without it every one acts. The actions:
//
//	kill  SIGKILL to this process
//	exit  exit(1)
//	hold  wait while FILE exists, a minute at most
const variable = "PINFOLD_FAULT"

// holdMost bounds a hold: no test is slower, and nothing hangs for ever.
const holdMost = time.Minute

type rule struct {
	name, action, file string
	nth                int64
	visits             atomic.Int64
}

// rules are read once, when the first point is reached.
var rules = sync.OnceValue(func() (all []*rule) {
	for s := range strings.SplitSeq(os.Getenv(variable), ",") {
		if r := parse(s); r != nil {
			all = append(all, r)
		}
	}
	return all
})

// parse reads one rule; nil for one that makes no sense.
func parse(s string) *rule {
	name, act, ok := strings.Cut(s, "=")
	if !ok {
		return nil
	}
	r := &rule{}
	var nth string
	if r.name, nth, ok = strings.Cut(name, "#"); ok {
		n, err := strconv.ParseInt(nth, 10, 64)
		if err != nil || n < 1 {
			return nil
		}
		r.nth = n
	}
	r.action, r.file, _ = strings.Cut(act, ":")
	if r.action == "hold" && r.file == "" {
		return nil
	}
	return r
}

// Point does what the environment says of this step.
func Point(name string) {
	for _, r := range rules() {
		if r.name == name {
			r.act()
		}
	}
}

func (r *rule) act() {
	if r.file != "" && !exists(r.file) {
		return
	}
	if n := r.visits.Add(1); r.nth != 0 && n != r.nth {
		return
	}
	if r.file != "" {
		if fd, err := syscall.Open(r.file+".reached", syscall.O_WRONLY|syscall.O_CREAT|syscall.O_CLOEXEC, 0o600); err == nil {
			_ = syscall.Close(fd)
		}
	}
	switch r.action {
	case "kill":
		_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
		select {} // it ends when this thread leaves the kernel
	case "exit":
		os.Exit(1)
	case "hold":
		for end := time.Now().Add(holdMost); exists(r.file) && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
	}
}

func exists(path string) bool {
	var st syscall.Stat_t
	return syscall.Stat(path, &st) == nil
}

// Environ is what a child's environment needs to have the same points.
func Environ() []string {
	if v := os.Getenv(variable); v != "" {
		return []string{variable + "=" + v}
	}
	return nil
}
