package containment

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"pinfold.dev/api"
)

// launchBound is how long a keeper may take over a launch. A launch that the
// gateway no longer waits for is still answered, and recorded.
const launchBound = 30 * time.Second

// meta is what the service wants to know of a launch after a restart.
type meta struct {
	Labels map[string]string `json:"labels,omitempty"`
	Stop   int               `json:"stop,omitempty"`
}

// Launch starts a process in a turn, as the caller.
func (m *Manager) Launch(ctx context.Context, id string, c Caller, req api.LaunchRequest, fds []*os.File) (api.Process, error) {
	t, err := m.find(id)
	if err != nil {
		return api.Process{}, m.over(id, err)
	}
	l, stop, err := m.settle(c, req, len(fds))
	if err != nil {
		return api.Process{}, err
	}
	h, err := t.admit(&l, req)
	if err != nil {
		return api.Process{}, err
	}
	defer t.inflight.Done()
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), launchBound)
	defer cancel()
	st, err := h.Launch(bounded, l, fds)
	for errors.Is(err, ErrUsed) && bounded.Err() == nil {
		l.Process = t.nextID()
		st, err = h.Launch(bounded, l, fds)
	}
	if err != nil {
		return api.Process{}, asAPI(err, api.CodeKeeperLost, "launch "+l.Argv[0])
	}
	p := &process{stop: stop, view: api.Process{ID: l.Process, Turn: id, PID: st.PID, Argv: l.Argv, Cwd: l.Cwd,
		UID: l.uid(m.cfg.UID), Labels: req.Labels, Status: api.Status{State: api.ProcessRunning},
		StartedAt: st.At.UTC(), Identity: st.Identity, Grade: h.Facts().Grade, Placement: st.Placement}}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.addProcess(p)
	return p.view, nil
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
func (t *turn) admit(l *Launch, req api.LaunchRequest) (Hold, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.view.State != api.StateOpen:
		return nil, turnOver(t.id, t.view.State)
	case req.Epoch != 0 && req.Epoch != t.view.Epoch:
		return nil, staleEpoch(t.id, req.Epoch, t.view.Epoch)
	case t.hold == nil:
		return nil, api.Errorf(api.CodeKeeperLost, "turn %s is not held: %s", t.id, strings.Join(t.view.Degraded, "; "))
	case t.lost != "":
		return nil, api.Errorf(api.CodeKeeperLost, "the keeper of turn %s is gone: %s", t.id, t.lost).
			WithRemedy("abandon the turn and begin another")
	case !t.view.Grade.AtLeast(req.MinGrade):
		return nil, api.Errorf(api.CodeGradeUnavailable, "turn %s is held at grade %s, %s was demanded",
			t.id, t.view.Grade, req.MinGrade).WithRemedy("begin a turn with min_grade")
	}
	l.Process = t.number()
	t.inflight.Add(1)
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
	return api.Errorf(api.CodeStaleEpoch, "turn %s is at epoch %d, the request says %d; nothing was touched", id, want, got)
}

// settle checks a launch request and decides user, environment and directory.
func (m *Manager) settle(c Caller, req api.LaunchRequest, fds int) (Launch, syscall.Signal, error) {
	if err := checkLaunch(req, fds); err != nil {
		return Launch{}, 0, err
	}
	stop := syscall.SIGTERM
	if req.StopSignal != "" {
		var err error
		if stop, err = ParseSignal(req.StopSignal); err != nil {
			return Launch{}, 0, err
		}
	}
	u, set, err := m.user(c, req.User)
	if err != nil {
		return Launch{}, 0, err
	}
	l := Launch{Argv: req.Argv, Env: scrub(req.Env), Cwd: cmp.Or(req.Cwd, u.Home, "/"), Stdio: req.Stdio}
	if set {
		l.User = &u
	}
	if req.Env == nil {
		l.Env = baseEnv(u)
	}
	b, err := json.Marshal(meta{Labels: req.Labels, Stop: int(stop)})
	if err != nil {
		return Launch{}, 0, fmt.Errorf("encode launch: %w", err)
	}
	l.Meta = string(b)
	return l, stop, nil
}

func (l Launch) uid(own uint32) uint32 {
	if l.User != nil {
		return l.User.UID
	}
	return own
}

// user is whom the process runs as; set tells that it is not the service's own.
func (m *Manager) user(c Caller, name string) (u User, set bool, err error) {
	if name == "" {
		u, err = m.cfg.Users.ByUID(c.UID)
		if err != nil { // a uid without an entry is no mistake: containers have many
			u = User{Home: "/", Shell: "/bin/sh", Name: strconv.FormatUint(uint64(c.UID), 10)}
		}
		u.UID, u.GID, u.Groups = c.UID, c.GID, c.Groups
		if c.UID != m.cfg.UID && m.cfg.UID != 0 {
			return u, false, api.Errorf(api.CodeForbidden, "the service runs as uid %d and cannot launch as uid %d", m.cfg.UID, c.UID).
				WithRemedy("use the system service, or one of your own")
		}
		return u, m.cfg.UID == 0, nil
	}
	u, err = m.cfg.Users.ByName(name)
	if err != nil {
		return u, false, api.Errorf(api.CodeLaunchRefused, "look up user %q: %v", name, err).
			WithRemedy("name a user of this host, or a uid").With("step", "user")
	}
	if u.UID != c.UID && c.UID != 0 {
		return u, false, api.Errorf(api.CodeForbidden, "uid %d may not launch as user %q", c.UID, name).
			WithRemedy("only root may name another user")
	}
	if u.UID != m.cfg.UID && m.cfg.UID != 0 {
		return u, false, api.Errorf(api.CodeForbidden, "the service runs as uid %d and cannot launch as user %q", m.cfg.UID, name).
			WithRemedy("use the system service")
	}
	return u, m.cfg.UID == 0, nil
}

// Bounds of a launch request; the kernel has its own (E2BIG).
const maxWords = 1 << 16

func checkLaunch(req api.LaunchRequest, fds int) error {
	if len(req.Argv) == 0 || req.Argv[0] == "" {
		return api.Errorf(api.CodeBadRequest, "argv is empty").WithRemedy("give the program and its arguments as an array")
	}
	if len(req.Argv) > maxWords || len(req.Env) > maxWords {
		return api.Errorf(api.CodeTooLarge, "argv or env has more than %d words", maxWords)
	}
	for _, w := range req.Argv {
		if strings.IndexByte(w, 0) >= 0 {
			return api.Errorf(api.CodeBadRequest, "argv holds a NUL byte")
		}
	}
	for _, w := range req.Env {
		if i := strings.IndexByte(w, '='); i <= 0 || strings.IndexByte(w, 0) >= 0 {
			return api.Errorf(api.CodeBadRequest, "env holds %q, not NAME=value", w)
		}
	}
	if req.Cwd != "" && (req.Cwd[0] != '/' || strings.IndexByte(req.Cwd, 0) >= 0) {
		return api.Errorf(api.CodeBadRequest, "cwd is %q, not an absolute path", req.Cwd)
	}
	if len(req.Labels) > maxLabels {
		return api.Errorf(api.CodeBadRequest, "%d labels, at most %d are kept", len(req.Labels), maxLabels)
	}
	if err := checkGrade(req.MinGrade); err != nil {
		return err
	}
	return checkStdio(req.Stdio, fds)
}

func checkStdio(s api.Stdio, fds int) error {
	for _, n := range []struct {
		name string
		s    api.Stream
	}{{"stdin", s.Stdin}, {"stdout", s.Stdout}, {"stderr", s.Stderr}} {
		switch n.s.Mode {
		case "", api.StdioNull:
		case api.StdioPass:
			if n.s.FD < 0 || n.s.FD >= fds {
				return api.Errorf(api.CodeBadRequest, "%s passes descriptor %d, but %d came with the request", n.name, n.s.FD, fds).
					WithRemedy("send descriptors as SCM_RIGHTS with the request's first byte")
			}
		default:
			return api.Errorf(api.CodeBadRequest, "%s has mode %q, not null or pass", n.name, n.s.Mode)
		}
	}
	return nil
}
