package hold

import (
	"errors"
	"fmt"

	"pinfold.dev/api"
	"pinfold.dev/containment"
	"pinfold.dev/internal/sys"
	"pinfold.dev/pidfd"
)

// ErrBlind tells that nobody on this host can tell whose descendant a process is:
// there is neither a /proc of ours nor a handle to be opened.
var ErrBlind = errors.New("neither /proc nor a handle tells whose descendant a process is")

// errByCgroup tells that a turn's processes are known by their cgroup.
var errByCgroup = errors.New("turns here are told by their cgroups")

// mind notes a turn's keeper, where its processes are not known by their cgroup;
// unmind forgets it.
func (h *Host) mind(turn string, f containment.Facts) {
	if !bareGrade(f.Grade) && sys.ReadHere().Proc {
		return
	}
	keeper := f.Keeper
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.keepers == nil {
		h.keepers = map[string]api.Identity{}
	}
	h.keepers[turn] = keeper
}

func (h *Host) unmind(turn string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.keepers, turn)
}

// keeperOf is the turn whose keeper a process is; "" is none. Without the inodes of
// both, before Linux 6.9, it goes by the number and, as far as both tell, the start tick.
func (h *Host) keeperOf(id api.Identity) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	for turn, k := range h.keepers {
		same := k.PID == id.PID && (k.StartTicks == id.StartTicks || k.StartTicks == 0 || id.StartTicks == 0)
		if k.Ino != 0 && id.Ino != 0 {
			same = k.Ino == id.Ino
		}
		if same {
			return turn
		}
	}
	return ""
}

// TurnOf tells which turn's keeper a process, by its pidfd and its number, descends
// from; "": none. Whoever loses a parent in a turn becomes the keeper's child, so
// as long as the keeper lives this misses nobody that it has launched.
func (h *Host) TurnOf(fd, pid int) (string, error) {
	h.mu.Lock()
	none := len(h.keepers) == 0
	h.mu.Unlock()
	if none && h.bare == "" && sys.ReadHere().Proc {
		return "", errByCgroup
	}
	if pid == 0 {
		return "", nil // what has no number here is below nobody who has one
	}
	p, err := openPeerFD(fd, pid)
	if err == nil {
		defer p.Close()
		ids, aerr := above(p)
		for _, id := range ids {
			if turn := h.keeperOf(id); turn != "" {
				return turn, nil
			}
		}
		if err = aerr; err == nil {
			return "", nil
		}
	}
	return h.turnByProc(pid, err)
}

// openPeerFD is a handle on a peer. Without its pidfd, as before Linux 6.5, the
// number has to do.
func openPeerFD(fd, pid int) (*pidfd.Handle, error) {
	if fd < 0 {
		return pidfd.Open(pid)
	}
	d, err := sys.Dup(fd)
	if err != nil {
		return nil, err
	}
	return pidfd.FromPeer(d)
}

// turnByProc goes up by what /proc says, where ancestors cannot be opened.
func (h *Host) turnByProc(pid int, why error) (string, error) {
	if !sys.ReadHere().Proc {
		return "", fmt.Errorf("%w: %w", ErrBlind, why)
	}
	for range mostAbove {
		b, err := sys.ProcFile(pid, "stat")
		if err != nil {
			return "", fmt.Errorf("find its parent: %w", errors.Join(err, why))
		}
		s, err := sys.ParseStat(b)
		if err != nil {
			return "", err
		}
		if turn := h.keeperOf(api.Identity{PID: s.PPID}); turn != "" {
			return turn, nil
		}
		if pid = s.PPID; pid <= 1 {
			return "", nil
		}
	}
	return "", errors.New("it has too many ancestors")
}
