package containment

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/fault"
)

// adoptBound is how long the move of a process and its descendants may take. An
// ending of the turn waits for it.
const adoptBound = 10 * time.Second

// Adopt takes a process that runs already into a turn. pidfd is what came along
// with the request, or nil; it stays the caller's.
func (m *Manager) Adopt(ctx context.Context, id string, c Caller, req api.AdoptRequest, pidfd *os.File) (api.Process, error) {
	t, err := m.find(id)
	if err != nil {
		return api.Process{}, m.over(id, err)
	}
	mt, err := m.settleAdopt(c, req, pidfd != nil)
	if err != nil {
		return api.Process{}, err
	}
	if req.IdempotencyKey == "" {
		return m.adoptNow(ctx, t, c, req, mt, pidfd)
	}
	return t.once(ctx, mt, func() (api.Process, error) { return m.adoptNow(ctx, t, c, req, mt, pidfd) })
}

func (m *Manager) settleAdopt(c Caller, req api.AdoptRequest, handle bool) (mt meta, err error) {
	who := req.Process
	switch {
	case who.PID < 0 || who.PID == 1 || who.PID == 0 && !handle:
		return mt, api.AdoptAmbiguous.Refuse(0, "pid %d is no process that can be adopted", who.PID).WithRemedy("name one process, above 1")
	case !handle && who.StartTicks == 0 && who.Ino == 0:
		return mt, api.AdoptAmbiguous.Refuse(who.PID, "process %d is named by its number alone, which may be another's by now", who.PID).
			WithRemedy("send its pidfd with the request, or say its start_ticks (field 22 of /proc/%d/stat)", who.PID)
	case len(req.IdempotencyKey) > maxKey:
		return mt, api.Errorf(api.CodeBadRequest, "idempotency_key is longer than %d bytes", maxKey)
	}
	if err = checkLabels(req.Labels); err == nil {
		err = checkGrade(req.MinGrade)
	}
	if err != nil {
		return mt, err
	}
	mt = meta{Labels: req.Labels, Key: req.IdempotencyKey}
	if mt.Key != "" {
		req.Epoch, req.Process.CgroupID = 0, 0 // see requestHash; and it is elsewhere once it was moved
		mt.Hash = hashed(struct {
			UID    uint32
			Handle bool
			Adopt  api.AdoptRequest
		}{c.UID, handle, req})
	}
	mt.Stop, err = stopOf(req.StopSignal)
	return mt, err
}

func (m *Manager) adoptNow(ctx context.Context, t *turn, c Caller, req api.AdoptRequest, mt meta, pidfd *os.File) (api.Process, error) {
	a := Adopting{Said: req.Process, PIDFD: pidfd, Peer: c.Process, PeerPID: c.PID, Tree: req.Tree, Ancestor: req.Ancestor}
	h, err := t.admit(&a.Process, req.MinGrade, req.Epoch)
	if err != nil {
		return api.Process{}, err
	}
	defer t.inflight.Done()
	fault.Point("adopt.admitted")
	moves := h.Facts().Grade.AtLeast(api.GradeCgroup)
	a.Token = req.MinGrade == api.GradeToken || !moves && !namesGrade(req.MinGrade)
	if !moves && !a.Token {
		return api.Process{}, api.Errorf(api.CodeGradeUnavailable, "turn %s is held at grade %s: a process that runs already is held in it by its identity alone", t.id, h.Facts().Grade).
			WithRemedy("ask for min_grade token, or use a turn at grade cgroup")
	}
	a.May = func(k Candidate) error { return m.mayAdopt(t, c, req, k) }
	a.Before = func(k Adopted) error { return m.enterAdopted(t, c, mt, k) }
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), adoptBound)
	defer cancel()
	m.moving.Lock() // of two that want the same process the later one sees where it is
	k, err := h.Adopt(within, a)
	for errors.Is(err, ErrUsed) && within.Err() == nil {
		a.Process = t.nextID()
		k, err = h.Adopt(within, a)
	}
	m.moving.Unlock()
	if err != nil {
		m.leaveJoined(t, a.Process)
		return api.Process{}, asAPI(err, api.CodeInternal, "adopt a process into turn "+t.id)
	}
	fault.Point("adopt.answered")
	v := t.adopted(a.Process, k)
	if err := m.save(t); err != nil {
		m.log.Warn("save the record of a turn with an adopted process", "turn", t.id, "error", err)
	}
	m.log.Info("process adopted", "turn", t.id, "process", v.ID, "pid", v.PID, "grade", v.Grade, "moved", k.Moved, "uid", c.UID)
	return v, nil
}

// namesGrade tells whether a grade is demanded.
func namesGrade(g api.Grade) bool { return g != "" && g != api.GradeAuto }

// enterAdopted records who is about to be taken in: what is in a turn is known
// before it is in it.
func (m *Manager) enterAdopted(t *turn, c Caller, mt meta, k Adopted) error {
	at := time.Now().UTC()
	k.Started.At = at
	t.mu.Lock()
	t.removeProcess(k.Started.Process) // it could not be moved, and is held otherwise
	p := t.newProcess(Recovered{Started: k.Started, Argv: k.Argv, Cwd: k.Cwd, UID: k.UID}, mt)
	p.joining = true
	p.view.Grade = k.Grade
	p.view.Adopted = &api.Adoption{At: at, From: k.From, Moved: k.Moved, Stdio: api.StdioTheirs, Evidence: k.Evidence,
		By: api.Actor{UID: c.UID, PID: c.PID, Ino: c.Ino, Cgroup: c.Cgroup}}
	t.addProcess(p)
	t.mu.Unlock()
	if err := m.save(t); err != nil {
		return api.Errorf(api.CodeUnavailable, "record the process: %v", err)
	}
	fault.Point("adopt.recorded")
	return nil
}

// adopted enters that it is in.
func (t *turn) adopted(process string, k Adopted) api.Process {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.byID[process]
	how := *p.view.Adopted
	how.Moved = k.Moved
	p.view.Adopted, p.joining = &how, false
	t.tellProcess(p)
	t.touch()
	return p.view
}

// mayAdopt is the rule of who may be adopted, by whom, into which turn.
func (m *Manager) mayAdopt(t *turn, c Caller, req api.AdoptRequest, k Candidate) error {
	pid := k.Identity.PID
	if in, ok := m.TurnOfCgroup(k.Cgroup); ok && k.Cgroup != "" {
		return heldAlready(pid, in)
	}
	if err := m.heldBySomebody(t, k); err != nil {
		return err
	}
	if err := m.ownsAll(t, k); err != nil {
		return err
	}
	for _, uid := range k.UIDs {
		if c.UID != 0 && uid != c.UID {
			return otherUser(k, "the caller is uid %d", c.UID)
		}
	}
	t.mu.Lock()
	client := sameProcess(t.clientID, k.Identity)
	t.mu.Unlock()
	if !req.Ancestor && (k.Caller || client) {
		what := "the caller, or an ancestor of the caller"
		if client {
			what = "the turn's client"
		}
		return api.AdoptAncestor.Refuse(pid, "process %d (%s) is %s: ending the turn would end that", pid, k.Comm, what).
			WithRemedy("say ancestor (--ancestor) if that is meant; to run a command in the turn in the caller's place, use run --in-place")
	}
	return nil
}

// ownsAll refuses what is not wholly the turn's owner's, unless that is root.
func (m *Manager) ownsAll(t *turn, k Candidate) error {
	for _, uid := range k.UIDs {
		switch {
		case t.owner != 0 && uid != t.owner:
			return otherUser(k, "turn %s is uid %d's", t.id, t.owner)
		case m.cfg.UID != 0 && uid != m.cfg.UID:
			return otherUser(k, "the service runs as uid %d", m.cfg.UID)
		}
	}
	return nil
}

func otherUser(k Candidate, format string, args ...any) error {
	return api.AdoptOther.Refuse(k.Identity.PID, "process %d (%s) has the user ids %v; "+format,
		append([]any{k.Identity.PID, k.Comm, k.UIDs}, args...)...).
		WithRemedy("only a process whose real, effective and saved user ids are all the turn's owner's can be adopted")
}

func heldAlready(pid int, turn string) error {
	return api.AdoptHeld.Refuse(pid, "process %d is in turn %s already", pid, turn).With("turn", turn).
		WithRemedy("a process is in one turn")
}

// heldBySomebody refuses what a turn holds without a cgroup of its own, and the
// keepers. One that has left the cgroup of this very turn may come back.
func (m *Manager) heldBySomebody(t *turn, k Candidate) error {
	for _, other := range m.all() {
		other.mu.Lock()
		keeper, held, moves := other.facts.Keeper, other.hold != nil, other.view.Grade.AtLeast(api.GradeCgroup)
		known := false
		for _, p := range other.procs {
			known = known || p.view.Status.State == api.ProcessRunning && sameProcess(p.view.Identity, k.Identity)
		}
		other.mu.Unlock()
		if !held {
			continue
		}
		if sameProcess(keeper, k.Identity) {
			return api.AdoptPinfold.Refuse(k.Identity.PID, "process %d is the keeper of turn %s", k.Identity.PID, other.id)
		}
		if known {
			return heldAlready(k.Identity.PID, other.id)
		}
		for _, above := range k.Above {
			if sameProcess(keeper, above) && (other != t || !moves) {
				return heldAlready(k.Identity.PID, other.id)
			}
		}
	}
	return nil
}

// heldElsewhere refuses a caller that another turn holds by its identity alone: no
// cgroup shows that.
func (m *Manager) heldElsewhere(t *turn, c Caller) error {
	for _, other := range m.all() {
		if other == t || c.Ino == 0 {
			continue
		}
		other.mu.Lock()
		held := slices.ContainsFunc(other.procs, func(p *process) bool {
			return p.view.Adopted != nil && p.view.Status.State == api.ProcessRunning && p.view.Identity.Ino == c.Ino
		})
		other.mu.Unlock()
		if held {
			return heldAlready(c.PID, other.id)
		}
	}
	return nil
}

// sameProcess tells whether two identities are of one process: by the pidfs inode
// where both have it.
func sameProcess(a, b api.Identity) bool {
	if a.PID == 0 || a.Boot != b.Boot {
		return false
	}
	if a.Ino != 0 && b.Ino != 0 {
		return a.Ino == b.Ino
	}
	return a.PID == b.PID && a.StartTicks == b.StartTicks && a.PIDNS == b.PIDNS
}

// readopt finds the adopted processes again; the lock is not held.
func (m *Manager) readopt(t *turn, h Hold) {
	t.mu.Lock()
	var all []api.Process
	for _, p := range t.procs {
		if p.view.Adopted != nil && p.view.Status.State == api.ProcessRunning {
			all = append(all, p.view)
		}
	}
	t.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), adoptBound)
	defer cancel()
	for _, v := range all {
		verdict, why, err := h.Readopt(ctx, v.ID, v.Identity, v.Grade.AtLeast(api.GradeCgroup),
			func(k Candidate) error { return m.ownsAll(t, k) })
		switch {
		case errors.Is(err, ErrUndone):
			m.log.Info("an adoption that was cut short is undone", "turn", t.id, "process", v.ID, "why", why)
			t.mu.Lock()
			t.removeProcess(v.ID)
			t.mu.Unlock()
		case verdict == api.VerdictUnverifiable:
			t.mu.Lock()
			t.view.Degraded = append(t.view.Degraded, "process "+v.ID+", which was adopted, cannot be verified, and is not signalled: "+because(why, err))
			t.mu.Unlock()
		case verdict != api.VerdictOwned:
			t.exited(Exit{Process: v.ID, At: time.Now(), Status: api.Status{State: api.ProcessLost,
				Why: foundAs(verdict) + because(why, err)}})
		}
	}
}

// foundAs begins the reason of one whose end nobody saw.
func foundAs(v api.Verdict) string {
	return "it was " + string(v) + " when the service came back: "
}

func because(why []string, err error) string {
	if err != nil {
		return err.Error()
	}
	if len(why) == 0 {
		return "nobody knows why"
	}
	return why[len(why)-1]
}
