package pidfd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys"
)

// Rung is by what a recorded process was found again. Each is tried, the best
// first; none is chosen by a version number.
type Rung string

// The rungs, from exact to circumstantial. The handle opens that very process or
// nothing (pidfs file handles, Linux 6.14); the inode tells of the process that
// has the number now whether it is the one (6.9); start tick, namespaces and
// cgroup are what is left before that.
const (
	ByHandle Rung = "file handle"
	ByInode  Rung = "inode"
	ByTicks  Rung = "start tick"
)

// Opener opens recorded processes. It has looked once at where it is and what the
// kernel has, which is most of the cost of one. It is safe for concurrent use.
type Opener struct {
	here Here
	loc  *Locator
	// handles tells why file handles are not to be used; nil: they are.
	handles error
	root    bool // they need no open file of pidfs
	inodes  bool
}

// NewOpener looks at what the kernel has, by trying it on ourselves.
func NewOpener() *Opener {
	o := &Opener{here: ReadHere(), loc: new(Locator)}
	fd, err := sys.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		o.handles = err
		return o
	}
	defer sys.Close(fd)
	var ino uint64
	ino, o.inodes = sys.PidfsIno(fd)
	o.handles = tryHandle(fd, fd, ino)
	o.root = o.handles == nil && tryHandle(fd, sys.PidfsRoot, ino) == nil
	return o
}

// handleKind and handleBytes are the handle of a process by its pidfs inode. A
// kernel that makes them otherwise is found out by tryHandle.
const handleKind = 0xfe

func handleBytes(ino uint64) []byte { return binary.NativeEndian.AppendUint64(nil, ino) }

// tryHandle opens ourselves by the handle that our inode makes.
func tryHandle(self, mount int, ino uint64) error {
	kind, b, err := sys.HandleOf(self)
	if err != nil {
		return &Unsupported{"file handles of processes", "6.14", err}
	}
	if ino == 0 || kind != handleKind || string(b) != string(handleBytes(ino)) {
		return &Unsupported{"file handles of processes", "6.14", fmt.Errorf("a handle is type %#x, %x, of inode %d", kind, b, ino)}
	}
	fd, err := sys.OpenHandle(mount, kind, b)
	if err != nil {
		return &Unsupported{"opening processes by file handle", "6.14", err}
	}
	defer sys.Close(fd)
	if again, ok := sys.PidfsIno(fd); !ok || again != ino {
		return &Unsupported{"opening processes by file handle", "6.14", fmt.Errorf("it opened inode %d instead of %d", again, ino)}
	}
	return nil
}

// Open opens the recorded process and verifies it. The handle is nil unless the
// verdict is owned. The first of the evidence is the rung.
func (o *Opener) Open(rec api.Identity) (*Handle, api.Verdict, []string) {
	if rec.Boot != "" && rec.Boot == o.here.Boot && rec.Ino != 0 && rec.PID > 1 && o.handles == nil {
		if h, v, why := o.byHandle(rec); v != "" {
			return h, v, why
		}
	}
	return o.byNumber(rec)
}

// byNumber opens whatever has the recorded number, and compares.
func (o *Opener) byNumber(rec api.Identity) (*Handle, api.Verdict, []string) {
	if v, why := NumberMeans(rec, o.here); v != "" {
		return nil, v, why
	}
	rung := ByTicks
	if rec.Ino != 0 && o.inodes {
		rung = ByInode
	}
	h, err := Open(rec.PID)
	switch {
	case errors.Is(err, ErrGone):
		return nil, api.VerdictGone, []string{by(rung), "same boot", "no process has its number"}
	case err != nil:
		return nil, api.VerdictUnverifiable, []string{by(rung), err.Error()}
	}
	return o.verified(h, rec, rung)
}

func by(r Rung) string { return "looked for by " + string(r) }

// verified lets go of a handle that is not owned.
func (o *Opener) verified(h *Handle, rec api.Identity, rung Rung) (*Handle, api.Verdict, []string) {
	now, err := o.look(h, rec)
	v, why := api.VerdictUnverifiable, []string(nil)
	if err != nil {
		why = []string{err.Error()}
	} else {
		v, why = Compare(rec, now, h.Life())
	}
	why = append([]string{by(rung)}, why...)
	if v != api.VerdictOwned {
		_ = h.Close()
		return nil, v, why
	}
	return h, v, why
}

// look reads what Compare asks for: the inode alone where it decides, which saves
// most of the cost.
func (o *Opener) look(h *Handle, rec api.Identity) (api.Identity, error) {
	if rec.Ino != 0 && o.inodes {
		now := api.Identity{PID: h.pid, Boot: o.here.Boot}
		err := h.use(func(fd int) error {
			now.Ino, _ = sys.PidfsIno(fd)
			return nil
		})
		if err != nil || now.Ino != 0 {
			return now, err
		}
	}
	now, err := o.loc.Look(h, o.here)
	return now.Identity, err
}

// byHandle has the kernel open the process whose inode was recorded. ESTALE is
// also what it says of a living one that our PID namespace does not show, so it
// means gone only for a process that was recorded in this one; whether another has
// its number, the next rung tells. An empty verdict: that has to tell all.
func (o *Opener) byHandle(rec api.Identity) (*Handle, api.Verdict, []string) {
	mount := sys.PidfsRoot
	if !o.root {
		self, err := sys.PidfdOpen(os.Getpid(), 0)
		if err != nil {
			return nil, "", nil
		}
		defer sys.Close(self)
		mount = self
	}
	fd, err := sys.OpenHandle(mount, handleKind, handleBytes(rec.Ino))
	here := rec.PIDNS != 0 && rec.PIDNS == o.here.PIDNS
	switch {
	case errors.Is(err, syscall.ESTALE) && here:
		if h, v, why := o.byNumber(rec); v != api.VerdictUnverifiable {
			return h, v, why
		}
		return nil, api.VerdictGone, []string{by(ByHandle), "same boot", "no process has its inode (ESTALE)"}
	case errors.Is(err, syscall.ESTALE):
		return nil, api.VerdictUnverifiable, []string{by(ByHandle), "no process of our PID namespace has its inode, and it was recorded in another"}
	case err != nil:
		return nil, "", nil
	}
	h := FromFD(fd, rec.PID)
	if n := h.number(); here && n != 0 && n != rec.PID {
		_ = h.Close()
		return nil, api.VerdictUnverifiable, []string{by(ByHandle), fmt.Sprintf("%s: its inode is that of process %d", contradicts, n)}
	} else if n != 0 { // it may have been recorded in a namespace below ours
		h.pid = n
	}
	return o.verified(h, rec, ByHandle)
}

const contradicts = "the record contradicts itself"

// Contradicts tells from the evidence of an Open whether the record names one process
// by its inode and another by its number. Then the number proves nothing, not even
// that the recorded process has gone.
func Contradicts(why []string) bool {
	return slices.ContainsFunc(why, func(s string) bool { return strings.HasPrefix(s, contradicts) })
}

// OpenVerified is Opener.Open for a single one.
func OpenVerified(rec api.Identity) (*Handle, api.Verdict, []string) {
	return NewOpener().Open(rec)
}
