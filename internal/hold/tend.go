package hold

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys"
)

// Tend sees to it that the runtime directory is there, is this service's, and has
// its mark: whoever has removed or emptied it would otherwise have made strangers
// of all live turns for the next service. lock makes the directory where there is
// none, and holds its lock. What was found is told; an error says that the
// directory is not this service's any more, and nothing was written into it.
func (h *Host) Tend(lock func() error) (found []string, err error) {
	h.tending.Lock()
	defer h.tending.Unlock()
	defer func() { h.noteTended(found, err) }()
	dir := h.cfg.RuntimeDir
	now, err := sys.PlaceOf(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		found = append(found, fmt.Sprintf("the runtime directory %s was removed under the running service, which makes it anew", dir))
	case err != nil:
		return nil, fmt.Errorf("look at the runtime directory: %w", err)
	case !now.Same(h.place):
		if err := h.othersHome(dir); err != nil {
			return nil, err
		}
		found = append(found, fmt.Sprintf("another directory is at %s; the running service goes on with that", dir))
	}
	if err := lock(); err != nil {
		return nil, err
	}
	if err := os.Mkdir(filepath.Join(dir, "turns"), 0o700); err == nil && len(found) == 0 {
		found = append(found, fmt.Sprintf("the directory of all records, %s/turns, was removed under the running service, which makes it anew", dir))
	} else if err != nil && !errors.Is(err, fs.ErrExist) {
		return found, fmt.Errorf("make the directory of all records: %w", err)
	}
	if now, err = sys.PlaceOf(dir); err != nil {
		return found, fmt.Errorf("look at the runtime directory: %w", err)
	}
	h.place = now
	if said, serr := readMark(dir); serr != nil || said != h.instance {
		found = append(found, fmt.Sprintf("the mark of this instance, %s, is written into %s again: it was lost there", h.instance, dir))
	}
	if err := (instance{mark: h.instance}).write(dir, h.boot, now); err != nil {
		return found, fmt.Errorf("write the mark of this instance: %w", err)
	}
	return found, nil
}

// othersHome says that a directory which came to the place of ours is another
// instance's: it has its mark, or records.
func (h *Host) othersHome(dir string) error {
	const what = "another directory is at %s, which %s: the records of live turns are nowhere; they are held, and can be ended, as long as this service runs; have that directory away, or end the turns"
	if m, err := readHome(dir); err == nil && m.Mark != h.instance {
		return fmt.Errorf(what, dir, "has another instance's mark, "+m.Mark)
	} else if err == nil {
		return nil // a copy of ours
	}
	if m, err := readMark(dir); err == nil && m != h.instance {
		return fmt.Errorf(what, dir, "has another instance's mark, "+m)
	} else if err == nil {
		return nil
	}
	if entries, _ := os.ReadDir(filepath.Join(dir, "turns")); len(entries) > 0 {
		return fmt.Errorf(what, dir, "has records of no mark")
	}
	return nil
}

// noteTended keeps what is to be told of the runtime directory, for Info.
func (h *Host) noteTended(found []string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.homeBad = err
	for _, f := range found {
		if !slices.Contains(h.marked, f) && len(h.marked) < 16 {
			h.marked = append(h.marked, f)
		}
	}
}

// checkHome is how the runtime directory is.
func (h *Host) checkHome() (out []api.HostCheck) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.homeBad != nil {
		out = append(out, api.HostCheck{Name: "runtime directory", Detail: h.homeBad.Error(),
			Remedy: "the service looks again within a minute, and with `pinfold doctor --records`"})
	}
	for _, n := range h.marked {
		out = append(out, api.HostCheck{Name: "note", Detail: n})
	}
	return out
}

// How often a runtime directory that is not as it should be is looked at again, and
// how long a change is left to go on.
const (
	tendSettle = 100 * time.Millisecond
	tendLeast  = time.Second
	tendMost   = time.Minute
)

const tendMask = syscall.IN_DELETE | syscall.IN_MOVED_FROM | syscall.IN_DELETE_SELF | syscall.IN_MOVE_SELF | syscall.IN_ONLYDIR

// Guard calls disturbed when something goes from the runtime directory that the
// service rests on, and again while that says that not all is well. It wakes
// nobody as long as nothing happens. socket is the name of the service's, watched tells of a turn whether it is to have
// a record. It returns when ctx ends, or where there is no inotify(7).
func (h *Host) Guard(ctx context.Context, socket string, watched func(turn string) bool, disturbed func() (well bool)) error {
	fd, err := syscall.InotifyInit1(syscall.IN_CLOEXEC | syscall.IN_NONBLOCK)
	if err != nil {
		return os.NewSyscallError("inotify_init1", err)
	}
	f := os.NewFile(uintptr(fd), "inotify")
	defer f.Close()
	defer context.AfterFunc(ctx, func() { f.Close() })()
	w := homeWatch{fd: fd, dir: h.cfg.RuntimeDir, turns: map[int32]string{}}
	var again time.Duration
	var due time.Time // when it is looked again, whatever happens meanwhile; zero: all is well
	if !w.all(watched) {
		due = time.Now()
	}
	for buf := make([]byte, 16<<10); ctx.Err() == nil; {
		if err := f.SetReadDeadline(due); err != nil {
			return err
		}
		n, err := f.Read(buf)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
		case err != nil:
			return err
		case !w.disturbing(buf[:n], socket, watched):
			continue
		default:
			time.Sleep(tendSettle)
		}
		if ctx.Err() != nil {
			return nil
		}
		well := disturbed()
		w.all(watched)
		if again = min(max(2*again, tendLeast), tendMost); well {
			again = 0
		}
		if due = (time.Time{}); again > 0 {
			due = time.Now().Add(again)
		}
	}
	return nil
}

// homeWatch is what inotify tells of: the runtime directory, that of all turns, and
// each turn's, in which nothing but the record is looked after. For those there may be
// no room (fs.inotify.max_user_watches): a record alone is missed later then.
type homeWatch struct {
	fd    int
	dir   string
	turns map[int32]string // by watch
}

// all watches what there is; what is watched already stays so. False: the record of a
// turn has gone before.
func (w *homeWatch) all(watched func(turn string) bool) (well bool) {
	all := filepath.Join(w.dir, "turns")
	_, _ = syscall.InotifyAddWatch(w.fd, w.dir, tendMask|syscall.IN_MODIFY)
	_, _ = syscall.InotifyAddWatch(w.fd, all, tendMask|syscall.IN_CREATE)
	entries, _ := os.ReadDir(all)
	well = true
	for _, e := range entries {
		well = w.turn(e.Name(), watched) && well
	}
	return well
}

// turn watches a turn's directory for removals only: a record that is saved takes the
// place of the one before, which wakes nobody. False: the record has gone before.
func (w *homeWatch) turn(name string, watched func(turn string) bool) (well bool) {
	if !turnDirs().MatchString(name) {
		return true
	}
	dir := filepath.Join(w.dir, "turns", name)
	wd, err := syscall.InotifyAddWatch(w.fd, dir, syscall.IN_DELETE|syscall.IN_ONLYDIR)
	if err == nil {
		w.turns[int32(wd)] = name
	}
	_, err = os.Lstat(filepath.Join(dir, "record.json"))
	return !errors.Is(err, fs.ErrNotExist) || !watched(name)
}

// disturbing tells whether what inotify says concerns what the service rests on.
func (w *homeWatch) disturbing(b []byte, socket string, watched func(turn string) bool) bool {
	for len(b) >= syscall.SizeofInotifyEvent {
		wd, mask, size := int32(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint32(b[4:]), int(binary.NativeEndian.Uint32(b[12:]))
		end := min(len(b), syscall.SizeofInotifyEvent+size)
		name := strings.TrimRight(string(b[syscall.SizeofInotifyEvent:end]), "\x00")
		b = b[end:]
		of := w.turns[wd]
		switch {
		case mask&syscall.IN_IGNORED != 0:
			delete(w.turns, wd)
		case of != "":
			if name == "record.json" && watched(of) {
				return true
			}
		case mask&syscall.IN_CREATE != 0:
			if !w.turn(name, watched) {
				return true
			}
		case mask&(syscall.IN_DELETE_SELF|syscall.IN_MOVE_SELF|syscall.IN_Q_OVERFLOW) != 0:
			return true
		case name == markFile || name == homeFile || name == LockFile || name == "turns" || name == socket:
			return true
		case turnDirs().MatchString(name) && watched(name):
			return true
		}
	}
	return false
}
