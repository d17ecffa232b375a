package hold

import (
	"errors"
	"strings"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/wire"
	"pinfold.dev/pidfd"
)

// Keep is somebody who keeps descriptors while there is no service: the service
// manager. From Linux 6.15 on a kept handle tells how a process ended whose
// keeper was gone by then.
type Keep interface {
	// Store takes fd over, and sends it after that time; see systemd.Notifier.
	Store(name string, fd int, after time.Duration) bool
	Remove(name string)
}

// Kept is a descriptor that an earlier service had kept.
type Kept struct {
	Name string
	FD   int
}

// keptPrefix begins the names of kept handles: pidfd.TURN.PROCESS.
const keptPrefix = "pidfd."

// keepAfter is how old a process is before its handle is kept. Most are not to
// become so old, and the manager need not hear of them.
const keepAfter = 100 * time.Millisecond

// IsKeptHandle tells whether a descriptor of that name is for Config.Kept.
func IsKeptHandle(name string) bool {
	turn, process, ok := keptOf(name)
	return ok && turn != "" && process != ""
}

func keptName(turn, process string) string { return keptPrefix + turn + "." + process }

func keptOf(name string) (turn, process string, ok bool) {
	rest, ok := strings.CutPrefix(name, keptPrefix)
	if !ok {
		return "", "", false
	}
	return strings.Cut(rest, ".")
}

// takeKept takes what Config.Kept has over.
func (h *Host) takeKept() {
	h.kept = make(map[string]int, len(h.cfg.Kept))
	for _, k := range h.cfg.Kept {
		if old, twice := h.kept[k.Name]; twice {
			closeFD(old)
		}
		h.kept[k.Name] = k.FD
	}
}

// keepHandle has the handle of a launch kept for the next service.
func (x *keeping) keepHandle(process string, p *pidfd.Handle) {
	k := x.host.cfg.Keep
	if k == nil || p == nil {
		return
	}
	if fd, err := p.Dup(); err == nil {
		k.Store(keptName(x.turn, process), fd, keepAfter)
	}
}

// forgetHandle is for a launch whose end is known, or will never be.
func (x *keeping) forgetHandle(process string) { x.host.forgetKept(keptName(x.turn, process)) }

// forgetHandles is for a turn of which nothing is left.
func (x *keeping) forgetHandles() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, id := range x.order {
		x.forgetHandle(id)
	}
}

func (h *Host) forgetKept(name string) {
	h.mu.Lock()
	fd, ok := h.kept[name]
	delete(h.kept, name)
	h.mu.Unlock()
	if ok {
		closeFD(fd)
	}
	if h.cfg.Keep != nil {
		h.cfg.Keep.Remove(name)
	}
}

// ForgetKept drops handles of turns that nobody knows. It is called when all
// turns were found again.
func (h *Host) ForgetKept(known func(turn string) bool) (dropped int) {
	h.mu.Lock()
	var names []string
	for name := range h.kept {
		if turn, _, ok := keptOf(name); !ok || !known(turn) {
			names = append(names, name)
		}
	}
	h.mu.Unlock()
	for _, name := range names {
		h.forgetKept(name)
	}
	return len(names)
}

// claimKept returns the kept handle of a launch, if it is the recorded process;
// one that is not is dropped. What is returned may have exited, and been reaped.
func (x *keeping) claimKept(process string, rec api.Identity) *pidfd.Handle {
	h, name := x.host, keptName(x.turn, process)
	h.mu.Lock()
	fd, ok := h.kept[name]
	delete(h.kept, name)
	h.mu.Unlock()
	if !ok {
		return nil
	}
	p := pidfd.FromFD(fd, rec.PID)
	if err := isRecorded(p, rec); err != nil {
		h.log.Warn("a kept handle is not that of the recorded process, and is dropped", "turn", x.turn, "process", process, "error", err)
		p.Close()
		x.forgetHandle(process)
		return nil
	}
	return p
}

// isRecorded is nil for a handle of the recorded process. One that was reaped is
// known only by its pidfs inode, which no other process of this boot ever has.
func isRecorded(p *pidfd.Handle, rec api.Identity) error {
	now, err := p.Identity()
	if err != nil {
		return err
	}
	if rec.Ino != 0 && now.Ino != 0 && rec.Boot != "" && rec.Boot == now.Boot {
		if rec.Ino == now.Ino {
			return nil
		}
		return errors.New("its pidfs inode is another")
	}
	if v, why := p.Verify(rec); v != api.VerdictOwned {
		return errors.New(string(v) + ": " + strings.Join(why, "; "))
	}
	return nil
}

// statusTries bounds the wait for the status of a process that nobody reaps and
// that we may not see as a zombie.
const statusTries = 20

// tellEnd tells how a process ended whose keeper is gone, by its handle, if that
// has exited and tells.
func (x *keeping) tellEnd(process string, h *pidfd.Handle) error {
	var e wire.Exit
	var err error
	for try := range statusTries {
		if e, err = joinedEnd(h); err == nil || !errors.Is(err, errors.ErrUnsupported) {
			break
		}
		time.Sleep(time.Duration(try) * time.Millisecond) // its new parent is at it
	}
	if err != nil {
		return err
	}
	e.Process, e.OOMKills = process, x.body.leafOOM(process)
	x.exited(e)
	return nil
}
