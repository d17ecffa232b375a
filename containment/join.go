package containment

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/fault"
)

// Join moves the caller's own process, held by its pidfd, into a fresh leaf of
// the turn. It stays its parent's child, and ends with the turn.
func (m *Manager) Join(ctx context.Context, id string, c Caller, req api.JoinRequest, peer *os.File) (api.Process, error) {
	t, err := m.find(id)
	if err != nil {
		return api.Process{}, m.over(id, err)
	}
	mt, err := m.settleJoin(c, req)
	if err != nil {
		return api.Process{}, err
	}
	var process string
	h, err := t.admit(&process, req.MinGrade, req.Epoch)
	if err != nil {
		return api.Process{}, err
	}
	defer t.inflight.Done()
	if !h.Facts().Grade.AtLeast(api.GradeCgroup) {
		return api.Process{}, api.Errorf(api.CodeGradeUnavailable, "turn %s is held at grade %s: a process that runs can be moved into a cgroup only", id, h.Facts().Grade).
			WithRemedy("launch it in the turn instead: `pinfold run` without --in-place")
	}
	where := func(cgroup string) error { return m.mayJoin(t, c, cgroup) }
	before := func(st Started) error { return m.enterJoined(t, c, req, mt, st) }
	fault.Point("join.admitted")
	within, cancel := context.WithTimeout(ctx, launchBound)
	defer cancel()
	m.moving.RLock()
	err = h.Join(within, process, peer, where, before)
	for errors.Is(err, ErrUsed) && within.Err() == nil {
		process = t.nextID()
		err = h.Join(within, process, peer, where, before)
	}
	m.moving.RUnlock()
	if err != nil {
		m.leaveJoined(t, process)
		return api.Process{}, asAPI(err, api.CodeInternal, "move the caller into turn "+id)
	}
	fault.Point("join.answered")
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.byID[process]
	p.joining = false
	t.tellProcess(p)
	return p.view, nil
}

func (m *Manager) settleJoin(c Caller, req api.JoinRequest) (mt meta, err error) {
	if len(req.Argv) > 0 {
		err = checkArgv(req.Argv)
	}
	if err == nil {
		err = checkCwd(api.LaunchRequest{Cwd: req.Cwd})
	}
	if err == nil {
		err = checkLabels(req.Labels)
	}
	if err == nil {
		err = checkGrade(req.MinGrade)
	}
	if err != nil {
		return mt, err
	}
	if c.UID != m.cfg.UID && m.cfg.UID != 0 {
		return mt, api.Errorf(api.CodeForbidden, "the service runs as uid %d and cannot hold a process of uid %d", m.cfg.UID, c.UID).
			WithRemedy("use the system service, or one of your own")
	}
	mt.Labels = req.Labels
	mt.Stop, err = stopOf(req.StopSignal)
	return mt, err
}

// mayJoin refuses a process that another turn holds, or that is one of this
// turn's own already.
func (m *Manager) mayJoin(t *turn, c Caller, cgroup string) error {
	if in, ok := m.TurnOfCgroup(cgroup); ok && in != t.id {
		return api.Errorf(api.CodeForbidden, "process %d is in turn %s already", c.PID, in).With("turn", in).
			WithRemedy("a process is in one turn; launch another through the API")
	}
	if err := m.heldElsewhere(t, c); err != nil {
		return err
	}
	t.awaitLaunch(cgroup)
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.procs {
		same := p.view.Identity.Ino == c.Ino && (c.Ino != 0 || p.view.PID == c.PID)
		if p.view.Status.State == api.ProcessRunning && same {
			return api.Errorf(api.CodeBadRequest, "process %d is %s of turn %s already", c.PID, p.view.ID, t.id)
		}
	}
	return nil
}

// launchSoon bounds the wait for a launch that runs and is not answered yet.
const launchSoon = 2 * time.Second

// awaitLaunch waits until the launch is known in whose leaf the caller is: it may
// ask to join before its own launch was answered.
func (t *turn) awaitLaunch(cgroup string) {
	leaf, ok := strings.CutPrefix(cgroup, t.cgroupLine()+"/work/")
	if !ok {
		return
	}
	leaf, _, _ = strings.Cut(leaf, "/")
	late := time.After(launchSoon)
	for {
		t.mu.Lock()
		known, changed := t.byID[leaf] != nil, t.changed
		t.mu.Unlock()
		if known {
			return
		}
		select {
		case <-changed:
		case <-late:
			return
		}
	}
}

// enterJoined records who is about to join: what runs in a turn is known before
// it is in it.
func (m *Manager) enterJoined(t *turn, c Caller, req api.JoinRequest, mt meta, st Started) error {
	if st.At.IsZero() {
		st.At = time.Now()
	}
	t.mu.Lock()
	p := t.newProcess(Recovered{Started: st, Argv: req.Argv, Cwd: req.Cwd, UID: c.UID}, mt)
	p.view.InPlace, p.view.FinishesTurn, p.joining = true, req.FinishTurn, true
	t.addProcess(p)
	t.mu.Unlock()
	if err := m.save(t); err != nil {
		return api.Errorf(api.CodeUnavailable, "record the process: %v", err)
	}
	fault.Point("join.recorded")
	return nil
}

// leaveJoined forgets a process that did not join after all.
func (m *Manager) leaveJoined(t *turn, process string) {
	t.mu.Lock()
	known := t.byID[process] != nil
	t.removeProcess(process)
	t.mu.Unlock()
	if known {
		if err := m.save(t); err != nil {
			m.log.Warn("save the record of a turn", "turn", t.id, "error", err)
		}
	}
}

// rejoin finds the processes again that had joined, or were ejected: nobody tells how
// they end but their handles. The lock is not held.
func (m *Manager) rejoin(t *turn, h Hold) {
	t.mu.Lock()
	var joined []api.Process
	for _, p := range t.procs {
		if p.byHandle() && p.view.Adopted == nil && p.view.Status.State == api.ProcessRunning {
			joined = append(joined, p.view)
		}
	}
	t.mu.Unlock()
	for _, v := range joined {
		verdict, err := h.Rejoin(v.ID, v.Identity)
		if verdict == api.VerdictOwned && err == nil {
			continue
		}
		m.log.Info("a process that had joined is not found again", "turn", t.id, "process", v.ID, "verdict", verdict, "error", err)
		if verdict == api.VerdictOwned || verdict == api.VerdictUnverifiable { // it may be there: what cannot be known ends nothing
			t.mu.Lock()
			t.view.Degraded = append(t.view.Degraded, fmt.Sprintf("process %s, which had joined, cannot be verified after a restart: how it ends is not seen: %v", v.ID, err))
			t.mu.Unlock()
			continue
		}
		t.exited(Exit{Process: v.ID, At: time.Now(), Status: api.Status{State: api.ProcessLost,
			Why: "it ended, or left the turn, while there was no service"}})
	}
}

// finishIfDone has the turn finished when a process has ended that was to do
// that; the lock is held.
func (t *turn) finishIfDone(p *process) {
	if p.view.FinishesTurn && p.view.Status.State != api.ProcessRunning && t.view.State == api.StateOpen && t.finish != nil {
		t.finish(p.view.UID)
	}
}

// followLast has the turn finished after its process from now on, and if that has
// ended already, now.
func (m *Manager) followLast(t *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.finish = func(uid uint32) { m.wg.Go(func() { m.finishAfter(t, uid) }) }
	for _, p := range t.procs {
		t.finishIfDone(p)
	}
}

// finishAfter finishes a turn whose process has ended. When the service is
// stopping, the next one does.
func (m *Manager) finishAfter(t *turn, uid uint32) {
	select {
	case <-m.stop:
		return
	default:
	}
	if err := m.startEnding(t, m.endRequest(t, Caller{UID: uid}, api.ReasonFinished, nil)); err != nil {
		m.log.Warn("finish a turn after its process", "turn", t.id, "error", err)
	}
}
