package reaper

import (
	"bytes"
	"errors"
	"strconv"
	"strings"
	"syscall"

	"pinfold.dev/internal/fault"
	"pinfold.dev/internal/sys"
	"pinfold.dev/internal/wire"
)

// work is the cgroup below which launches get their leaves.
type work struct {
	bare   bool // there is none
	path   string
	turn   string // the turn's cgroup, work's parent, as /proc/pid/cgroup has it; "" until it is asked for
	dir    int
	events int // its cgroup.events
	freeze int // its cgroup.freeze, or -1 (before Linux 5.2)
}

// hold takes the turn's cgroup. The same one may be told again.
func (k *keeper) hold(h *wire.Hold) *wire.Error {
	if k.work != nil && (k.work.path != h.Work || k.work.bare != h.Bare) {
		return refusal(wire.ErrProtocol, "holds already "+k.work.path)
	}
	if h.Bare && k.orphans != nil {
		return refusalOf(wire.ErrInternal, "become a subreaper", "", k.orphans)
	}
	if k.work == nil && h.Bare {
		k.work = &work{bare: true, dir: -1, events: -1, freeze: -1}
	} else if k.work == nil {
		w, err := openWork(h.Work)
		if err != nil {
			return refusalOf(wire.ErrCgroup, "open "+h.Work, h.Work, err)
		}
		k.work = w
	}
	k.gate, k.spools, k.outputMax = h.Gate, h.Spool, h.OutputMax
	fault.Point("hold.taken")
	k.checkOutput()
	return nil
}

func openWork(path string) (*work, error) {
	if !strings.HasPrefix(path, "/") {
		return nil, syscall.EINVAL
	}
	w := &work{path: path, events: -1, freeze: -1}
	var err error
	if w.dir, err = sys.Openat(sys.AtFDCWD, path, sys.ORdonly|sys.ODirectory); err != nil {
		return nil, err
	}
	typ, err := sys.FsType(w.dir)
	if err == nil && typ != sys.Cgroup2Magic {
		err = syscall.ENOTSUP
	}
	if err == nil {
		w.events, err = sys.Openat(w.dir, "cgroup.events", sys.ORdonly)
	}
	if err != nil {
		_ = sys.Close(w.dir)
		return nil, err
	}
	if w.freeze, err = sys.Openat(w.dir, "cgroup.freeze", sys.ORdonly); err != nil {
		w.freeze = -1
	}
	return w, nil
}

// turnCgroup is the cgroup of work's parent as a 0:: line would show it, by the
// mount that work is below.
func turnCgroup(work string) string {
	b, err := sys.ProcFile(0, "mountinfo")
	if err != nil {
		return ""
	}
	mounts, err := sys.ParseMountinfo(b)
	if err != nil {
		return ""
	}
	return cgroupBelow(mounts, work)
}

func cgroupBelow(mounts []sys.MountEntry, work string) string {
	best, found := "", -1
	for _, m := range mounts { // of two at one place the later hides the earlier
		rel, ok := strings.CutPrefix(work, strings.TrimSuffix(m.Path, "/"))
		if m.FSType != "cgroup2" || !ok || rel == "" || rel[0] != '/' || len(m.Path) < found {
			continue
		}
		best, found = strings.TrimSuffix(m.Root, "/")+rel, len(m.Path)
	}
	if i := strings.LastIndexByte(best, '/'); i > 0 {
		return best[:i]
	}
	return ""
}

// inside tells whether a cgroup, as on a 0:: line, is the turn's or below it.
func (w *work) inside(cgroup string) bool {
	if w.bare {
		return false
	}
	if w.turn == "" {
		w.turn = turnCgroup(w.path)
	}
	rest, ok := strings.CutPrefix(cgroup, w.turn)
	return ok && w.turn != "" && (rest == "" || rest[0] == '/' || rest[0] == ' ')
}

// isBare tells that the turn has no cgroup; w may be nil.
func (w *work) isBare() bool { return w != nil && w.bare }

// leafPath is where a launch's leaf is.
func (w *work) leafPath(name string) string {
	if w.bare {
		return ""
	}
	return w.path + "/" + name
}

// frozen tells whether a launch would hang.
func (w *work) frozen() bool {
	if w.bare {
		return false
	}
	var b [128]byte
	if n, err := sys.Pread(w.events, b[:], 0); err == nil {
		if v, ok := sys.ParseKV(b[:n], "frozen"); ok && v == 1 {
			return true
		}
	}
	if w.freeze < 0 {
		return false
	}
	n, err := sys.Pread(w.freeze, b[:], 0)
	return err == nil && n > 0 && b[0] == '1'
}

// makeLeaf makes a fresh leaf and returns it open, with its kernfs id. A leaf
// is never used twice: one that was ever killed kills what is cloned into it.
func (w *work) makeLeaf(name string) (fd int, id uint64, err error) {
	if w.bare {
		return -1, 0, nil
	}
	if err := sys.Mkdirat(w.dir, name, 0o755); err != nil {
		return -1, 0, err
	}
	if fd, err = sys.Openat(w.dir, name, sys.OPath|sys.ODirectory|sys.ONofollow); err == nil {
		if id, err = sys.Ino(fd); err == nil {
			return fd, id, nil
		}
		_ = sys.Close(fd)
	}
	_ = sys.Rmdirat(w.dir, name)
	return -1, 0, err
}

// oomKills is how many processes of a leaf the kernel has ended for want of
// memory; 0 where nobody counts.
func (w *work) oomKills(leaf string) int64 {
	if w.bare {
		return 0
	}
	b, err := sys.ReadFileAt(w.dir, leaf+"/memory.events")
	if err != nil {
		return 0
	}
	n, _ := sys.ParseKV(b, "oom_kill")
	return n
}

// moveInto moves a process into a leaf and makes sure of it.
func moveInto(leaf, pid int) error {
	if err := sys.WriteFileAt(leaf, "cgroup.procs", strconv.Itoa(pid)); err != nil {
		return err
	}
	b, err := sys.ReadFileAt(leaf, "cgroup.procs")
	if err != nil {
		return err
	}
	for line := range bytes.Lines(b) {
		if string(bytes.TrimSpace(line)) == strconv.Itoa(pid) {
			return nil
		}
	}
	return syscall.ESRCH
}

// sweepLeaves tries to remove up to n leaves of ended launches; those that
// still hold somebody, or have cgroups in them, come to the end of the list.
func (k *keeper) sweepLeaves(n int) {
	for range min(n, len(k.emptied)) {
		name := k.emptied[0]
		k.emptied = k.emptied[1:]
		if err := sys.Rmdirat(k.work.dir, name); errors.Is(err, syscall.EBUSY) {
			k.emptied = append(k.emptied, name)
		}
		fault.Point("leaf.removed")
	}
	if len(k.emptied) == 0 {
		k.emptied = nil
	}
}

// dropLeaf removes a leaf that was for nothing. What has just died in it may
// take a moment to leave.
func (k *keeper) dropLeaf(name string) {
	for try := 0; !k.work.bare; try++ {
		err := sys.Rmdirat(k.work.dir, name)
		if !errors.Is(err, syscall.EBUSY) {
			return
		}
		if try == 50 {
			k.emptied = append(k.emptied, name)
			return
		}
		sys.Nanosleep(50_000)
	}
}
