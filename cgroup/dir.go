//go:build linux

package cgroup

import (
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys"
)

// Dir is an open cgroup directory. It is safe for concurrent use.
type Dir struct {
	path   string
	id     uint64
	fd     *sys.FD
	mu     sync.Mutex
	events *sys.FD // cgroup.events, held once it was read
}

// Open opens the cgroup at an absolute path.
func Open(path string) (*Dir, error) {
	return openAt(sys.AtFDCWD, path, path)
}

// openAt opens name beneath dirfd as the cgroup at path.
func openAt(dirfd int, name, path string) (*Dir, error) {
	fd, err := sys.Openat(dirfd, name, sys.ODirectory|sys.ONofollow)
	if err != nil {
		return nil, fmt.Errorf("open cgroup %s: %w", path, err)
	}
	d := &Dir{path: path, fd: sys.NewFD(fd, path)}
	if err = isCgroup2(fd); err == nil {
		d.id, err = sys.Ino(fd)
	}
	if err != nil {
		_ = d.Close()
		return nil, fmt.Errorf("open cgroup %s: %w", path, err)
	}
	return d, nil
}

// errNotCgroup2 tells that a directory is not one of cgroup v2.
var errNotCgroup2 = errors.New("not a cgroup v2 directory")

func isCgroup2(fd int) error {
	magic, err := sys.FsType(fd)
	if err == nil && magic != sys.Cgroup2Magic {
		err = errNotCgroup2
	}
	return err
}

// OpenVerified opens the cgroup at path if it is the one that was recorded by
// its kernfs id, of this boot, and the nonce in its extended attribute (empty:
// none was recorded). The Dir is nil unless the verdict is owned. Gone: nothing
// is at that path; foreign: another cgroup is; unverifiable comes with an error
// that says what could not be read.
func OpenVerified(path string, id uint64, nonce string) (*Dir, api.Verdict, error) {
	d, err := Open(path)
	if errors.Is(err, syscall.ENOENT) {
		return nil, api.VerdictGone, nil
	}
	if err != nil {
		return nil, api.VerdictUnverifiable, err
	}
	v, err := d.verify(id, nonce)
	if v != api.VerdictOwned {
		_ = d.Close()
		return nil, v, err
	}
	return d, v, nil
}

func (d *Dir) verify(id uint64, nonce string) (api.Verdict, error) {
	if id == 0 {
		return api.VerdictUnverifiable, fmt.Errorf("verify cgroup %s: no id recorded", d.path)
	}
	if d.id != id {
		return api.VerdictForeign, nil
	}
	if nonce == "" {
		return api.VerdictOwned, nil
	}
	have, err := d.Nonce()
	if err != nil {
		return api.VerdictUnverifiable, err
	}
	if have != nonce {
		return api.VerdictForeign, nil
	}
	return api.VerdictOwned, nil
}

// Make makes the cgroup at an absolute path and opens it. That it exists is an
// error (EEXIST).
func Make(dir string) (*Dir, error) {
	parent, err := Open(path.Dir(dir))
	if err != nil {
		return nil, fmt.Errorf("make cgroup %s: %w", dir, err)
	}
	defer parent.Close()
	return parent.Make(path.Base(dir))
}

// Make makes a child cgroup and opens it. That it exists is an error (EEXIST).
// EAGAIN: cgroup.max.descendants or cgroup.max.depth forbids more.
func (d *Dir) Make(name string) (*Dir, error) {
	child := path.Join(d.path, name)
	if err := checkName(name); err != nil {
		return nil, fmt.Errorf("make cgroup %s: %w", child, err)
	}
	var out *Dir
	err := d.fd.Use(func(fd int) error {
		if err := sys.Mkdirat(fd, name, 0o755); err != nil {
			return fmt.Errorf("make cgroup %s: %w", child, err)
		}
		var err error
		if out, err = openAt(fd, name, child); err != nil {
			_ = sys.Rmdirat(fd, name)
		}
		return err
	})
	return out, err
}

// Open opens a child cgroup.
func (d *Dir) Open(name string) (*Dir, error) {
	child := path.Join(d.path, name)
	if err := checkName(name); err != nil {
		return nil, fmt.Errorf("open cgroup %s: %w", child, err)
	}
	var out *Dir
	err := d.fd.Use(func(fd int) (err error) { out, err = openAt(fd, name, child); return })
	return out, err
}

// checkName refuses what is not one element of a path.
func checkName(name string) error {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\n\x00") {
		return fmt.Errorf("name %q: %w", name, syscall.EINVAL)
	}
	return nil
}

// Path is the path it was opened with.
func (d *Dir) Path() string { return d.path }

// ID is its 64-bit kernfs id: never used twice within a boot.
func (d *Dir) ID() uint64 { return d.id }

// FD is its descriptor, for CLONE_INTO_CGROUP; it stays the Dir's, so the Dir
// must not be closed before the clone is done. -1: it is closed.
func (d *Dir) FD() int {
	n := -1
	_ = d.fd.Use(func(fd int) error { n = fd; return nil })
	return n
}

// Close closes the descriptors; it leaves the cgroup alone. Closing again does
// nothing.
func (d *Dir) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.events != nil {
		_ = d.events.Close()
	}
	return d.fd.Close()
}

// Add moves the process, with all its threads, into the cgroup. EBUSY: it has
// controllers for its children, so it may hold none. A kernel that refuses
// because we may not write the common ancestor says EACCES.
func (d *Dir) Add(pid int) error {
	if pid <= 0 {
		return fmt.Errorf("add process %d to cgroup %s: %w", pid, d.path, syscall.EINVAL)
	}
	if err := d.write("cgroup.procs", strconv.Itoa(pid)); err != nil {
		return fmt.Errorf("add process %d to cgroup %s: %w", pid, d.path, err)
	}
	return nil
}

func (d *Dir) read(name string) ([]byte, error) {
	var b []byte
	err := d.fd.Use(func(fd int) (err error) { b, err = sys.ReadFileAt(fd, name); return })
	return b, err
}

func (d *Dir) write(name, data string) error {
	return d.fd.Use(func(fd int) error { return sys.WriteFileAt(fd, name, data) })
}

// removed tells whether an error means that the cgroup is no longer there.
func removed(err error) bool {
	return errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENODEV)
}
