package sys

import (
	"bytes"
	"errors"
	"path"
	"strconv"
	"strings"
)

// MountEntry is a line of /proc/self/mountinfo, proc(5).
type MountEntry struct {
	ID           uint64
	Major, Minor uint32
	Root         string // what of the file system is mounted
	Path         string // where
	FSType       string
}

// ParseMountinfo parses /proc/self/mountinfo.
func ParseMountinfo(b []byte) ([]MountEntry, error) {
	var out []MountEntry
	for line := range bytes.Lines(b) {
		line = bytes.TrimSuffix(line, []byte("\n"))
		left, right, ok := bytes.Cut(line, []byte(" - "))
		f, g := bytes.Split(left, []byte(" ")), bytes.Split(right, []byte(" "))
		if !ok || len(f) < 6 {
			return nil, ErrParse
		}
		major, minor, ok := strings.Cut(string(f[2]), ":")
		x, err := strconv.ParseUint(major, 10, 32)
		y, err2 := strconv.ParseUint(minor, 10, 32)
		id, err3 := strconv.ParseUint(string(f[0]), 10, 64)
		if !ok || err != nil || err2 != nil || err3 != nil {
			return nil, ErrParse
		}
		out = append(out, MountEntry{
			ID: id, Major: uint32(x), Minor: uint32(y),
			Root: unescape(string(f[3])), Path: unescape(string(f[4])), FSType: unescape(string(g[0])),
		})
	}
	return out, nil
}

// unescape undoes the kernel's octal escapes: \040 for a space, and so on.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// Cgroup2Candidates orders the mounts of cgroup v2 for a process whose own
// cgroup is own (the 0:: line): first those that show that cgroup, of these
// first those that show most of the tree. A mount that another hides is left
// out. Unified is false where cgroup v1 hierarchies are mounted too.
func Cgroup2Candidates(mounts []MountEntry, own string) (list []MountEntry, unified bool) {
	unified = true
	last := make(map[string]int, len(mounts))
	for i, m := range mounts {
		last[m.Path] = i
		unified = unified && m.FSType != "cgroup"
	}
	rank := func(m MountEntry) int {
		if _, err := m.Dir(own); err != nil {
			return 1 << 20
		}
		return len(m.Root)
	}
	for i, m := range mounts {
		if m.FSType != "cgroup2" || last[m.Path] != i {
			continue
		}
		at := len(list)
		for at > 0 && rank(list[at-1]) > rank(m) {
			at--
		}
		list = append(list[:at], append([]MountEntry{m}, list[at:]...)...)
	}
	return list, unified
}

// ErrOutside tells that a cgroup is not below what is mounted: it belongs to
// another cgroup namespace, or another part of the tree.
var ErrOutside = errors.New("outside what is mounted")

// Dir is the absolute directory of a cgroup, given as on a 0:: line. It returns
// ErrOutside for one that this mount does not show.
func (m MountEntry) Dir(cgroup string) (string, error) {
	if has(m.Root, "..") || has(cgroup, "..") || !strings.HasPrefix(cgroup, "/") {
		return "", ErrOutside
	}
	if m.Root == "/" {
		return path.Join(m.Path, cgroup), nil
	}
	rel, ok := strings.CutPrefix(cgroup, m.Root)
	if !ok || (rel != "" && rel[0] != '/') {
		return "", ErrOutside
	}
	return path.Join(m.Path, rel), nil
}

// has tells whether a path has such an element.
func has(p, element string) bool {
	for e := range strings.SplitSeq(p, "/") {
		if e == element {
			return true
		}
	}
	return false
}
