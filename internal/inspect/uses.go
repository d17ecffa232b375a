//go:build linux

package inspect

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"pinfold.dev/internal/sys"
	"pinfold.dev/pidfd"
)

// Use is one way in which a process uses a directory.
type Use struct {
	How  string // cwd, root, exe, open or map
	Path string
}

// What is told of one process, and of what could not be looked at of it, is
// bounded: it may have a million descriptors.
const (
	mostUses   = 100
	mostDoubts = 20
)

// Uses finds out how processes use a directory.
type Uses struct {
	dir   string
	here  places // of our own mount namespace
	mnt   uint64 // that
	where []spot // of dir
	on    map[device]bool
	proc  bool
}

// NewUses makes one for a directory, an absolute path. Its symbolic links are
// followed, also where what they lead to is there no more: the kernel tells the
// paths that processes use without any.
func NewUses(dir string) (*Uses, error) {
	u := &Uses{proc: sys.ReadHere().Proc}
	if !strings.HasPrefix(dir, "/") {
		return nil, fmt.Errorf("look who uses %q: it is no absolute path", dir)
	}
	real, err := resolve(dir)
	if err != nil {
		return nil, fmt.Errorf("look who uses %s: %w", dir, err)
	}
	u.dir = strings.TrimRight(real, "/")
	if u.here, err = readPlaces("/proc/self"); err != nil {
		return nil, fmt.Errorf("look who uses %s: %w", dir, err)
	}
	if u.mnt, err = sys.InoAt(sys.AtFDCWD, "/proc/self/ns/mnt"); err != nil {
		return nil, fmt.Errorf("look who uses %s: %w", dir, err)
	}
	u.where = u.here.below(real)
	u.on = devices(real, u.where)
	return u, nil
}

// errNotOurs tells that /proc shows another PID namespace.
var errNotOurs = errors.New("/proc is not that of our PID namespace")

// Of tells how a process uses the directory: its working directory, its root, its
// program, open and mapped files, of all its threads. One that has ended uses
// nothing. An error says what could not be looked at: it may use the directory.
func (u *Uses) Of(ctx context.Context, h *pidfd.Handle) ([]Use, error) {
	if !u.proc {
		return nil, errNotOurs
	}
	l := &look{Uses: u, pid: h.PID(), names: u.here}
	if over, err := h.Exited(); err != nil || over {
		return nil, err
	}
	err := l.process(ctx)
	if over, xerr := h.Exited(); xerr != nil || over { // its number may be another's by now
		return nil, xerr
	}
	return l.uses, err
}

// look is one process being looked at.
type look struct {
	*Uses
	pid   int
	same  bool   // it is in our mount namespace
	names places // what paths mean to it
	uses  []Use
	known map[Use]bool
}

func (l *look) process(ctx context.Context) error {
	base := "/proc/" + strconv.Itoa(l.pid) + "/task"
	tids, err := os.ReadDir(base)
	if err != nil {
		return unreadable("task", err)
	}
	var errs []error
	first := 0 // of those that live
	for _, t := range tids {
		if err := ctx.Err(); err != nil {
			return err
		}
		tid, err := strconv.Atoi(t.Name())
		if err != nil {
			continue
		}
		dir := base + "/" + t.Name()
		if b, err := sys.ReadFileAt(sys.AtFDCWD, dir+"/stat"); err != nil || dead(b) {
			continue
		}
		if err := l.place(dir); err != nil {
			errs = upTo(errs, err)
			continue
		}
		errs = upTo(errs, l.thread(ctx, dir, tid, first))
		if first == 0 {
			first = tid
		}
	}
	return errors.Join(errs...)
}

// place finds out what paths mean to a thread, which may have a mount namespace
// to itself.
func (l *look) place(dir string) error {
	mnt, err := sys.InoAt(sys.AtFDCWD, dir+"/ns/mnt")
	if err != nil {
		return unreadable("ns/mnt", err)
	}
	if l.same = mnt == l.mnt; l.same {
		l.names = l.here
		return nil
	}
	if l.names, err = readPlaces(dir); err != nil {
		return unreadable("mountinfo", err)
	}
	root, err := os.Readlink(dir + "/root")
	l.names = l.names.under(root)
	return unreadable("root", err)
}

// thread looks at what a thread has, as far as it does not share it with the one
// that was looked at first (0: it is that).
func (l *look) thread(ctx context.Context, dir string, tid, first int) error {
	var errs []error
	if first == 0 || !sys.SameFS(first, tid) {
		errs = append(errs, l.link(dir, "cwd", "cwd"), l.link(dir, "root", "root"))
	}
	if first == 0 {
		errs = append(errs, l.link(dir, "exe", "exe"), l.maps(ctx, dir))
	}
	if first == 0 || !sys.SameFiles(first, tid) {
		errs = append(errs, l.files(ctx, dir))
	}
	return errors.Join(errs...)
}

// dead tells whether a stat file is of one that has ended.
func dead(stat []byte) bool {
	s, err := sys.ParseStat(stat)
	return err == nil && (s.State == 'Z' || s.State == 'X')
}

func (l *look) link(base, name, how string) error {
	to, err := os.Readlink(base + "/" + name)
	if err != nil {
		return unreadable(name, err)
	}
	if l.note(how, to) || !strings.HasPrefix(to, "/") {
		return nil
	}
	return l.doubt(base+"/"+name, name)
}

// doubt is an error where a path means nothing: what it is on is mounted where
// nobody can see it (any more), and is of a file system that the directory is on.
func (l *look) doubt(link, what string) error {
	id, major, minor, err := sys.MountAt(link)
	if err != nil {
		return unreadable(what, err)
	}
	if id == 0 || l.names.has(id) || !l.on[device{major, minor}] {
		return nil
	}
	return fmt.Errorf("%s is on a mount that is not seen from here", what)
}

func (l *look) files(ctx context.Context, base string) error {
	var errs []error
	err := eachName(ctx, base+"/fd", func(name string) (more bool) {
		errs = upTo(errs, l.link(base, "fd/"+name, "open"))
		return len(l.uses) < mostUses
	})
	return errors.Join(append(errs, unreadable("fd", err))...)
}

// mostLine is more than a line of maps has: a path may be longer than PATH_MAX.
const mostLine = 1 << 20

// maps reads the files that are mapped: the sixth field, which may hold spaces.
func (l *look) maps(ctx context.Context, base string) error {
	f, err := os.Open(base + "/maps")
	if err != nil {
		return unreadable("maps", err)
	}
	defer f.Close()
	var errs []error
	last := ""
	lines := bufio.NewScanner(f)
	for lines.Buffer(nil, mostLine); lines.Scan(); {
		if err := ctx.Err(); err != nil {
			return unreadable("maps", err)
		}
		line := lines.Text()
		at := strings.IndexByte(line, '/')
		if at < 0 || last == line[at:] {
			continue
		}
		last = line[at:]
		if l.note("map", strings.ReplaceAll(last, `\012`, "\n")) || l.note("map", last) { // newlines are escaped, and what looks so is not
			continue
		}
		if err := l.doubt(base+"/../../map_files/"+addresses(line), "map"); !errors.Is(err, fs.ErrPermission) { // they need CAP_SYS_ADMIN, see proc(5)
			errs = upTo(errs, err)
		}
	}
	return errors.Join(append(errs, unreadable("maps", lines.Err()))...)
}

// upTo adds an error, each once and not without end.
func upTo(errs []error, err error) []error {
	switch {
	case err == nil || len(errs) > mostDoubts:
		return errs
	case slices.ContainsFunc(errs, func(e error) bool { return e.Error() == err.Error() }):
		return errs
	case len(errs) == mostDoubts:
		err = errMore
	}
	return append(errs, err)
}

var errMore = errors.New("and more that could not be looked at")

// addresses are those of a line of maps as map_files has them: without leading
// zeros.
func addresses(line string) string {
	from, rest, _ := strings.Cut(line, "-")
	to, _, _ := strings.Cut(rest, " ")
	short := func(s string) string { return strings.TrimLeft(s[:max(0, len(s)-1)], "0") + s[max(0, len(s)-1):] }
	return short(from) + "-" + short(to)
}

// note keeps a use, and tells whether it is one.
func (l *look) note(how, path string) bool {
	if !strings.HasPrefix(path, "/") { // socket:[12], anon_inode:…, pipe:[12]
		return false
	}
	if real, ok := strings.CutSuffix(path, " (deleted)"); !l.within(path) && !(ok && l.within(real)) {
		return false // that is what the kernel adds, and what a name may end in: it is taken for both
	}
	if len(l.uses) >= mostUses {
		return true
	}
	if l.known == nil {
		l.known = map[Use]bool{}
	}
	if u := (Use{how, path}); !l.known[u] {
		l.known[u] = true
		l.uses = append(l.uses, u)
	}
	return true
}

// within tells whether a path is the directory's, or below it.
func (l *look) within(path string) bool {
	return l.same && below(path, l.dir) || l.names.meets(path, l.where)
}

// unreadable says what could not be read. What is gone is no error: a descriptor
// that was closed meanwhile, or a thread that has ended.
func unreadable(what string, err error) error {
	if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return nil
	}
	var e *fs.PathError
	if errors.As(err, &e) {
		err = e.Err
	}
	return fmt.Errorf("read %s: %w", what, err)
}
