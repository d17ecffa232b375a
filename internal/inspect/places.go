package inspect

import (
	"errors"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"pinfold.dev/internal/sys"
)

// spot is a place in a file system, whatever it is mounted at.
type spot struct {
	major, minor uint32
	path         string
}

// places say what of which file system is at a path.
type places []sys.MountEntry

// mostPlaces bounds, in bytes, what is read of a process's mounts: whoever has a
// user namespace may make 100,000, with paths as long as he likes.
const mostPlaces = 32 << 20

var errManyPlaces = errors.New("there are more mounts than are looked at")

// readPlaces reads those that a process or thread sees, by its directory in /proc.
func readPlaces(dir string) (places, error) { return readFew(dir, mostPlaces) }

func readFew(dir string, most int64) (places, error) {
	f, err := os.Open(dir + "/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > most {
		return nil, errManyPlaces
	}
	return sys.ParseMountinfo(b)
}

// at is the spot of a path: what was mounted last of those that are nearest.
func (p places) at(name string) (spot, bool) {
	best := -1
	for i, m := range p {
		if below(name, strings.TrimSuffix(m.Path, "/")) && (best < 0 || len(m.Path) >= len(p[best].Path)) {
			best = i
		}
	}
	if best < 0 {
		return spot{}, false
	}
	m := p[best]
	rel := strings.TrimPrefix(name, strings.TrimSuffix(m.Path, "/"))
	return spot{m.Major, m.Minor, path.Join("/", m.Root, rel)}, true
}

// below are the spots that a directory shows: its own, and those of what is
// mounted below it.
func (p places) below(dir string) []spot {
	var out []spot
	if s, ok := p.at(dir); ok {
		out = append(out, s)
	}
	for _, m := range p {
		if m.Path != dir && below(m.Path, strings.TrimRight(dir, "/")) {
			out = append(out, spot{m.Major, m.Minor, path.Join("/", m.Root)})
		}
	}
	return out
}

// meets tells whether a path is at or below one of the spots.
func (p places) meets(name string, spots []spot) bool {
	s, ok := p.at(name)
	if !ok {
		return false
	}
	for _, one := range spots {
		if s.major == one.major && s.minor == one.minor && below(s.path, strings.TrimSuffix(one.path, "/")) {
			return true
		}
	}
	return false
}

// below tells whether a path is a directory's, or below it.
func below(path, dir string) bool {
	rest, ok := strings.CutPrefix(path, dir)
	return ok && (rest == "" || rest[0] == '/')
}

// has tells whether a mount is among them.
func (p places) has(id uint64) bool {
	return slices.ContainsFunc(p, func(m sys.MountEntry) bool { return m.ID == id })
}

// under are the places of a process whose root is that: mountinfo tells them from
// there, /proc/pid/cwd and the like from the top of the mount namespace.
func (p places) under(root string) places {
	for i := range p {
		p[i].Path = path.Join(root, p[i].Path)
	}
	return p
}

// device is one of a file system.
type device struct{ major, minor uint32 }

// devices are those that the spots, and the directory itself, are on.
func devices(dir string, spots []spot) map[device]bool {
	out := map[device]bool{}
	for _, s := range spots {
		out[device{s.major, s.minor}] = true
	}
	if _, major, minor, err := sys.MountAt(dir); err == nil { // mountinfo names another one for some file systems
		out[device{major, minor}] = true
	}
	return out
}
