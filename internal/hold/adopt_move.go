package hold

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/cgroup"
	"pinfold.dev/containment"
	"pinfold.dev/internal/fault"
	"pinfold.dev/internal/wire"
	"pinfold.dev/pidfd"
)

// adoptingMark begins the mark of a leaf that is being filled; the cgroup that its
// first member is from comes after it. One that is full has no mark.
const adoptingMark = "adopting from "

// mostAlong bounds how many are taken in at once.
const mostAlong = 4096

// Adopt moves a process into a fresh leaf.
func (x *hold) Adopt(ctx context.Context, a containment.Adopting) (containment.Adopted, error) {
	f, err := x.find(a)
	if err != nil {
		return containment.Adopted{}, err
	}
	out, err := x.adoptMoved(ctx, a, f)
	var e *api.Error
	if a.Token && errors.As(err, &e) && e.Details["reason"] == string(api.AdoptUnmovable) {
		was := err
		if out, err = x.adoptToken(a, f); err == nil {
			out.Evidence = append(out.Evidence, "it could not be moved: "+was.Error())
		}
	}
	if err != nil {
		f.h.Close()
	}
	return out, err
}

func (x *hold) adoptMoved(ctx context.Context, a containment.Adopting, f *found) (out containment.Adopted, err error) {
	leaf, err := x.work.Make(a.Process)
	if errors.Is(err, os.ErrExist) {
		return out, containment.ErrUsed
	}
	if err != nil {
		return out, fmt.Errorf("make the process's cgroup: %w", err)
	}
	defer leaf.Close()
	fault.Point("adopt.leaf")
	k := &taking{x: x, leaf: leaf, a: a, by: map[int]*taken{}}
	defer k.close()
	s := wire.Started{Process: a.Process, PID: f.id.PID, StartTicks: f.id.StartTicks, Ino: f.id.Ino, CgroupID: leaf.ID(),
		Leaf: leaf.Path(), Placement: "adopt", StartedNS: time.Now().UnixNano()}
	out = f.adopted(x.started(s))
	out.Grade, out.Moved = x.facts.Grade, 1
	if err = leaf.Mark(adoptingMark + f.line); err == nil {
		err = k.all(ctx, f, func() error { return a.Before(out) })
	}
	if err == nil {
		fault.Point("adopt.moved")
		err = leaf.Mark("")
	}
	if err != nil {
		return out, errors.Join(err, k.undo(context.WithoutCancel(ctx)))
	}
	out.Moved = len(k.in)
	x.enterJoined(s, f.h)
	return out, nil
}

// taking is one adoption under way.
type taking struct {
	x    *hold
	leaf *cgroup.Dir
	a    containment.Adopting
	in   []*taken
	by   map[int]*taken
}

// taken is one that was moved, with where it was.
type taken struct {
	*found
	from *cgroup.Dir
}

func (k *taking) close() {
	for i, t := range k.in {
		if i > 0 { // the first one's handle is the hold's, or the caller's
			t.h.Close()
		}
		t.from.Close()
	}
}

// all moves the process, and those that come along.
func (k *taking) all(ctx context.Context, f *found, before func() error) error {
	if k.a.Tree {
		defer k.leaf.Still(ctx)() // who is in cannot fork, or end, and so leave orphans
	}
	from, err := k.where(f)
	if err != nil {
		return err
	}
	if err := before(); err != nil {
		return errors.Join(err, from.Close())
	}
	if err := k.move(ctx, f, from); err != nil || !k.a.Tree {
		return err
	}
	for {
		was := len(k.in)
		for i := 0; i < len(k.in); i++ { // it grows
			if err := k.children(ctx, k.in[i]); err != nil {
				return err
			}
		}
		if len(k.in) == was {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return api.Errorf(api.CodeTimeout, "process %d has descendants faster than they are moved", f.id.PID)
		}
	}
}

// children takes in the children of one that is in. Whoever has a parent that is
// in descends from it: orphans go to ancestors only.
func (k *taking) children(ctx context.Context, parent *taken) error {
	pids, err := parent.h.Children()
	if errors.Is(err, pidfd.ErrGone) {
		return nil
	}
	if err != nil {
		return api.AdoptAmbiguous.Refuse(parent.id.PID, "nobody can tell the children of process %d: %v", parent.id.PID, err)
	}
	for _, pid := range pids {
		if k.by[pid] != nil {
			continue
		}
		if len(k.in) >= mostAlong {
			return api.AdoptTooMany.Refuse(k.in[0].id.PID, "process %d has more than %d descendants", k.in[0].id.PID, mostAlong)
		}
		if err := k.child(ctx, pid, parent); err != nil {
			return err
		}
	}
	return nil
}

func (k *taking) child(ctx context.Context, pid int, parent *taken) error {
	h, err := pidfd.Open(pid)
	if errors.Is(err, pidfd.ErrGone) {
		return nil
	}
	if err != nil {
		return k.unmovable(pid, err)
	}
	over, err := k.isChild(ctx, h, parent)
	if over || err != nil {
		h.Close()
	}
	return err
}

// isChild takes one in, if its parent is who it is thought to be. over: there is
// nothing more to do about it.
func (k *taking) isChild(ctx context.Context, h *pidfd.Handle, parent *taken) (over bool, err error) {
	up, err := h.Parent()
	if err == nil && up == nil || errors.Is(err, pidfd.ErrGone) {
		return true, nil // it has ended, or gone to another
	}
	var id api.Identity
	if err == nil {
		id, err = up.Identity()
		up.Close()
	}
	if err != nil && !gone(h) && !gone(parent.h) {
		return true, api.AdoptAmbiguous.Refuse(h.PID(), "nobody can tell whose child process %d is: %v", h.PID(), err)
	}
	if err != nil || id.PID != parent.id.PID || id.Ino != parent.id.Ino {
		return true, nil
	}
	if lives, err := h.Lives(); err != nil || !lives {
		return true, nil
	}
	if in, err := h.CgroupID(); err == nil && in == k.leaf.ID() {
		return true, nil // born here
	}
	f, err := look(h)
	if errors.Is(err, api.ErrAdoptRefused) && goneReason(err) {
		return true, nil
	}
	if err != nil {
		return true, err
	}
	if err := k.x.mayTake(k.a, f, true); err != nil {
		if gone(h) { // whatever else was seen of it
			return true, nil
		}
		return true, err
	}
	from, err := k.where(f)
	if err == nil {
		err = k.move(ctx, f, from)
	}
	if goneReason(err) {
		return true, nil
	}
	return err != nil, err
}

// gone tells that a process is known not to live any more.
func gone(h *pidfd.Handle) bool {
	lives, err := h.Lives()
	return err == nil && !lives
}

func goneReason(err error) bool {
	var e *api.Error
	return errors.As(err, &e) && e.Details["reason"] == string(api.AdoptGone)
}

// where opens the cgroup that a process is in, to which it can go back.
func (k *taking) where(f *found) (*cgroup.Dir, error) {
	if f.line == "" {
		return nil, k.unmovable(f.id.PID, errors.New("it is in no cgroup v2"))
	}
	path, err := k.x.host.mount.Dir(f.line)
	if err != nil {
		return nil, k.unmovable(f.id.PID, err)
	}
	d, err := cgroup.Open(path)
	if err != nil {
		return nil, k.unmovable(f.id.PID, err)
	}
	if id, err := f.h.CgroupID(); err != nil || id != d.ID() {
		d.Close()
		if gone(f.h) {
			return nil, goneNow(f.id.PID)
		}
		return nil, k.unmovable(f.id.PID, fmt.Errorf("it has left %s since it was looked at", f.line))
	}
	return d, nil
}

// move writes the number and asks the handle what became of it: while the process
// lives its number is its own. from is taken over.
func (k *taking) move(ctx context.Context, f *found, from *cgroup.Dir) error {
	t := &taken{f, from}
	err := k.x.add(ctx, f.id.PID, k.leaf)
	id, ierr := f.h.CgroupID()
	lives, lerr := f.h.Lives()
	switch {
	case err == nil && ierr == nil && lerr == nil && lives && k.holds(f.h, id):
		k.in, k.by[f.id.PID] = append(k.in, t), t
		fault.Point("adopt.moving")
		return nil
	case lerr == nil && !lives:
		err = goneNow(f.id.PID)
	case err != nil:
		err = k.unmovable(f.id.PID, err)
	case ends(ctx, f.h):
		err = goneNow(f.id.PID)
	default:
		err = k.unmovable(f.id.PID, fmt.Errorf("it is in another cgroup right after it was moved (%v)", errors.Join(ierr, lerr)))
	}
	from.Close()
	if herr := f.h.Signal(0); errors.Is(herr, pidfd.ErrGone) { // its number may have been another's by then
		k.giveBack(f.id.PID)
	}
	return err
}

// exitTime bounds the wait for the end of one that is exiting.
const exitTime = 2 * time.Second

// ends tells whether a process comes to its end: one that is exiting is not moved any
// more, and the kernel calls that a success.
func ends(ctx context.Context, h *pidfd.Handle) bool {
	if exiting, err := h.Exiting(); err == nil && !exiting {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, exitTime)
	defer cancel()
	return h.Wait(ctx) == nil
}

// holds tells whether a process is in the leaf. One whose main thread has exited
// shows there by its threads only.
func (k *taking) holds(h *pidfd.Handle, id uint64) bool {
	if id == k.leaf.ID() {
		return true
	}
	in := false
	_, _ = k.leaf.Each(func(m *pidfd.Handle, f cgroup.Found) error { in = in || f.PID == h.PID(); return nil })
	return in
}

// giveBack puts somebody who has got the number of one that ended where its parent
// is.
func (k *taking) giveBack(pid int) {
	h, err := pidfd.Open(pid)
	if err != nil {
		return
	}
	defer h.Close()
	if id, err := h.CgroupID(); err != nil || id != k.leaf.ID() {
		return
	}
	up, err := h.Parent()
	if err == nil && up != nil {
		defer up.Close()
		var line, path string
		if line, err = up.CgroupPath(); err == nil {
			path, err = k.x.host.mount.Dir(line)
		}
		if err == nil {
			err = addTo(path, pid)
		}
	}
	if err != nil {
		k.x.host.log.Error("give back a process that was moved by mistake", "turn", k.x.turn, "pid", pid, "error", err)
	}
}

func addTo(path string, pid int) error {
	d, err := cgroup.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Add(pid)
}

// unmovable says who cannot be moved, why, and what to do.
func (k *taking) unmovable(pid int, err error) error {
	why := moveError(pid, err)
	var e *api.Error
	if !errors.As(why, &e) {
		return why
	}
	out := api.AdoptUnmovable.Refuse(pid, "process %d (%s) cannot be moved into the turn: %v", pid, comm(pid), err)
	if name := e.Details["errno_name"]; name != "" {
		out = out.With("errno_name", name)
	}
	if e.Code == api.CodePeerUnverifiable {
		return goneNow(pid)
	}
	remedy := e.Remedy
	if remedy == "" {
		remedy = "its cgroup may be another service manager's, or a container's"
	}
	return out.WithRemedy("%s; or hold it by its identity alone, with min_grade token (--min-grade token)", remedy)
}

// undo moves all that were moved to where each was. What they have forked since
// goes where the first one goes.
func (k *taking) undo(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, backTime)
	defer cancel()
	var errs []error
	for _, t := range k.in {
		if lives, err := t.h.Lives(); err != nil || !lives {
			continue
		}
		if err := t.from.Add(t.id.PID); err != nil {
			if lives, lerr := t.h.Lives(); lerr == nil && lives {
				errs = append(errs, fmt.Errorf("move process %d back to %s: %w", t.id.PID, t.line, err))
			}
		}
	}
	if len(k.in) > 0 {
		if _, err := k.leaf.MoveAll(ctx, k.in[0].from); err != nil {
			errs = append(errs, fmt.Errorf("move back: %w", err))
		}
	}
	return errors.Join(append(errs, k.leaf.Remove(ctx))...) // never a populated one
}

// Readopt finds one again that was moved, or undoes what was not done.
func (x *hold) Readopt(ctx context.Context, process string, was api.Identity, moved bool, may func(containment.Candidate) error) (api.Verdict, []string, error) {
	if !moved {
		return x.keeping.Readopt(ctx, process, was, moved, may)
	}
	leafless, err := x.undoAdoption(ctx, process)
	if err != nil {
		return api.VerdictUnverifiable, nil, err
	}
	h, v, why := x.reopenAdopted(process, was)
	if h == nil {
		return v, why, nil
	}
	in, err := h.CgroupPath()
	if lives, lerr := h.Lives(); lerr == nil && !lives { // as it was there, so it tells how it ended
		in, err = x.facts.CgroupLine, nil
	}
	switch {
	case err != nil:
		h.Close()
		return api.VerdictUnverifiable, why, err
	case !x.within(in) && leafless: // it was moved back, and nobody was told
		h.Close()
		return api.VerdictUnverifiable, why, containment.ErrUndone
	case !x.within(in): // a record alone proves nothing of what is elsewhere
		h.Close()
		return api.VerdictForeign, append(why, "it has left the turn's cgroup, for "+in), nil
	}
	x.enterJoined(startedFrom(process, was, "adopt"), h)
	return api.VerdictOwned, why, nil
}

// undoAdoption undoes one during which the service was killed: nobody was told
// that it had come to be, and ErrUndone is the error. leafless: there is no leaf of
// that name, so it is in, or was, no more.
func (x *hold) undoAdoption(ctx context.Context, process string) (leafless bool, err error) {
	leaf, err := x.openLeaf(process)
	if err != nil {
		return isRemoved(err), errUnless(isRemoved(err), err)
	}
	defer leaf.Close()
	mark, err := leaf.Nonce()
	line, ok := strings.CutPrefix(mark, adoptingMark)
	if err != nil || !ok {
		return false, nil
	}
	_ = thaw(leaf, process)
	path, err := x.host.mount.Dir(line)
	if err != nil {
		return false, err
	}
	from, err := cgroup.Open(path)
	if err != nil {
		return false, fmt.Errorf("undo the adoption of %s: %w", strconv.Quote(process), err)
	}
	defer from.Close()
	_, err = leaf.MoveAll(ctx, from)
	if err == nil {
		err = leaf.Remove(ctx)
	}
	if err != nil {
		return false, fmt.Errorf("undo the adoption of %s: %w", strconv.Quote(process), err)
	}
	return false, containment.ErrUndone
}
