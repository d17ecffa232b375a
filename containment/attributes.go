package containment

import (
	"slices"
	"strconv"
	"strings"

	"pinfold.dev/api"
)

// Rlimit is one resource limit by its number, see setrlimit(2); 1<<64-1 is no
// limit.
type Rlimit struct {
	Resource   int
	Soft, Hard uint64
}

// Own are the service's own attributes, which every launch has that names no
// others. Callers who are not root may not have more than these.
type Own struct {
	Nice        int
	OOMScoreAdj int
	// HardLimits are the hard resource limits, by number; one that is not
	// there cannot be told.
	HardLimits map[int]uint64
}

// noLimit is RLIM_INFINITY.
const noLimit = 1<<64 - 1

// rlimits are the resources of setrlimit(2), by their numbers on the
// architectures that Go has for Linux, MIPS apart.
var rlimits = map[string]int{
	"cpu": 0, "fsize": 1, "data": 2, "stack": 3, "core": 4, "rss": 5, "nproc": 6, "nofile": 7, "memlock": 8,
	"as": 9, "locks": 10, "sigpending": 11, "msgqueue": 12, "nice": 13, "rtprio": 14, "rttime": 15,
}

// attributes settles what a launch says of the process itself.
func (m *Manager) attributes(c Caller, req api.LaunchRequest, l *Launch) error {
	root := c.UID == 0
	l.NoNewPrivs, l.CwdNearest = req.NoNewPrivs, req.CwdPolicy == api.CwdNearest
	l.Nice, l.OOMScoreAdj = req.Nice, req.OOMScoreAdj
	if req.Umask != "" {
		n, err := strconv.ParseUint(req.Umask, 8, 32)
		if err != nil || n > 0o777 {
			return api.Errorf(api.CodeBadRequest, "umask is %q, not an octal number from 0 to 0777", req.Umask)
		}
		mask := int(n)
		l.Umask = &mask
	}
	if n := req.Nice; n != nil {
		if err := bounded("nice", *n, -20, 19, max(0, m.cfg.Own.Nice), root); err != nil {
			return err
		}
	}
	if n := req.OOMScoreAdj; n != nil {
		if err := bounded("oom_score_adj", *n, -1000, 1000, max(0, m.cfg.Own.OOMScoreAdj), root); err != nil {
			return err
		}
	}
	var err error
	l.Rlimits, err = m.limits(req.Rlimits, root)
	return err
}

// bounded refuses a number that the kernel does not know, or that only root may
// have.
func bounded(name string, n, least, most, unprivileged int, root bool) error {
	switch {
	case n < least || n > most:
		return api.Errorf(api.CodeBadRequest, "%s is %d, not between %d and %d", name, n, least, most)
	case n < unprivileged && !root:
		return api.Errorf(api.CodeForbidden, "%s is %d: only root may go below %d", name, n, unprivileged)
	}
	return nil
}

func (m *Manager) limits(want map[string]api.Rlimit, root bool) ([]Rlimit, error) {
	var out []Rlimit
	for name, w := range want {
		number, ok := rlimits[name]
		if !ok {
			return nil, api.Errorf(api.CodeBadRequest, "there is no resource limit %q", name).
				WithRemedy("the names are those of setrlimit(2), in lower case: %s", strings.Join(limitNames(), ", "))
		}
		if w.Soft < -1 || w.Hard < -1 {
			return nil, api.Errorf(api.CodeBadRequest, "rlimits.%s is %d:%d, not numbers from 0 on, nor -1 for none", name, w.Soft, w.Hard)
		}
		r := Rlimit{Resource: number, Soft: uint64(w.Soft), Hard: uint64(w.Hard)} // -1 is noLimit
		if r.Soft > r.Hard {
			return nil, api.Errorf(api.CodeBadRequest, "rlimits.%s: the soft limit is above the hard one", name)
		}
		if own, ok := m.cfg.Own.HardLimits[number]; ok && r.Hard > own && !root {
			return nil, api.Errorf(api.CodeForbidden, "rlimits.%s: only root may raise the hard limit above %s", name, limitText(own)).
				WithRemedy("ask for at most that, or raise the service's own limit")
		}
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b Rlimit) int { return a.Resource - b.Resource })
	return out, nil
}

func limitText(n uint64) string {
	if n == noLimit {
		return "unlimited"
	}
	return strconv.FormatUint(n, 10)
}

func limitNames() []string {
	names := make([]string, 0, len(rlimits))
	for n := range rlimits {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}
