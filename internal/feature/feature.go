package feature

import (
	"errors"
	"fmt"
	"sync"
)

// Feature is one thing that a kernel may be able to do.
type Feature string

// The features, oldest first.
const (
	TrustedXattr     Feature = "trusted xattr on a cgroup"
	PidfdSendSignal  Feature = "pidfd_send_signal"
	PidfdOpen        Feature = "pidfd_open"
	PidfdWait        Feature = "waitid(P_PIDFD)"
	UserXattr        Feature = "user xattr on a cgroup"
	CloneIntoCgroup  Feature = "clone3(CLONE_INTO_CGROUP)"
	CgroupKill       Feature = "cgroup.kill"
	PeerPidfd        Feature = "SO_PEERPIDFD"
	PidfsInode       Feature = "pidfs inode"
	PidfdSignalFlags Feature = "pidfd_send_signal flags"
	PidfdInfo        Feature = "PIDFD_GET_INFO"
	PidfdInfoCgroup  Feature = "PIDFD_GET_INFO cgroup id"
)

// A probe tries one feature. dir is a cgroup in which it may make others.
type probe struct {
	feature Feature
	since   string // the Linux that brought it
	cgroup  bool   // it needs dir
	try     func(dir string) error
}

func probes() []probe {
	return []probe{
		{TrustedXattr, "3.7", true, tryTrustedXattr},
		{PidfdSendSignal, "5.1", false, withSelf(trySendSignal)},
		{PidfdOpen, "5.3", false, withSelf(func(int) error { return nil })},
		{PidfdWait, "5.4", false, withSelf(tryWait)},
		{UserXattr, "5.7", true, tryUserXattr},
		{CloneIntoCgroup, "5.7", true, tryClone},
		{CgroupKill, "5.14", true, tryKill},
		{PeerPidfd, "6.5", false, tryPeerPidfd},
		{PidfsInode, "6.9", false, withSelf(tryInode)},
		{PidfdSignalFlags, "6.9", false, withSelf(trySignalFlags)},
		{PidfdInfo, "6.13", false, withSelf(tryInfo)},
		{PidfdInfoCgroup, "6.13", false, withSelf(tryInfoCgroup)},
	}
}

// All lists the features, oldest first.
func All() []Feature {
	var all []Feature
	for _, p := range probes() {
		all = append(all, p.feature)
	}
	return all
}

// ErrNotSupported is what every conclusive no is, for errors.Is.
var ErrNotSupported = errors.New("not supported")

// UnsupportedError is a conclusive no.
type UnsupportedError struct {
	Feature Feature
	Since   string // the Linux that brought it
	Err     error  // what trying it gave
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("%s not supported (requires Linux >= %s): %v", e.Feature, e.Since, e.Err)
}

// Is makes it ErrNotSupported.
func (e *UnsupportedError) Is(target error) bool { return target == ErrNotSupported }

// Unwrap returns what trying it gave.
func (e *UnsupportedError) Unwrap() error { return e.Err }

// Set remembers what was found out. It is safe for concurrent use.
type Set struct {
	dir   string
	mu    sync.Mutex
	known map[Feature]error
}

// New makes a Set. cgroupDir is a cgroup v2 directory in which child cgroups
// may be made for a moment; empty: features of cgroups cannot be told.
func New(cgroupDir string) *Set {
	return &Set{dir: cgroupDir, known: make(map[Feature]error)}
}

// errNoDir tells that a feature of cgroups was asked for without a place to try.
var errNoDir = errors.New("no cgroup to try it in")

// Check tells whether the feature is there: see the package for what the error
// means. It tries once, and again only when it could not be told.
func (s *Set) Check(f Feature) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err, ok := s.known[f]; ok {
		return err
	}
	for _, p := range probes() {
		if p.feature == f {
			return s.run(p)
		}
	}
	return fmt.Errorf("probe %q: unknown feature", f)
}

func (s *Set) run(p probe) error {
	if p.cgroup && s.dir == "" {
		return fmt.Errorf("probe %s: %w", p.feature, errNoDir)
	}
	err := p.try(s.dir)
	var no *absence
	switch {
	case err == nil:
	case errors.As(err, &no):
		err = &UnsupportedError{p.feature, p.since, no.err}
	default:
		return fmt.Errorf("probe %s: %w", p.feature, err)
	}
	s.known[p.feature] = err
	return err
}

// absence marks an error that says conclusively: not here.
type absence struct{ err error }

func (a *absence) Error() string { return a.err.Error() }

// absent marks err as conclusive when it is one of those errnos.
func absent(err error, conclusive ...error) error {
	for _, c := range conclusive {
		if errors.Is(err, c) {
			return &absence{err}
		}
	}
	return err
}
