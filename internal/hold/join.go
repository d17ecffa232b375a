package hold

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/cgroup"
	"pinfold.dev/containment"
	"pinfold.dev/internal/fault"
	"pinfold.dev/internal/sys"
	"pinfold.dev/internal/wire"
	"pinfold.dev/pidfd"
)

// Join moves a live process into a fresh leaf: handle, identity, record, move,
// and only then belief, by the cgroup id that the handle tells.
func (x *hold) Join(ctx context.Context, process string, peer *os.File, where func(string) error, before func(containment.Started) error) error {
	h, err := x.peer(peer, where)
	if err != nil {
		return err
	}
	from, err := h.CgroupPath()
	if err != nil {
		h.Close()
		return api.Errorf(api.CodePeerUnverifiable, "the caller is gone: %v", err)
	}
	leaf, err := x.work.Make(process)
	if errors.Is(err, os.ErrExist) {
		h.Close()
		return containment.ErrUsed
	}
	if err != nil {
		h.Close()
		return fmt.Errorf("make the process's cgroup: %w", err)
	}
	defer leaf.Close()
	fault.Point("join.leaf")
	s, err := x.joining(process, h, leaf)
	if err == nil {
		err = before(x.started(s))
	}
	if err == nil {
		err = x.move(ctx, h, leaf, from)
	}
	if err != nil {
		h.Close()
		_ = leaf.Remove(ctx) // never a populated one
		return err
	}
	fault.Point("join.moved")
	x.enterJoined(s, h)
	return nil
}

// enterJoined takes a process that has joined.
func (x *keeping) enterJoined(s wire.Started, h *pidfd.Handle) {
	p := &proc{started: s, handle: h, joined: true, told: make(chan struct{})}
	x.mu.Lock()
	x.procs[s.Process] = p
	x.order = append(x.order, s.Process)
	x.mu.Unlock()
	x.keepHandle(s.Process, h)
	go func() {
		defer close(p.told)
		x.watchJoined(s.Process, h)
	}()
}

// awaitUnkept waits until the ends of those that had joined, and of those whose
// keeper is gone, were told, as far as they have ended.
func (x *keeping) awaitUnkept(ctx context.Context) {
	if x.keeperDead() && !x.leaving() {
		x.loseSoon(ctx)
	}
	for _, id := range x.unkeptIDs() {
		x.mu.Lock()
		p := x.procs[id]
		h, told, ended := p.handle, p.told, p.exit != nil || p.lost != ""
		x.mu.Unlock()
		if !ended { // else it is just being told
			if h == nil {
				continue
			}
			if over, err := h.Exited(); !over && !errors.Is(err, os.ErrClosed) { // closed: now it is
				continue
			}
		}
		select {
		case <-told:
		case <-ctx.Done():
		}
	}
}

// loseSoon loses a keeper that is seen dead: whom its connection told of that may look
// again only later. It waits for the disk with the journal, but not for one that hangs.
func (x *keeping) loseSoon(ctx context.Context) {
	lost := make(chan struct{})
	go func() {
		defer close(lost)
		x.loseKeeper("it has died")
	}()
	select {
	case <-lost:
	case <-ctx.Done():
	}
}

func (x *keeping) unkeptIDs() (ids []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for id, p := range x.procs {
		if p.told != nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// peer opens the caller's process and refuses what may not be moved.
func (x *keeping) peer(f *os.File, where func(string) error) (*pidfd.Handle, error) {
	fd, err := sys.Dup(int(f.Fd()))
	if err != nil {
		return nil, err
	}
	h, err := pidfd.FromPeer(fd)
	if err != nil {
		return nil, api.Errorf(api.CodePeerUnverifiable, "the caller cannot be identified: %v", err).
			WithRemedy("join from a process in the service's PID namespace, and stay alive until the answer")
	}
	err = pidfd.RefusePID(h.PID(), os.Getpid())
	if err == nil && x.keeper != nil && h.PID() == x.keeper.PID() {
		err = errors.New("it is the turn's keeper")
	}
	if err != nil {
		h.Close()
		return nil, api.Errorf(api.CodeForbidden, "process %d cannot be moved into a turn: %v", h.PID(), err)
	}
	in, err := h.CgroupPath()
	if err != nil {
		h.Close()
		return nil, api.Errorf(api.CodePeerUnverifiable, "cannot tell where process %d is: %v", h.PID(), err)
	}
	if err := where(in); err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

// joining is what is recorded of a process that is about to join.
func (x *hold) joining(process string, h *pidfd.Handle, leaf *cgroup.Dir) (wire.Started, error) {
	id, err := h.Identity()
	if err != nil {
		return wire.Started{}, err
	}
	return wire.Started{Process: process, PID: id.PID, StartTicks: id.StartTicks, Ino: id.Ino, CgroupID: leaf.ID(),
		Leaf: leaf.Path(), Placement: "join", StartedNS: time.Now().UnixNano()}, nil
}

// move writes the number and asks the handle what became of it. While the
// process lives its number is its own, so when it lives before and after the
// write, nobody else was moved. When it does not, whoever is in the leaf goes
// back to where the caller was: a child of it, or somebody who got its number.
func (x *hold) move(ctx context.Context, h *pidfd.Handle, leaf *cgroup.Dir, from string) error {
	if exited, err := h.Exited(); err != nil || exited {
		return api.Errorf(api.CodePeerUnverifiable, "the caller has exited")
	}
	if err := x.add(ctx, h.PID(), leaf); err != nil {
		return moveError(h.PID(), err)
	}
	id, err := h.CgroupID()
	exited, xerr := h.Exited()
	if err == nil && xerr == nil && !exited && id == leaf.ID() {
		return nil
	}
	x.moveBack(ctx, leaf, from)
	return api.Errorf(api.CodePeerUnverifiable, "the caller exited, or left again, while it was moved (%v)", errors.Join(err, xerr))
}

// add puts a process into a leaf. Where a user's service may not, because it is
// out of a log-in session, say, that user's manager can.
func (x *hold) add(ctx context.Context, pid int, leaf *cgroup.Dir) error {
	err := leaf.Add(pid)
	sub, below := strings.CutPrefix(leaf.Path(), x.facts.Cgroup)
	if !denied(err) || !below || x.host.mgr == nil || !x.facts.UserManager {
		return err
	}
	if merr := x.host.mgr.Attach(ctx, x.facts.Unit, sub, pid); merr != nil {
		return fmt.Errorf("%w; and %w", err, merr)
	}
	return nil
}

func denied(err error) bool { return errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EPERM) }

// moveBack empties a leaf that nobody was to be in.
func (x *hold) moveBack(ctx context.Context, leaf *cgroup.Dir, from string) {
	dir, err := x.host.mount.Dir(from)
	if err != nil {
		x.host.log.Error("move back what joined by mistake", "turn", x.turn, "leaf", leaf.Path(), "error", err)
		return
	}
	back, err := cgroup.Open(dir)
	if err != nil {
		x.host.log.Error("move back what joined by mistake", "turn", x.turn, "leaf", leaf.Path(), "error", err)
		return
	}
	defer back.Close()
	for ctx.Err() == nil {
		pids, err := leaf.Pids()
		if err != nil || len(pids) == 0 {
			return
		}
		for _, p := range pids {
			if err := back.Add(p.PID); denied(err) {
				x.host.log.Error("move back what joined by mistake", "turn", x.turn, "leaf", leaf.Path(), "error", err)
				return
			}
		}
	}
}

// moveError says what stands in the way of a move.
func moveError(pid int, err error) error {
	e := api.Errorf(api.CodeLaunchRefused, "move process %d into the turn: %v", pid, err).With("step", wire.ErrCgroup)
	var errno syscall.Errno
	if errors.As(err, &errno) {
		e = e.With("errno_name", errnoName(errno))
	}
	switch {
	case denied(err):
		return e.WithRemedy("a user's service may move only the user's own processes, and without the user's manager only those below its own cgroup: " +
			"use the system service, start the caller with systemd-run --user --scope, or launch through the API")
	case errors.Is(err, syscall.ESRCH):
		e.Code = api.CodePeerUnverifiable
	case errors.Is(err, syscall.EOPNOTSUPP), errors.Is(err, syscall.EBUSY):
		return e.WithRemedy("its cgroup is threaded, or has processes of its own beside controllers; launch through the API")
	}
	return e
}

// Rejoin finds a process again that had joined an earlier service's turn.
func (x *hold) Rejoin(process string, was api.Identity) (api.Verdict, error) {
	rec := was
	rec.CgroupID = 0 // it may have gone deeper, or have been moved just before a crash
	h, v, why := pidfd.OpenVerified(rec)
	if v != api.VerdictOwned {
		if h = x.claimKept(process, rec); h == nil {
			return v, errors.New(strings.Join(why, "; "))
		}
	}
	in, err := h.CgroupPath()
	if over, xerr := h.Exited(); xerr == nil && over { // as it was there, so it tells how it ended
		in, err = x.facts.CgroupLine, nil
	}
	if err == nil && !x.within(in) {
		err = fmt.Errorf("it is in %s, outside the turn", in)
		v = api.VerdictForeign
	}
	if err != nil {
		h.Close()
		return v, err
	}
	x.enterJoined(wire.Started{Process: process, PID: was.PID, StartTicks: was.StartTicks, Ino: was.Ino,
		CgroupID: was.CgroupID, Placement: "join"}, h)
	return api.VerdictOwned, nil
}

// watchJoined waits for the end of a process that had joined; its parent reaps
// it, and we are told by the handle.
func (x *keeping) watchJoined(process string, h *pidfd.Handle) {
	if h.Wait(context.Background()) != nil {
		return // closed: the hold was let go
	}
	e, err := joinedEnd(h)
	e.Process, e.OOMKills = process, x.body.leafOOM(process)
	x.body.left(process)
	if err == nil {
		x.exited(e)
		return
	}
	x.loseProcess(process, "its parent reaped it before its status could be read: "+err.Error())
}

// left removes the leaf of one that had joined, when nobody is in it.
func (x *hold) left(process string) {
	if x.isJob(process) {
		return
	}
	if leaf, err := x.openLeaf(process); err == nil {
		if full, perr := leaf.Populated(); perr == nil && !full {
			_ = leaf.Remove(context.Background())
		}
		leaf.Close()
	}
}

// alone has nothing to do: the cgroup holds everybody.
func (x *hold) alone() {}

// loseProcess tells of an end that nobody knows more of.
func (x *keeping) loseProcess(id, why string) {
	x.mu.Lock()
	p := x.procs[id]
	told := p == nil || p.exit != nil || p.lost != ""
	if !told {
		p.lost = why
		if p.handle != nil {
			p.handle.Close()
			p.handle = nil
		}
	}
	x.mu.Unlock()
	x.forgetHandle(id)
	if !told {
		x.hooks.Exit(containment.Exit{Process: id, At: time.Now(), Status: api.Status{State: api.ProcessLost, Why: why}})
	}
}
