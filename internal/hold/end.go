package hold

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/cgroup"
	"pinfold.dev/containment"
	"pinfold.dev/internal/fault"
	"pinfold.dev/internal/wire"
	"pinfold.dev/pidfd"
	"pinfold.dev/systemd"
)

// Bounds of the small steps of an ending.
const (
	quitTime   = time.Second            // for a keeper to go when it was told to
	undoTime   = 10 * time.Second       // for it to go, or to be killed, and its cgroup to be removed
	besideTime = 2 * time.Millisecond   // between a keeper's end and populated 0
	settleTime = 200 * time.Millisecond // between populated 0 and the last handle readable
	stopTime   = 5 * time.Second        // for systemd to hear of it,
	stopTries  = 5                      // each of so many times
	tellTime   = 2 * time.Second        // for what is being told when the service stops
)

// Fence returns once the keeper launches nothing more, or is dead.
func (x *keeping) Fence(ctx context.Context) error {
	x.mu.Lock()
	l := x.link
	x.mu.Unlock()
	if x.keeperDead() {
		return nil
	}
	if l == nil { // it may still read what was asked of it before
		return errors.New("fence: the keeper does not answer")
	}
	if _, _, err := l.call(ctx, wire.Message{Op: wire.OpFence}, nil); err != nil {
		if x.keeperDead() {
			return nil
		}
		return fmt.Errorf("fence: %w", err)
	}
	fault.Point("fence.acked")
	return nil
}

// keeperDead asks the kernel.
func (x *keeping) keeperDead() bool {
	if x.keeper == nil {
		return true
	}
	dead, err := x.keeper.Exited()
	return err == nil && dead
}

// EndKeeper kills the keeper, through its handle, and waits until it is dead.
func (x *keeping) EndKeeper(ctx context.Context) error {
	if x.keeperDead() {
		if x.unreached.Load() {
			x.loseKeeper("it has died")
		}
		return nil
	}
	if err := x.killKeeper(); err != nil && !errors.Is(err, pidfd.ErrGone) {
		return fmt.Errorf("kill the keeper: %w", err)
	}
	fault.Point("keeper.killed")
	if err := x.keeper.Wait(ctx); err != nil {
		return fmt.Errorf("wait for the keeper: %w", err)
	}
	if x.unreached.Load() { // only its journal tells what it has launched
		x.loseKeeper("it was killed, since it did not answer")
	}
	return nil
}

// killKeeper sends by its handle, or, where that is not to be, by its identity.
func (x *keeping) killKeeper() error {
	err := x.keeper.Signal(syscall.SIGKILL)
	if !sandboxed(err) {
		return err
	}
	p, v, why := x.host.fb.Recall(x.facts.Keeper)
	if v != api.VerdictOwned {
		return fmt.Errorf("%w; by its number it is %s: %s", err, v, join(why))
	}
	defer p.Close()
	return known{p}.Signal(syscall.SIGKILL)
}

// Ask sends each member its stop signal, and CONT after it. A turn that is frozen
// is thawed when all have been sent to: else nobody could act on it.
func (x *hold) Ask(ctx context.Context, stop func(process string) syscall.Signal) (int, error) {
	n, err := x.work.Signal(func(rel string) syscall.Signal { return stop(launchOf(rel)) })
	if asked, ferr := x.work.FreezeAsked(); ferr == nil && asked {
		err = errors.Join(err, x.work.Freeze(false))
	}
	return n, err
}

// WaitEmpty waits until work/ is empty and every held handle is readable.
func (x *hold) WaitEmpty(ctx context.Context) error {
	if err := x.work.Empty(ctx); err != nil {
		return err
	}
	for id, h := range x.held() {
		if err := h.Wait(ctx); err != nil && x.running(id) {
			return err
		}
	}
	return nil
}

// held are the handles of launches whose end is not known, jobs left out: they
// are none of the turn's any more. So are those of withTokens.
func (x *keeping) held() map[string]*pidfd.Handle {
	out := x.handles()
	maps.DeleteFunc(out, func(id string, _ *pidfd.Handle) bool { return x.body.isJob(id) || x.isToken(id) })
	return out
}

// running tells whether the end of a launch is unknown still; a handle that
// was closed under a waiter belongs to one that has ended.
func (x *keeping) running(id string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.procs[id] != nil && x.procs[id].handle != nil
}

// Kill ends everything in work/, then, through their handles, launches that
// had left it, and waits until all of it is seen gone.
func (x *hold) Kill(ctx context.Context, bound time.Duration) (containment.Killed, error) {
	deadline := time.Now().Add(bound)
	fault.Point("kill.asked")
	k, err := x.work.Kill(ctx, bound)
	out := containment.Killed{Mechanism: k.Mechanism, Rounds: k.Rounds, Seen: k.Seen, KilledAt: k.KilledAt,
		EmptyAt: k.EmptyAt, Survivors: k.Survivors, Notes: k.Notes}
	if err != nil {
		return out, err
	}
	if k.EmptyAt.IsZero() {
		return out, nil
	}
	fault.Point("seen.empty")
	settled, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	for id, h := range x.held() {
		if h.Wait(settled) == nil || !x.running(id) {
			continue
		}
		x.endEscaped(id, h, x.work.Path(), deadline, &out)
	}
	x.unproved(deadline, &out)
	x.endBeside(deadline, &out)
	if len(out.Survivors) == 0 {
		out.EmptyAt = time.Now()
	} else {
		out.EmptyAt = time.Time{}
	}
	return out, nil
}

// endEscaped ends a launch that is not in home any more, which was seen empty: it
// is ours by its handle, wherever it is. What it forked out there is not touched.
//
// One that still names home has not left it, and is only waited for: a cgroup is
// empty as soon as the last of its processes is exiting, and on a busy machine one
// may need long from there to its end (cgroup_task_exit and exit_notify of the
// kernel's do_exit).
func (x *hold) endEscaped(id string, h *pidfd.Handle, home string, deadline time.Time, out *containment.Killed) {
	where, err := h.CgroupPath()
	if errors.Is(err, pidfd.ErrGone) {
		return
	}
	left := err == nil && !x.host.below(where, home)
	if err != nil {
		where, left = "unknown", !x.inLeaf(id, h)
	}
	if err := h.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, pidfd.ErrGone) {
		out.Notes = append(out.Notes, fmt.Sprintf("kill %s in %s: %v", id, where, err))
	}
	fault.Point("escaped.killed")
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	ended := h.Wait(ctx) == nil || !x.running(id)
	verdict := api.VerdictGone
	if !ended {
		verdict = api.VerdictOwned
		out.Survivors = append(out.Survivors, api.Survivor{PID: h.PID(), State: "?", Cgroup: where})
	}
	if !left {
		return
	}
	out.Escaped = append(out.Escaped, id)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.escaped = append(x.escaped, api.Outside{PID: h.PID(), Process: id, Cgroup: where, Ended: ended, Verdict: verdict,
		Evidence: "launched by Pinfold, held by its pidfd; it had left the turn's cgroup"})
}

// inLeaf tells whether a process is seen to be where its launch lives, without
// /proc (PIDFD_GET_INFO, Linux 6.13). What has gone into a cgroup below is not.
func (x *hold) inLeaf(process string, h *pidfd.Handle) bool {
	leaf, err := x.openLeaf(process)
	if err != nil {
		return false
	}
	defer leaf.Close()
	id, err := h.CgroupID()
	return err == nil && id == leaf.ID()
}

// Census asks the keeper what is left below it: processes that had left the
// turn's cgroup. They are told, not touched.
func (x *hold) Census(ctx context.Context) ([]api.Outside, error) {
	x.awaitUnkept(ctx)
	x.mu.Lock()
	l := x.link
	out := append([]api.Outside(nil), x.escaped...)
	x.mu.Unlock()
	if l == nil {
		return out, keeperGone(x.turn)
	}
	m, _, err := l.call(ctx, wire.Message{Op: wire.OpCensus}, nil)
	if err != nil || m.Census == nil {
		return out, fmt.Errorf("ask the keeper: %w", errors.Join(err, errIf(err == nil, "an empty answer")))
	}
	fault.Point("census.answered")
	for _, o := range m.Census.Outside {
		out = append(out, api.Outside{PID: o.PID, Process: o.Process, Comm: o.Comm, Cgroup: o.Cgroup, Verdict: api.VerdictForeign,
			Evidence: "a descendant of the turn's keeper that left the turn's cgroup; it was not touched"})
	}
	if why := m.Census.Unseen; why != "" {
		return out, errors.New(why)
	}
	return out, nil
}

func errIf(cond bool, text string) error {
	if cond {
		return errors.New(text)
	}
	return nil
}

// Alone tells that nobody but the keeper and jobs is in the turn's cgroup, work/
// apart.
func (x *hold) Alone() bool {
	live, err := x.jobsAlive()
	if err != nil {
		return false
	}
	if x.keeperDead() && !live {
		populated, err := x.dir.Populated()
		return err == nil && !populated
	}
	keeper := 0
	if !x.keeperDead() {
		keeper = x.keeper.PID()
	}
	only, err := x.dir.OnlyHolds(keeper, "work", jobsName)
	return err == nil && only
}

// Release lets the keeper go and ends what else is in the turn's cgroup. It does
// nothing while a job lives.
func (x *hold) Release(ctx context.Context) error {
	if err := x.refuseJobs(); err != nil {
		return err
	}
	x.quitting.Store(true)
	x.quit(ctx)
	if err := x.EndKeeper(ctx); err != nil {
		return err
	}
	fault.Point("keeper.gone")
	soon, cancel := context.WithTimeout(ctx, besideTime)
	defer cancel()
	if x.dir.Empty(soon) == nil {
		return nil
	}
	k, err := x.dir.Kill(ctx, quitTime)
	if err != nil {
		return fmt.Errorf("end what was beside work/: %w", err)
	}
	fault.Point("beside.killed")
	if k.EmptyAt.IsZero() {
		return fmt.Errorf("end what was beside work/: %d processes survive", len(k.Survivors))
	}
	return nil
}

// Remove removes the empty cgroup and closes the hold.
func (x *hold) Remove(ctx context.Context) error {
	if err := x.refuseJobs(); err != nil {
		return err
	}
	fault.Point("rmdir.asked")
	if err := x.remove(ctx); err != nil {
		return err
	}
	fault.Point("rmdir.done")
	x.forgetHandles()
	for _, f := range []string{"keeper.sock", "keeper.log"} { // the journal goes with the record
		os.Remove(filepath.Join(x.facts.Dir, f))
	}
	return x.Close()
}

// quit asks the keeper to go.
func (x *keeping) quit(ctx context.Context) {
	x.mu.Lock()
	l := x.link
	x.mu.Unlock()
	if l == nil || x.keeperDead() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, quitTime)
	defer cancel()
	if _, _, err := l.call(ctx, wire.Message{Op: wire.OpQuit}, nil); err == nil {
		fault.Point("quit.answered")
		_ = x.keeper.Wait(ctx) // EndKeeper sees to one that does not go
	}
}

// remove removes the cgroup. A scope's own directory is systemd's to remove:
// it does so when it sees it empty, or is told.
func (x *hold) remove(ctx context.Context) error {
	if x.dir == nil {
		if x.facts.Unit != "" { // systemd may have made it all the same, around a keeper that had died
			x.tell()
		}
		return nil
	}
	if x.facts.Grade != api.GradeScope {
		return x.dir.Remove(ctx)
	}
	entries, err := os.ReadDir(x.dir.Path())
	if errors.Is(err, os.ErrNotExist) {
		x.tell() // a unit that failed may be kept
		return nil
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		var sub *cgroup.Dir
		if sub, err = x.dir.Open(e.Name()); errors.Is(err, os.ErrNotExist) {
			continue
		} else if err != nil {
			return fmt.Errorf("remove the scope's cgroups: %w", err)
		}
		err = sub.Remove(ctx)
		sub.Close()
		if err != nil {
			return fmt.Errorf("remove the scope's cgroups: %w", err)
		}
	}
	x.tell()
	return nil
}

// tell has tellSystemd run beside.
func (x *hold) tell() {
	if mgr := x.host.mgr; mgr != nil { // none is kept after a self-test that failed
		x.host.telling.Go(func() { x.tellSystemd(mgr) })
	}
}

// tellSystemd stops the unit, which is empty; the answer changes nothing. It
// tries again: systemd may be busy, and may itself have missed that the scope
// is empty.
func (x *hold) tellSystemd(mgr *systemd.Manager) {
	var err error
	for try := range stopTries {
		ctx, cancel := context.WithTimeout(context.Background(), stopTime)
		fault.Point("scope.stop")
		err = mgr.StopScope(ctx, x.facts.Unit)
		cancel()
		if err == nil {
			fault.Point("scope.stopped")
			x.rmScope()
			return
		}
		time.Sleep(time.Second << try)
	}
	x.host.log.Warn("stop an empty scope", "unit", x.facts.Unit, "error", err)
}

// rmScope removes the directory of a scope that systemd has stopped. It does that
// itself, but not when our removal of what was below came in between; and one that
// is stopped as soon as it was started may be made once more after it was removed.
func (x *hold) rmScope() {
	if x.facts.Cgroup == "" {
		return
	}
	var err error
	for try := range stopTries {
		time.Sleep(50 * time.Millisecond << try)
		if err = os.Remove(x.facts.Cgroup); err == nil || errors.Is(err, os.ErrNotExist) { // rmdir: never a populated one
			path := x.facts.Cgroup
			time.AfterFunc(time.Second, func() { _ = os.Remove(path) })
			return
		}
	}
	x.host.log.Warn("remove the cgroup of a scope that was stopped", "unit", x.facts.Unit, "error", err)
}
