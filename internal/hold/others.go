package hold

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"

	"pinfold.dev/api"
	"pinfold.dev/cgroup"
	"pinfold.dev/internal/ownfile"
)

// otherDirs are the names of instances' own directories, see makeParent.
var otherDirs = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^pinfold-([0-9a-f]{8})$`) })

// placesOfOthers are directories beside our own in which other instances make
// turns' cgroups.
func (h *Host) placesOfOthers() (out []string) {
	if h.parent == nil {
		return nil
	}
	above := filepath.Dir(h.parent.Path())
	entries, _ := os.ReadDir(above)
	for _, e := range entries {
		if m := otherDirs().FindStringSubmatch(e.Name()); m != nil && m[1] != h.instance {
			out = append(out, filepath.Join(above, e.Name()))
		}
	}
	return out
}

// leftByOthers tells of turns of instances beside ours whose service does not run.
// Nothing of them is touched.
func (h *Host) leftByOthers() (out []api.LeftOver) {
	for _, place := range h.placesOfOthers() {
		entries, _ := os.ReadDir(place)
		for _, e := range entries {
			m := turnDirs().FindStringSubmatch(e.Name())
			if m == nil {
				continue
			}
			d, err := cgroup.Open(filepath.Join(place, e.Name()))
			if err != nil {
				continue // gone meanwhile
			}
			if why := otherWhy(d, m[1]); why != "" {
				out = append(out, api.LeftOver{Kind: api.LeftOverCgroup, Path: d.Path(), Turn: m[1], Why: why})
			}
			d.Close()
		}
	}
	return out
}

// otherWhy says of a turn's cgroup whose it is, and what to do; empty: its service
// runs and looks after it.
func otherWhy(d *cgroup.Dir, turn string) string {
	nonce, err := d.Nonce()
	mark, ok := markOf(nonce)
	if err != nil || !ok {
		return "it bears no mark of a service, so it is left alone"
	}
	live, lerr := d.Populated()
	end := fmt.Sprintf("end what is in it with: echo 1 > %s/cgroup.kill", d.Path())
	if lerr == nil && !live {
		end = "it is empty: rmdir it"
	}
	dir := runtimeDirOf(d, turn)
	if dir == "" {
		return fmt.Sprintf("it is of another instance, of the mark %s, and has no keeper that tells where that one's runtime directory is; "+
			"start the service of that mark, or, if there is none and nobody wants the turn, %s", mark, end)
	}
	switch now := serviceOf(dir, mark); now {
	case otherRuns:
		return ""
	case otherStopped:
		return fmt.Sprintf("it is of another instance, of the mark %s, whose service does not run: start it again, with --runtime-dir %s", mark, dir)
	default:
		return fmt.Sprintf("it is of another instance, of the mark %s, whose runtime directory %s %s: unless it was moved, no service ends it; if nobody wants it, %s", mark, dir, now, end)
	}
}

// runtimeDirOf is where the keeper of a turn says that it was begun from: what root,
// or the user of a user's own service, has started there. Empty: nobody says.
func runtimeDirOf(d *cgroup.Dir, turn string) string {
	home, err := d.Open("keeper")
	if err != nil {
		return ""
	}
	defer home.Close()
	pids, err := home.Pids()
	if err != nil {
		return ""
	}
	for _, p := range pids {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID))
		if err != nil {
			continue
		}
		_, rest, ok := bytes.Cut(line, []byte("\x00--dir\x00"))
		dir, _, _ := strings.Cut(string(rest), "\x00")
		if above := filepath.Dir(dir); ok && filepath.IsAbs(dir) && filepath.Base(dir) == turn && filepath.Base(above) == "turns" {
			return filepath.Dir(above)
		}
	}
	return ""
}

// otherState is how the service of another runtime directory is.
type otherState string

const (
	otherRuns    otherState = "is used by a running service"
	otherStopped otherState = "is not used"
	otherGone    otherState = "is gone"
	otherAnew    otherState = "has another mark now, or none"
	otherUnknown otherState = "cannot be looked at"
)

// serviceOf looks whether a service runs on a directory, by its lock.
func serviceOf(dir, mark string) otherState {
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return otherGone
	}
	if said, err := readMark(dir); errors.Is(err, os.ErrPermission) {
		return otherUnknown
	} else if err != nil || said != mark {
		if h, err := readHome(dir); err != nil || h.Mark != mark {
			return otherAnew
		}
	}
	f, err := ownfile.Open(filepath.Join(dir, LockFile))
	if err != nil {
		return otherUnknown
	}
	defer f.Close()
	// Shared, and let go at once: a service that starts just now tries again.
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
	switch {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return otherRuns
	case err != nil:
		return otherUnknown
	}
	return otherStopped
}

// LockFile is the file in a runtime directory on which its service holds a lock,
// see flock(2).
const LockFile = "lock"
