package turns

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys"
)

// turn is an open turn of a test.
type turn struct {
	api.Turn
	s *service
	t *testing.T
}

// begin opens a turn; the guard knows of it.
func (s *service) begin(t *testing.T, req api.BeginRequest) *turn {
	t.Helper()
	v, err := s.Begin(t.Context(), req)
	if err != nil {
		t.Fatalf("begin: %v", err)
	}
	if v.Grade != s.grade {
		t.Fatalf("the turn is held at grade %s, not %s: %q", v.Grade, s.grade, v.Degraded)
	}
	if v.Cgroup == "" { // it is in that of the service
		return &turn{Turn: v, s: s, t: t}
	}
	x := &turn{Turn: v, s: s, t: t}
	switch ino, err := sys.InoAt(sys.AtFDCWD, v.Cgroup); {
	case err == nil:
		run.guard.tell("held", v.Cgroup, fmt.Sprint(ino))
	case !errors.Is(err, fs.ErrNotExist) || x.look().State == api.StateOpen: // else a clock of it has run out already
		t.Fatal(err)
	}
	return x
}

// launch starts a process, which must work.
func (x *turn) launch(req api.LaunchRequest) api.Process {
	x.t.Helper()
	p, err := x.s.Launch(x.t.Context(), x.ID, req)
	if err != nil {
		x.t.Fatalf("launch %q: %v", req.Argv, err)
	}
	return p
}

// leaf is the cgroup of a launch.
func (x *turn) leaf(process string) string { return filepath.Join(x.Cgroup, "work", process) }

// look returns the turn as it is now.
func (x *turn) look() api.Turn {
	x.t.Helper()
	v, err := x.s.Turn(x.t.Context(), x.ID)
	if err != nil {
		x.t.Fatal(err)
	}
	return v
}

// abandon ends the turn, which must be complete, and checks the receipt's own
// consistency and that its cgroup is gone.
func (x *turn) abandon(graceMS int64) api.Receipt {
	x.t.Helper()
	r, err := x.s.Abandon(x.t.Context(), x.ID, api.AbandonRequest{GraceMS: &graceMS})
	if err != nil {
		x.t.Fatalf("abandon: %v", err)
	}
	x.over(r)
	return r
}

// over checks the receipt of an ending that has ended all.
func (x *turn) over(r api.Receipt) {
	x.t.Helper()
	bad := func(format string, args ...any) {
		x.t.Helper()
		x.t.Errorf("receipt: "+format, args...)
	}
	switch {
	case !r.Complete || r.State != api.StateAbandoned:
		bad("complete %v, state %s, notes %q", r.Complete, r.State, r.Notes)
	case r.SeenEmptyAt == nil || r.KilledAt == nil || r.FencedAt == nil:
		bad("times are missing: fenced %v, killed %v, seen empty %v", r.FencedAt, r.KilledAt, r.SeenEmptyAt)
	case r.SeenEmptyAt.Before(*r.KilledAt) || r.KilledAt.Before(r.AskedAt):
		bad("seen empty at %v, killed at %v, asked at %v", r.SeenEmptyAt, r.KilledAt, r.AskedAt)
	case r.Counts.Survivors != 0 || len(r.Survivors) != 0 || len(r.Leftovers) != 0 || len(r.Outside) != 0:
		bad("survivors %v, leftovers %v, outside %v", r.Survivors, r.Leftovers, r.Outside)
	case r.Counts.Foreign != 0 || r.Counts.Unverifiable != 0:
		bad("counts %+v", r.Counts)
	case r.Grade != x.s.grade || r.Turn != x.ID:
		bad("grade %s, turn %s", r.Grade, r.Turn)
	}
	for _, p := range r.Processes {
		if p.Verdict != api.VerdictGone || p.Status.State == api.ProcessRunning {
			bad("process %s is %s, verdict %s", p.ID, p.Status.State, p.Verdict)
		}
	}
	eventually(x.t, "its cgroup removed", func() bool { // after the receipt: it is empty
		_, err := os.Stat(filepath.Join(x.Cgroup, "work"))
		return errors.Is(err, fs.ErrNotExist)
	})
}

// heart is a file that somebody beats into.
type heart string

// size is how much was beaten so far.
func (h heart) size(t *testing.T) int64 {
	t.Helper()
	fi, err := os.Stat(string(h))
	if errors.Is(err, fs.ErrNotExist) {
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	return fi.Size()
}

// beating waits until it beats.
func (h heart) beating(t *testing.T) {
	t.Helper()
	was := h.size(t)
	eventually(t, "a beat in "+filepath.Base(string(h)), func() bool { return h.size(t) > was })
}

// stopped fails the test unless there were beats and there are none any more.
func stopped(t *testing.T, hearts ...heart) {
	t.Helper()
	was := make([]int64, len(hearts))
	for i, h := range hearts {
		if was[i] = h.size(t); was[i] == 0 {
			t.Errorf("%s never had a beat", filepath.Base(string(h)))
		}
	}
	time.Sleep(patience(60 * time.Millisecond))
	for i, h := range hearts {
		if now := h.size(t); now != was[i] {
			t.Errorf("%s goes on after the receipt: %d beats, then %d", filepath.Base(string(h)), was[i], now)
		}
	}
}

// canary is a process beside, which has to live and to be left alone.
type canary struct {
	t    *testing.T
	name string
	heart
}

// newCanary starts one outside every turn.
func newCanary(t *testing.T, s *service) *canary {
	t.Helper()
	c := &canary{t: t, name: "the canary outside", heart: heart(files(t, "canary")[0])}
	cmd := exec.Command(run.exe, string(c.heart))
	cmd.Env = []string{helperEnv + "=canary"}
	useHelper("canary")
	p, err := run.kids.start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	c.beating(t)
	t.Cleanup(c.lives)
	return c
}

// newNeighbour opens a turn with a canary in it.
func newNeighbour(t *testing.T, s *service) (*turn, *canary) {
	t.Helper()
	c := &canary{t: t, name: "the canary in the turn beside", heart: heart(files(t, "neighbour")[0])}
	x := s.begin(t, api.BeginRequest{Label: "neighbour"})
	x.launch(helper(t, "canary", string(c.heart)))
	c.beating(t)
	t.Cleanup(func() {
		c.lives()
		r, err := s.Abandon(context.Background(), x.ID, api.AbandonRequest{})
		for end := time.Now().Add(patience(time.Minute)); err == nil && r.State == api.StateUnkillable && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			r, err = s.Receipt(context.Background(), x.ID) // a short bound may be over before it is seen gone
		}
		if err != nil || !r.Complete {
			t.Errorf("abandon the turn beside: complete %v, %v", r.Complete, err)
		}
	})
	return x, c
}

// lives checks that it beats, and that nobody has signalled it.
func (c *canary) lives() {
	c.t.Helper()
	was := c.size(c.t)
	for end := time.Now().Add(patience(time.Minute)); c.size(c.t) == was; time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			c.t.Errorf("%s is dead", c.name)
			return
		}
	}
	b, err := os.ReadFile(string(c.heart))
	if i := bytes.IndexByte(b, '!'); err != nil || i >= 0 {
		c.t.Errorf("%s was signalled: %s %v", c.name, strings.Trim(string(b[max(i, 0):]), "."), err)
	}
}

// files are paths in a directory that every user may write.
func files(t *testing.T, names ...string) []string {
	t.Helper()
	dir, err := os.MkdirTemp(run.dir, "f.")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	for i, n := range names {
		names[i] = filepath.Join(dir, n)
	}
	return names
}

// signal sends to a process of a turn through the service.
func (x *turn) signal(process string, sig syscall.Signal) {
	x.t.Helper()
	a, err := x.s.Signal(x.t.Context(), x.ID, process, api.SignalRequest{Signal: fmt.Sprint(int(sig))})
	if err != nil || a.Verdict != api.VerdictOwned {
		x.t.Fatalf("signal %s: %v, verdict %s", process, err, a.Verdict)
	}
}

// wantCode checks that an error has a code, and returns it.
func wantCode(t *testing.T, err error, code api.Code) *api.Error {
	t.Helper()
	var e *api.Error
	if !errors.As(err, &e) || e.Code != code {
		t.Errorf("got %v, want an error with code %s", err, code)
		return &api.Error{}
	}
	return e
}
