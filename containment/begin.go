package containment

import (
	"context"
	"errors"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"pinfold.dev/api"
	"pinfold.dev/internal/fault"
)

// Bounds of what a request may say.
const (
	maxLabel      = 256
	maxLabels     = 64
	maxLabelBytes = 64 << 10 // of all their names and values
)

// Begin opens a turn that the caller owns.
func (m *Manager) Begin(ctx context.Context, c Caller, req api.BeginRequest) (api.Turn, error) {
	if err := m.checkedBegin(req); err != nil {
		return api.Turn{}, err
	}
	if req.IdempotencyKey != "" {
		return m.beginOnce(ctx, c, req)
	}
	return m.beginNew(ctx, c, req, nil, "")
}

// checkedBegin refuses a request that cannot be met.
func (m *Manager) checkedBegin(req api.BeginRequest) error {
	if err := checkBegin(req); err != nil {
		return err
	}
	g := m.Grade()
	if req.AllowPIDNS && !g.AtLeast(api.GradePIDNS) {
		g = api.GradePIDNS // perhaps: the host tries it
	}
	if !g.AtLeast(req.MinGrade) {
		return api.Errorf(api.CodeGradeUnavailable,
			"this host holds turns at grade %s, %s was demanded", g, req.MinGrade).
			WithRemedy("see `pinfold doctor` for what is missing, or ask for less")
	}
	return nil
}

// beginNew opens a turn as it is asked for, which nobody did before.
func (m *Manager) beginNew(ctx context.Context, c Caller, req api.BeginRequest, key *BeginKey, kind api.TurnKind) (api.Turn, error) {
	t := m.newTurn(api.Turn{ID: newID(), Kind: kind, Epoch: 1, Label: req.Label, Labels: req.Labels, Session: req.Session,
		Owner: c.UID, State: api.StateOpen, Leftovers: leftoversOf(req), Limits: req.Limits,
		OutputMax: req.OutputMax, OnOutputMax: req.OnOutputMax, CreatedAt: time.Now().UTC(),
		WallMS: req.WallMS, LeaseMS: req.LeaseMS, IdleMS: req.IdleMS, IdleBy: req.IdleBy, Client: req.Client,
		Policy: req.Policy, LeftoversMaxMS: req.LeftoversMaxMS})
	t.graceMS, t.begun = req.GraceMS, key
	t.clocks = newClocks(m.now(), req)
	if err := m.bindClient(t, c); err != nil {
		return api.Turn{}, err
	}
	v, err := m.begin(ctx, t, req.MinGrade, req.AllowPIDNS)
	if err != nil {
		t.mu.Lock()
		t.client.leave()
		t.mu.Unlock()
		return v, err
	}
	m.met(t)
	if req.Supersede {
		m.supersede(t, c)
	}
	return v, nil
}

func (m *Manager) begin(ctx context.Context, t *turn, minGrade api.Grade, allowPIDNS bool) (api.Turn, error) {
	defer m.bearing(t.id)()
	hooks := m.hooks(t)
	fault.Point("begin.asked")
	h, err := m.cfg.Host.Begin(ctx, Spec{Turn: t.id, Label: t.view.Label, OwnerUID: t.owner, Limits: t.view.Limits,
		MinGrade: minGrade, AllowPIDNS: allowPIDNS, Spool: m.cfg.Outputs.Dir(t.id), OutputMax: t.view.OutputMax}, hooks)
	if err != nil {
		if derr := m.cfg.Records.Discard(t.id); derr != nil {
			m.log.Warn("discard the record of a turn that did not begin", "turn", t.id, "error", derr)
		}
		return api.Turn{}, asAPI(err, api.CodeUnavailable, "begin a turn")
	}
	fault.Point("begin.held")
	t.mu.Lock()
	t.hold = h
	t.setFacts(h.Facts())
	t.tellBegun()
	t.mu.Unlock()
	m.mu.Lock()
	m.add(t)
	m.mu.Unlock()
	m.followLast(t)
	fault.Point("begin.entered")
	m.log.Info("turn begun", "turn", t.id, "owner", t.owner, "grade", t.view.Grade, "label", t.view.Label)
	return t.show(), nil
}

// bearing notes that a turn is being begun, until the result is called.
func (m *Manager) bearing(id string) (done func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unborn[id] = true
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.unborn, id)
	}
}

// newTurn makes a turn that knows the clock.
func (m *Manager) newTurn(view api.Turn) *turn {
	t := newTurn(view)
	t.clock, t.events, t.expire = m.now, m.cfg.Events, func(process string) { m.expire(t, process) }
	t.tick = func() { m.lookAtClocks(t) }
	return t
}

// hooks are what the turn's hold calls back.
func (m *Manager) hooks(t *turn) Hooks {
	return Hooks{
		Save: func(f Facts) error {
			t.mu.Lock()
			t.setFacts(f)
			t.mu.Unlock()
			return m.save(t)
		},
		Exit: func(x Exit) {
			t.exited(x)
			if t.keeps(x.Process) {
				m.sweepSoon()
			}
		},
		Started:   t.startedBefore,
		OutputMax: func() { m.outputMaxed(t) },
		Fenced:    func() { m.fencedBefore(t) },
		KeeperLost: func(why string) {
			m.log.Warn("keeper lost", "turn", t.id, "why", why)
			t.keeperLost(why)
		},
	}
}

// setFacts enters what the hold says; the lock is held.
func (t *turn) setFacts(f Facts) {
	t.facts = f
	t.view.Grade, t.view.Cgroup, t.view.Unit, t.view.KeeperPID = f.Grade, f.Cgroup, f.Unit, f.Keeper.PID
	t.view.Degraded = append([]string(nil), f.Degraded...)
}

func checkBegin(req api.BeginRequest) error {
	switch {
	case len(req.Label) > maxLabel:
		return api.Errorf(api.CodeBadRequest, "label is %d bytes long, at most %d are kept", len(req.Label), maxLabel)
	case req.Leftovers != "" && req.Leftovers != api.LeftoversKeep && req.Leftovers != api.LeftoversReap:
		return api.Errorf(api.CodeBadRequest, "leftovers is %q, not keep or reap", req.Leftovers)
	case req.OutputMax < 0:
		return api.Errorf(api.CodeBadRequest, "output_max is %d, which is negative", req.OutputMax)
	case req.OnOutputMax != "" && req.OnOutputMax != api.OutputDrop && req.OnOutputMax != api.OutputStop:
		return api.Errorf(api.CodeBadRequest, "on_output_max is %q, not drop or stop", req.OnOutputMax)
	case req.OnOutputMax != "" && req.OutputMax == 0:
		return api.Errorf(api.CodeBadRequest, "on_output_max is given, but no output_max")
	case req.GraceMS != nil && (*req.GraceMS < 0 || *req.GraceMS > maxGraceMS):
		return api.Errorf(api.CodeBadRequest, "grace_ms is %d, not between 0 and %d", *req.GraceMS, maxGraceMS)
	}
	if err := checkText("label", req.Label); err != nil {
		return err
	}
	if err := checkLabels(req.Labels); err != nil {
		return err
	}
	if err := checkText("session", req.Session); err != nil {
		return err
	}
	if len(req.Session) > maxLabel {
		return api.Errorf(api.CodeBadRequest, "session is %d bytes long, at most %d are kept", len(req.Session), maxLabel)
	}
	if err := checkGrade(req.MinGrade); err != nil {
		return err
	}
	if err := checkLife(req); err != nil {
		return err
	}
	return checkLimits(req.Limits)
}

// maxGraceMS bounds the time between TERM and KILL: an hour.
const maxGraceMS = 3600_000

// checkText refuses what would break a terminal or a log line.
func checkText(field, s string) error {
	if !utf8.ValidString(s) {
		return api.Errorf(api.CodeBadRequest, "%s is not valid UTF-8", field)
	}
	for _, r := range s {
		if unicode.IsControl(r) {
			return api.Errorf(api.CodeBadRequest, "%s holds the control character %U", field, r)
		}
	}
	return nil
}

func checkGrade(g api.Grade) error {
	if g == "" || g == api.GradeAuto {
		return nil
	}
	for _, k := range api.Grades() {
		if k == g {
			return nil
		}
	}
	return api.Errorf(api.CodeBadRequest, "min_grade is %q, not one of %v", g, api.Grades())
}

func checkLimits(l *api.Limits) error {
	if l == nil {
		return nil
	}
	if l.MemoryBytes < 0 || l.PIDs < 0 || l.CPUPercent < 0 || (l.SwapBytes != nil && *l.SwapBytes < 0) {
		return api.Errorf(api.CodeBadRequest, "a limit is negative")
	}
	return nil
}

// asAPI makes an *api.Error of any error.
func asAPI(err error, code api.Code, doing string) error {
	var e *api.Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, context.DeadlineExceeded):
		return api.Errorf(api.CodeTimeout, "%s: %v", doing, err)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return api.Errorf(code, "%s: %v", doing, err).
			WithRemedy("free space there; what runs can be ended meanwhile, and `pinfold doctor --records` tells what is kept")
	}
	return api.Errorf(code, "%s: %v", doing, err)
}
