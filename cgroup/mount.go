//go:build linux

package cgroup

import (
	"fmt"

	"pinfold.dev/internal/sys"
)

// ErrNone tells that there is no cgroup v2 mount on this host.
var ErrNone = sys.ErrNoCgroup2

// ErrOutside tells that a cgroup is not below what is mounted: it belongs to
// another cgroup namespace, or another part of the tree.
var ErrOutside = sys.ErrOutside

// Mount is where cgroup v2 is mounted.
type Mount struct {
	Path string // absolute; anywhere, /sys/fs/cgroup is only the custom
	Root string // the cgroup that is mounted there, as our cgroup namespace names it
	// Unified is false on hybrid hosts: where cgroup v1 hierarchies are mounted
	// beside it, which have the controllers then.
	Unified bool
}

// FindMount finds the cgroup v2 mount in /proc/self/mountinfo: of several, the
// one that shows our own cgroup and most of the tree. It makes sure by statfs(2)
// that this is what can be seen at its path.
func FindMount() (Mount, error) {
	m, unified, err := sys.FindCgroup2()
	if err != nil {
		return Mount{}, fmt.Errorf("find cgroup mount: %w", err)
	}
	return Mount{Path: m.Path, Root: m.Root, Unified: unified}, nil
}

// Own is the absolute directory of our own cgroup. It returns ErrOutside where
// the mount does not show it.
func (m Mount) Own() (string, error) {
	own, err := sys.OwnCgroup()
	if err != nil {
		return "", fmt.Errorf("find own cgroup: %w", err)
	}
	return m.Dir(own)
}

// Dir is the absolute directory of a cgroup that is given as on a 0:: line of
// /proc/pid/cgroup. It returns ErrOutside where the mount does not show it.
func (m Mount) Dir(cgroup string) (string, error) {
	dir, err := sys.MountEntry{Path: m.Path, Root: m.Root}.Dir(cgroup)
	if err != nil {
		return "", fmt.Errorf("find cgroup %s below %s: %w", cgroup, m.Path, err)
	}
	return dir, nil
}
