package records

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"pinfold.dev/api"
	"pinfold.dev/integration/guard"
)

// harm is what is done to a runtime directory under a running service.
type harm struct {
	do   func(s *service, turn string) error
	told string // in the service's checks or the turn's notes
}

func harms() map[string]harm {
	run := func(s *service) string { return s.dir + "/run" }
	return map[string]harm{
		"removed": {func(s *service, _ string) error { return os.RemoveAll(run(s)) }, "was removed under the running service"},
		"moved":   {func(s *service, _ string) error { return os.Rename(run(s), run(s)+".away") }, "was removed under the running service"},
		"replaced by a copy": {func(s *service, _ string) error {
			return errors.Join(os.Rename(run(s), run(s)+".away"), exec.Command("cp", "-a", run(s)+".away", run(s)).Run())
		}, "another directory is at"},
		"replaced by an empty one": {func(s *service, _ string) error {
			return errors.Join(os.Mkdir(run(s)+".new", 0o755), os.Rename(run(s), run(s)+".away"), os.Rename(run(s)+".new", run(s)))
		}, "another directory is at"},
		"mark emptied":     {func(s *service, _ string) error { return os.Truncate(run(s)+"/instance", 0) }, "written into"},
		"mark removed":     {func(s *service, _ string) error { return os.Remove(run(s) + "/instance") }, "written into"},
		"mark overwritten": {func(s *service, _ string) error { return os.WriteFile(run(s)+"/instance", []byte("00c0ffee"), 0o600) }, "written into"},
		"both marks gone": {func(s *service, _ string) error {
			return errors.Join(os.Remove(run(s)+"/instance"), os.Remove(run(s)+"/instance.json"))
		}, "written into"},
		"lock removed":      {func(s *service, _ string) error { return os.Remove(run(s) + "/lock") }, ""},
		"records removed":   {func(s *service, _ string) error { return os.RemoveAll(run(s) + "/turns") }, "directory of all records"},
		"turn's directory":  {func(s *service, id string) error { return os.RemoveAll(run(s) + "/turns/" + id) }, "its record was removed"},
		"record's file":     {func(s *service, id string) error { return os.Remove(s.recordPath(id)) }, "its record was removed"},
		"the socket, alone": {func(s *service, _ string) error { return os.Remove(run(s) + "/sock") }, ""},
	}
}

// Whatever goes from the runtime directory under live turns, the running service
// notices, tells, and puts it back: it answers, and the next service finds the
// turn, ends it, and touches nothing else.
func TestRuntimeDirectoryGoes(t *testing.T) {
	for name, h := range harms() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h.try(t)
		})
	}
}

func (h harm) try(t *testing.T) {
	s := newService(t)
	s.args = []string{"--socket", s.dir + "/run/sock"} // where it goes as well
	s.Client.Socket = s.dir + "/run/sock"
	s.start()
	canary := newCanary(t, "")
	x := s.begin(api.BeginRequest{})
	p := s.launch(x.ID, "exec sleep 100000")
	mark, err := os.ReadFile(s.dir + "/run/instance")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.atOnce(func() error { return h.do(s, x.ID) }); err != nil {
		t.Fatal(err)
	}
	s.Close() // a client of today's connection would notice nothing
	ctx := context.Background()
	eventually(t, "the service answers, and has put all back", func() bool {
		if _, err := s.Records(ctx); err != nil { // which has it look
			return false
		}
		now, err := os.ReadFile(s.dir + "/run/instance")
		_, lerr := os.Stat(s.dir + "/run/lock")
		_, herr := os.Stat(s.dir + "/run/instance.json")
		_, rerr := os.Stat(s.recordPath(x.ID))
		return err == nil && lerr == nil && herr == nil && rerr == nil && string(now) == string(mark)
	})
	host, err := s.Host(ctx)
	if err != nil {
		t.Fatal(err)
	}
	told := s.look(x.ID).Degraded
	for _, c := range host.Checks {
		told = append(told, c.Detail)
	}
	if !has(told, h.told) {
		t.Errorf("it does not tell %q, but %q", h.told, told)
	}
	s.exits(x.ID, "exit 3") // the running service speaks to the keeper as before
	s.kill()
	s.start()
	if v := s.look(x.ID); v.State != api.StateOpen || v.Alive != 1 {
		t.Errorf("after a restart it is %s, alive %d", v.State, v.Alive)
	}
	r, err := s.Abandon(ctx, x.ID, api.AbandonRequest{GraceMS: new(int64(0))})
	if st := stateOf(p.PID); err != nil || !r.Complete || st != 0 && st != 'Z' {
		t.Errorf("complete %v (%v), its process %c", r.Complete, err, st)
	}
	canary.lives()
}

// The running service notices by itself: nobody has to ask.
func TestRuntimeDirectoryGoesUnasked(t *testing.T) {
	for name, path := range map[string]string{"all of it": "", "the mark": "instance", "the records": "turns"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t)
			x := s.begin(api.BeginRequest{})
			s.launch(x.ID, "exec sleep 100000")
			if err := s.atOnce(func() error { return os.RemoveAll(filepath.Join(s.dir, "run", path)) }); err != nil {
				t.Fatal(err)
			}
			eventually(t, "it is put back", func() bool {
				_, merr := os.Stat(s.dir + "/run/instance")
				_, rerr := os.Stat(s.recordPath(x.ID))
				return merr == nil && rerr == nil
			})
		})
	}
}

// A record alone that is removed is noticed at once, too, of a turn that was begun
// under this service and of one that it found: the next service finds the turn, and
// does not take it for a stray.
func TestRecordGoesUnasked(t *testing.T) {
	t.Parallel()
	s := serve(t)
	x := s.begin(api.BeginRequest{})
	p := s.launch(x.ID, "exec sleep 100000")
	for range 2 {
		if err := os.Remove(s.recordPath(x.ID)); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it is put back", func() bool { return exists(s.recordPath(x.ID)) })
		s.exits(x.ID, "exit 3")
		s.kill()
		s.start()
		if v, st := s.look(x.ID), stateOf(p.PID); v.State != api.StateOpen || v.Alive != 1 || st == 0 || st == 'Z' {
			t.Errorf("after a restart it is %s, alive %d, its process %c", v.State, v.Alive, st)
		}
	}
}

// A directory of another instance that comes to the place of the service's is not
// written to; turns are held and end all the same.
func TestAnothersDirectoryInItsPlace(t *testing.T) {
	other := serve(t)
	y := other.begin(api.BeginRequest{})
	other.launch(y.ID, "exec sleep 100000")
	other.kill()
	s := serve(t)
	x := s.begin(api.BeginRequest{})
	p := s.launch(x.ID, "exec sleep 100000")
	run := s.dir + "/run"
	if err := s.atOnce(func() error { return errors.Join(os.Rename(run, run+".away"), os.Rename(other.dir+"/run", run)) }); err != nil {
		t.Fatal(err)
	}
	before := tree(t, run)
	ctx := context.Background()
	eventually(t, "it is told", func() bool {
		if _, err := s.Records(ctx); err != nil {
			t.Fatal(err)
		}
		h, err := s.Host(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range h.Checks {
			if c.Name == "runtime directory" && !c.OK && strings.Contains(c.Detail, "another instance's mark") {
				return true
			}
		}
		return false
	})
	if after := tree(t, run); before != after {
		t.Errorf("it was written to:\n%s\nwas\n%s", after, before)
	}
	r, err := s.Abandon(ctx, x.ID, api.AbandonRequest{GraceMS: new(int64(0))})
	if st := stateOf(p.PID); err != nil || !r.Complete || st != 0 && st != 'Z' {
		t.Errorf("complete %v (%v)", r.Complete, err)
	}
	if err := s.atOnce(func() error { return errors.Join(os.Rename(run, other.dir+"/run"), os.Rename(run+".away", run)) }); err != nil {
		t.Fatal(err)
	}
	other.start()
	if v := other.look(y.ID); v.State != api.StateOpen || v.Alive != 1 {
		t.Errorf("the other's turn is %s, alive %d", v.State, v.Alive)
	}
}

// tree lists what is in a directory.
func tree(t *testing.T, dir string) string {
	t.Helper()
	out, err := exec.Command("find", dir, "-printf", "%P %s %i\n").Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// leftOver is what is told of a cgroup.
func (s *service) leftOver(path string) (l api.LeftOver) {
	s.t.Helper()
	g, err := s.GC(context.Background(), api.GCRequest{})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, l := range g.LeftOver {
		if l.Removed || l.Remove {
			s.t.Errorf("gc removes %+v", l)
		}
		if l.Path == path {
			return l
		}
	}
	return l
}

// Turns whose runtime directory is lost are told of by the service that comes
// after, with what to do, and never touched; so are those of a neighbour whose
// service does not run, until it does.
func TestTurnsOfAnotherInstance(t *testing.T) {
	s := serve(t)
	canary := newCanary(t, "")
	x := s.begin(api.BeginRequest{})
	p := s.launch(x.ID, "exec sleep 100000")
	cg := s.look(x.ID).Cgroup
	neighbour := newService(t)
	own := neighbour.parent
	neighbour.parent = s.parent
	neighbour.start()
	y := neighbour.begin(api.BeginRequest{})
	q := neighbour.launch(y.ID, "exec sleep 100000")
	theirs := neighbour.look(y.ID).Cgroup
	if l := s.leftOver(theirs); l.Path != "" {
		t.Errorf("of a neighbour that runs: %+v", l)
	}
	s.kill()
	if err := os.RemoveAll(s.dir + "/run"); err != nil {
		t.Fatal(err)
	}
	s.start()
	if l := s.leftOver(cg); !strings.Contains(l.Why, "of another instance") || !strings.Contains(l.Why, "has another mark now, or none: unless it was moved, no service ends it") || !strings.Contains(l.Why, cg+"/cgroup.kill") || l.Turn != x.ID {
		t.Errorf("of the lost turn: %+v", l)
	}
	if l := s.leftOver(theirs); l.Path != "" {
		t.Errorf("of a neighbour that runs: %+v", l)
	}
	neighbour.kill()
	if l := s.leftOver(theirs); !strings.Contains(l.Why, "whose service does not run") || !strings.Contains(l.Why, "--runtime-dir "+neighbour.dir+"/run") {
		t.Errorf("of a neighbour that does not run: %+v", l)
	}
	if rec, err := s.Records(context.Background()); err != nil || len(rec.LeftOver) != 2 {
		t.Errorf("%+v (%v)", rec.LeftOver, err)
	}
	s.kill()
	s.start()
	for _, pid := range []int{p.PID, q.PID} {
		if st := stateOf(pid); st == 0 || st == 'Z' {
			t.Errorf("process %d of another instance is dead", pid)
		}
	}
	neighbour.start()
	if l := s.leftOver(theirs); l.Path != "" {
		t.Errorf("of a neighbour that runs again: %+v", l)
	}
	if v := neighbour.look(y.ID); v.State != api.StateOpen || v.Alive != 1 {
		t.Errorf("the neighbour's turn is %s, alive %d", v.State, v.Alive)
	}
	if err := os.WriteFile(cg+"/cgroup.kill", []byte("1"), 0); err != nil { // as it was told
		t.Fatal(err)
	}
	guard.RemoveTree(filepath.Dir(cg))
	eventually(t, "it is ended", func() bool { return stateOf(p.PID) == 0 })
	canary.lives()
	neighbour.stop()
	neighbour.parent = own
}

// A copy of a runtime directory is another instance: its service touches none of
// the original's turns, whatever it is told to do, whether the original's runs,
// and whichever version has written the mark.
func TestCopiedRuntimeDirectory(t *testing.T) {
	for name, c := range map[string]struct{ runs, earlier, claimed bool }{
		"beside a running service": {true, false, false}, "of a stopped one": {false, false, false},
		"of an earlier version": {true, true, false}, "with the original's mark": {true, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t)
			x := s.begin(api.BeginRequest{})
			p := s.launch(x.ID, "exec sleep 100000")
			if c.earlier {
				s.kill()
				if err := os.Remove(s.dir + "/run/instance.json"); err != nil {
					t.Fatal(err)
				}
			}
			second := newService(t)
			own := second.parent
			second.parent = s.parent
			whole := s.atOnce // what it is just writing would go from under the copying hand
			if c.earlier {    // it does not run
				whole = func(f func() error) error { return f() }
			}
			if err := whole(func() error {
				out, err := exec.Command("cp", "-a", s.dir+"/run", second.dir+"/run").CombinedOutput()
				if err != nil {
					err = fmt.Errorf("%w: %s", err, out)
				}
				return err
			}); err != nil {
				t.Fatal(err)
			}
			if c.earlier {
				s.start()
			}
			if !c.runs {
				s.kill()
			}
			if c.claimed { // by somebody who believes that there is no original, and without its records
				if err := errors.Join(os.Remove(second.dir+"/run/instance.json"), os.RemoveAll(second.dir+"/run/turns")); err != nil {
					t.Fatal(err)
				}
			}
			ctx := context.Background()
			for range 2 {
				second.start()
				if e := second.entry(x.ID); c.claimed {
					if !strings.Contains(second.log(), "one of the two directories is a copy") {
						t.Error("it is not told")
					}
				} else if e.Standing != api.StandingUnverified || !strings.Contains(e.Why, "of another instance") || e.Remedy == "" {
					t.Errorf("the copy tells %+v", e)
				}
				_, _ = second.Abandon(ctx, x.ID, api.AbandonRequest{GraceMS: new(int64(0)), Leftovers: true, Jobs: true})
				_, _ = second.AbandonMany(ctx, api.AbandonManyRequest{Owner: new(uint32(0)), Jobs: true})
				y := second.begin(api.BeginRequest{})
				second.exits(y.ID, "exit 0")
				if r, err := second.Abandon(ctx, y.ID, api.AbandonRequest{GraceMS: new(int64(0))}); err != nil || !r.Complete {
					t.Errorf("a turn of its own: %+v %v", r, err)
				}
				eventually(t, "its cgroup is gone", func() bool { _, err := os.Stat(y.Cgroup); return err != nil })
				second.kill()
			}
			if st := stateOf(p.PID); st == 0 || st == 'Z' {
				t.Error("what was in the original's turn is dead")
			}
			second.parent = own
			if !c.runs {
				s.start()
			}
			if v := s.look(x.ID); v.State != api.StateOpen || v.Alive != 1 {
				t.Errorf("the original's turn is %s, alive %d", v.State, v.Alive)
			}
			s.exits(x.ID, "exit 0")
		})
	}
}
