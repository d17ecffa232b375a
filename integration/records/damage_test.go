package records

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pinfold.dev/api"
)

// damage is what is done to a live record, and how that is told.
type damage struct {
	standing api.Standing
	why      string
	do       func(path string, b []byte) error
}

func damages() map[string]damage {
	return map[string]damage{
		"truncated": {api.StandingUnread, "", func(p string, b []byte) error { return os.Truncate(p, int64(len(b)/2)) }},
		"empty":     {api.StandingUnread, "", func(p string, _ []byte) error { return os.Truncate(p, 0) }},
		"flipped bit": {api.StandingUnread, "check sum", func(p string, b []byte) error {
			b = bytes.Clone(b)
			i := bytes.Index(b, []byte(`"nonce":"`)) + len(`"nonce":"`)
			b[i] ^= 1 // it would make a stranger of the turn's cgroup
			return os.WriteFile(p, b, 0o600)
		}},
		"owner": {api.StandingUnread, "belongs to uid 65534", func(p string, _ []byte) error { return os.Chown(p, 65534, 65534) }},
		"mode":  {api.StandingUnread, "others may write", func(p string, _ []byte) error { return os.Chmod(p, 0o666) }},
		"link": {api.StandingUnread, "", func(p string, _ []byte) error {
			return errors.Join(os.Rename(p, p+".real"), os.Symlink(p+".real", p))
		}},
		"directory": {api.StandingUnread, "", func(p string, _ []byte) error {
			return errors.Join(os.Remove(p), os.Mkdir(p, 0o700))
		}},
		"newer": {api.StandingNewer, "schema", func(p string, b []byte) error {
			line, _, _ := bytes.Cut(b, []byte("\n"))
			return os.WriteFile(p, bytes.Replace(line, []byte(`"schema":1,`), []byte(`"schema":1000,`), 1), 0o600)
		}},
		"of another turn": {api.StandingUnread, "it is of turn", func(p string, b []byte) error {
			line, _, _ := bytes.Cut(b, []byte("\n"))
			return os.WriteFile(p, bytes.ReplaceAll(line, []byte(`"id":"`), []byte(`"id":"0`)), 0o600)
		}},
	}
}

// A live record that is damaged, not to be trusted or of a newer version is told
// of and left alone, with all that it may name. The others work, and end. When it
// is mended the turn goes on.
func TestDamagedRecord(t *testing.T) {
	for name, c := range damages() {
		t.Run(name, c.try)
	}
}

func (c damage) try(t *testing.T) {
	s := serve(t)
	canary := newCanary(t, "")
	bad, good := s.begin(api.BeginRequest{}), s.begin(api.BeginRequest{})
	held := s.launch(bad.ID, "exec sleep 100000")
	s.launch(good.ID, "exec sleep 100000")
	s.kill()
	path := s.recordPath(bad.ID)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.do(path, whole); err != nil {
		t.Fatal(err)
	}
	before, _ := os.ReadFile(path)
	s.start()
	if e := s.entry(bad.ID); e.Standing != c.standing || !strings.Contains(e.Why, c.why) || e.Remedy == "" {
		t.Errorf("it is told as %+v", e)
	}
	if g, err := s.GC(context.Background(), api.GCRequest{}); err != nil {
		t.Error(err)
	} else {
		for _, l := range g.LeftOver {
			if l.Removed || l.Remove {
				t.Errorf("gc removed %+v", l)
			}
		}
	}
	r, err := s.Abandon(context.Background(), good.ID, api.AbandonRequest{GraceMS: new(int64(0))})
	if err != nil || !r.Complete {
		t.Errorf("the turn beside: complete %v (%v)", r.Complete, err)
	}
	if st := stateOf(held.PID); st == 0 || st == 'Z' {
		t.Error("what was in the turn is dead")
	}
	if after, _ := os.ReadFile(path); !bytes.Equal(before, after) {
		t.Error("the record was touched")
	}
	canary.lives()
	s.kill()
	if err := errors.Join(os.RemoveAll(path), os.WriteFile(path, whole, 0o600)); err != nil {
		t.Fatal(err)
	}
	s.start()
	if v := s.look(bad.ID); v.State != api.StateOpen || v.Alive != 1 {
		t.Errorf("mended, it is %s, alive %d", v.State, v.Alive)
	}
}

// A turn's directory that was renamed has the record of a turn that lives: that one
// is told of and left alone, too, and goes on under its own name.
func TestRenamedTurnDirectory(t *testing.T) {
	t.Parallel()
	for _, keeper := range []bool{true, false} {
		s := serve(t)
		x, n := s.begin(api.BeginRequest{}), s.begin(api.BeginRequest{})
		held := s.launch(x.ID, "exec sleep 100000")
		s.kill()
		if !keeper {
			endKeeper(&scene{service: s, t: t, turn: x})
		}
		was, is := s.dir+"/run/turns/"+x.ID, s.dir+"/run/turns/0123456789abcdef"
		if err := os.Rename(was, is); err != nil {
			t.Fatal(err)
		}
		s.start()
		for _, id := range []string{x.ID, "0123456789abcdef"} {
			if e := s.entry(id); e.Standing != api.StandingUnread || !strings.Contains(e.Why, "it is of turn") {
				t.Errorf("keeper %v: turn %s is told as %+v", keeper, id, e)
			}
		}
		if g, err := s.GC(context.Background(), api.GCRequest{}); err != nil || slices.ContainsFunc(g.LeftOver, func(l api.LeftOver) bool { return l.Removed }) {
			t.Errorf("keeper %v: gc: %+v (%v)", keeper, g.LeftOver, err)
		}
		if r, err := s.Abandon(context.Background(), n.ID, api.AbandonRequest{}); err != nil || !r.Complete {
			t.Errorf("the turn beside: complete %v (%v)", r.Complete, err)
		}
		s.kill()
		if err := os.Rename(is, was); err != nil {
			t.Fatal(err)
		}
		s.start()
		st := stateOf(held.PID)
		if v := s.look(x.ID); v.State != api.StateOpen || v.Alive != 1 || st == 0 || st == 'Z' {
			t.Errorf("keeper %v: renamed back, it is %s, alive %d", keeper, v.State, v.Alive)
		}
	}
}

// A history that cannot be used keeps nobody from ending turns; when it can be
// used again, what ended meanwhile gets there while the service runs.
func TestUnusableHistory(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"garbage":   func(p string) error { return os.WriteFile(p, bytes.Repeat([]byte("no database "), 4096), 0o600) },
		"truncated": func(p string) error { return os.Truncate(p, 5000) },
		"owner":     func(p string) error { return os.Chown(p, 65534, 65534) },
		"link":      func(p string) error { return errors.Join(os.Rename(p, p+".real"), os.Symlink("/etc/hostname", p)) },
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t)
			old, x := s.begin(api.BeginRequest{}), s.begin(api.BeginRequest{})
			s.launch(x.ID, "exec sleep 100000")
			end := func(turn string) {
				t.Helper()
				r, err := s.Abandon(context.Background(), turn, api.AbandonRequest{GraceMS: new(int64(0))})
				if err != nil || !r.Complete {
					t.Errorf("complete %v (%v)", r.Complete, err)
				}
			}
			end(old.ID)
			s.archived(old.ID)
			s.kill()
			path := filepath.Join(s.dir, "state", "history.db")
			if err := damage(path); err != nil {
				t.Fatal(err)
			}
			s.start()
			l, err := s.Records(context.Background())
			if err != nil || l.History == nil || l.History.Problem == "" {
				t.Errorf("%+v (%v)", l.History, err)
			}
			end(x.ID)
			if r := s.receipt(x.ID); r.State != api.StateAbandoned {
				t.Errorf("its receipt: %+v", r)
			}
			switch name {
			case "owner", "link":
				if l, err := s.Records(context.Background()); err != nil || l.History.Waiting > 1 {
					t.Errorf("%+v (%v)", l.History, err)
				}
				if _, err := os.Stat(s.recordPath(x.ID)); err != nil {
					t.Errorf("its record: %v", err)
				}
				if err := os.Rename(path, path+".away"); err != nil {
					t.Fatal(err)
				}
			default:
				if aside, _ := filepath.Glob(path + ".damaged-*"); len(aside) != 1 {
					t.Errorf("set aside: %q", aside)
				}
			}
			s.archived(x.ID)
		})
	}
}

// archived waits until a turn is in the history.
func (s *service) archived(turn string) {
	s.t.Helper()
	eventually(s.t, "turn "+turn+" is in the history", func() bool {
		_, err := os.Stat(filepath.Dir(s.recordPath(turn)))
		return errors.Is(err, os.ErrNotExist)
	})
	if r, err := s.Receipt(context.Background(), turn); err != nil || !r.State.Terminal() {
		s.t.Errorf("its receipt: %s (%v)", r.State, err)
	}
}

// A second service on one runtime directory, or on one state directory, refuses
// to start and touches nothing; one with directories of its own has nothing to do
// with the first's turns, though they are below one cgroup.
func TestTwoServices(t *testing.T) {
	s := serve(t)
	x := s.begin(api.BeginRequest{})
	p := s.launch(x.ID, "exec sleep 100000")
	fine := func() {
		t.Helper()
		if v := s.look(x.ID); v.State != api.StateOpen || v.Alive != 1 || len(v.Degraded) != len(x.Degraded) || stateOf(p.PID) == 0 {
			t.Errorf("the first's turn is %s, alive %d, degraded %q", v.State, v.Alive, v.Degraded)
		}
		s.exits(x.ID, "exit 0")
	}
	second := newService(t)
	second.parent = s.parent
	second.args = []string{"--runtime-dir", s.dir + "/run"}
	if err := second.tryStart(); err == nil || !strings.Contains(second.log(), "is in use by a running service; stop it, or give this one another --runtime-dir") {
		t.Errorf("%v\n%s", err, second.log())
	}
	fine()
	second.args = []string{"--state-dir", s.dir + "/state"}
	if err := second.tryStart(); err == nil || !strings.Contains(second.log(), "another service has it open") {
		t.Errorf("%v\n%s", err, second.log())
	}
	fine()
	second.args = nil
	second.start()
	y := second.begin(api.BeginRequest{})
	second.launch(y.ID, "exec sleep 100000")
	second.kill()
	second.start()
	if g, err := second.GC(context.Background(), api.GCRequest{}); err != nil || len(g.LeftOver) != 0 {
		t.Errorf("%+v (%v)", g, err)
	}
	fine()
	if _, err := second.Turn(context.Background(), x.ID); err == nil {
		t.Error("the second knows the first's turn")
	}
	if all, err := second.AbandonMany(context.Background(), api.AbandonManyRequest{Owner: new(uint32(0)), Jobs: true}); err != nil || len(all.Receipts) != 1 {
		t.Errorf("%d ended (%v)", len(all.Receipts), err)
	}
	fine()
	s.kill()
	s.start()
	fine()
	second.parent = filepath.Join(run.cgroup, filepath.Base(second.dir)) // its own, to tidy up
}
