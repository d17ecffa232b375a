package containment

import (
	"cmp"
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/fault"
)

// launchBound is how long a keeper may take over a launch. A launch that the
// gateway no longer waits for is still answered, and recorded.
const launchBound = 30 * time.Second

// Launch starts a process in a turn, as the caller.
func (m *Manager) Launch(ctx context.Context, id string, c Caller, req api.LaunchRequest, fds []*os.File) (api.Process, error) {
	t, err := m.find(id)
	if err != nil {
		return api.Process{}, m.over(id, err)
	}
	l, mt, err := m.settle(c, req, len(fds))
	if err != nil {
		return api.Process{}, err
	}
	if req.IdempotencyKey == "" {
		return m.launch(ctx, t, l, mt, req, fds)
	}
	return t.once(ctx, mt, func() (api.Process, error) { return m.launch(ctx, t, l, mt, req, fds) })
}

func (m *Manager) launch(ctx context.Context, t *turn, l Launch, mt meta, req api.LaunchRequest, fds []*os.File) (api.Process, error) {
	h, err := t.admit(&l.Process, req.MinGrade, req.Epoch)
	if err != nil {
		return api.Process{}, err
	}
	defer t.inflight.Done()
	fault.Point("launch.admitted")
	mt.begin(m.now(), t.stood(), req.DeadlineMS)
	if l.Meta, err = mt.encode(); err != nil {
		return api.Process{}, err
	}
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), launchBound)
	defer cancel()
	st, err := h.Launch(within, l, fds)
	for errors.Is(err, ErrUsed) && within.Err() == nil {
		l.Process = t.nextID()
		st, err = h.Launch(within, l, fds)
	}
	if err != nil {
		return api.Process{}, asAPI(err, api.CodeKeeperLost, "launch "+l.Argv[0])
	}
	fault.Point("launch.answered")
	k := Recovered{Started: st, Argv: l.Argv, Cwd: cmp.Or(st.Cwd, l.Cwd), UID: l.uid(m.cfg.UID)}
	v, err := t.answered(k, mt, st.Process != l.Process)
	if err != nil {
		return api.Process{}, err
	}
	fault.Point("launch.entered")
	return m.withOutput(v), nil
}

// over tells a turn that is over from one that never was.
func (m *Manager) over(id string, err error) error {
	if r, herr := m.ended(id); herr == nil {
		return turnOver(id, r.Turn.State)
	}
	return err
}

func turnOver(id string, s api.State) *api.Error {
	return api.Errorf(api.CodeTurnOver, "turn %s is %s: nothing can be launched in it", id, s).
		WithRemedy("begin another turn").With("state", string(s))
}

// admit takes a launch into the turn, unless the turn is ending: from here on
// an ending waits for it.
func (t *turn) admit(process *string, minGrade api.Grade, epoch int64) (Hold, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.view.State != api.StateOpen:
		return nil, turnOver(t.id, t.view.State)
	case epoch != 0 && epoch != t.view.Epoch:
		return nil, staleEpoch(t.id, epoch, t.view.Epoch)
	case t.hold == nil:
		return nil, api.Errorf(api.CodeKeeperLost, "turn %s is not held: %s", t.id, strings.Join(t.view.Degraded, "; "))
	case t.lost != "":
		return nil, api.Errorf(api.CodeKeeperLost, "the keeper of turn %s is gone: %s", t.id, t.lost).
			WithRemedy("abandon the turn and begin another")
	case t.view.Frozen:
		return nil, frozen(t.id)
	case !t.view.Grade.AtLeast(minGrade):
		return nil, api.Errorf(api.CodeGradeUnavailable, "turn %s is held at grade %s, %s was demanded",
			t.id, t.view.Grade, minGrade).WithRemedy("begin a turn with min_grade")
	}
	*process = t.number()
	t.inflight.Add(1)
	t.clocks.active(t.clock(), api.ActivityTouch)
	return t.hold, nil
}

// number takes the next process id; the lock is held.
func (t *turn) number() string {
	t.next++
	return "p" + strconv.Itoa(t.next-1)
}

func (t *turn) nextID() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.number()
}

func staleEpoch(id string, got, want int64) *api.Error {
	return api.Errorf(api.CodeStaleEpoch, "turn %s is at epoch %d, the request says %d; nothing was touched", id, want, got).
		WithRemedy("it was taken since the caller looked at it: read the turn, and decide again")
}

// settle checks a launch request and decides user, environment, directory,
// streams and attributes.
func (m *Manager) settle(c Caller, req api.LaunchRequest, fds int) (Launch, meta, error) {
	argv, err := words("argv", req.Argv, req.ArgvB64)
	if err != nil {
		return Launch{}, meta{}, err
	}
	env, err := words("env", req.Env, req.EnvB64)
	if err != nil {
		return Launch{}, meta{}, err
	}
	if err := checkLaunch(req, argv, env, fds); err != nil {
		return Launch{}, meta{}, err
	}
	mt := meta{Labels: req.Labels, Key: req.IdempotencyKey}
	if mt.Stop, err = stopOf(req.StopSignal); err != nil {
		return Launch{}, meta{}, err
	}
	u, set, err := m.whom(c, req)
	if err != nil {
		return Launch{}, meta{}, err
	}
	l := Launch{Argv: argv, Env: environ(env, req.EnvAdd, u, hasTerminal(req.Stdio)), Cwd: cmp.Or(req.Cwd, u.Home, "/"),
		Stdio: settleStdio(req.Stdio), Extra: req.PassFDs}
	if set {
		l.User = &u
	}
	if err := m.attributes(c, req, &l); err != nil {
		return Launch{}, meta{}, err
	}
	mt.Kept, mt.Stdin, mt.Terminal = kept(l.Stdio), writable(l.Stdio), hasTerminal(l.Stdio)
	if l.Key = mt.Key; l.Key != "" {
		mt.Hash = requestHash(c, req, fds)
	}
	return l, mt, nil
}

// stopOf is the signal to send first; unsaid: TERM.
func stopOf(name string) (syscall.Signal, error) {
	if name == "" {
		return syscall.SIGTERM, nil
	}
	return ParseSignal(name)
}

func (l Launch) uid(own uint32) uint32 {
	if l.User != nil {
		return l.User.UID
	}
	return own
}
