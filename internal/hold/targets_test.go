//go:build linux

package hold

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/cgroup"
	"pinfold.dev/containment"
	"pinfold.dev/internal/sys/systest"
	"pinfold.dev/pidfd"
)

// What a launched process has forked is ended to a fixed point, while it forks on;
// it is spared itself, threads and all, and forks on afterwards.
func TestSpare(t *testing.T) {
	for _, where := range []string{"work", "jobs"} {
		t.Run(where, func(t *testing.T) {
			s := begin(t)
			canary := s.start("p2", "sleep", "1000")
			st := s.help("p1", "herd")
			if where == "jobs" {
				if _, err := s.Promote(t.Context(), "p1", nil); err != nil {
					t.Fatal(err)
				}
			}
			live := mustLive(t, canary.PID, st.PID)
			var before []int
			for _, line := range s.lines("p1", 20) {
				pid, _ := strconv.Atoi(line)
				before = append(before, pid)
			}
			dead := mustEnd(t, before...)
			k, err := s.EndLaunch(t.Context(), "p1", syscall.SIGTERM, 0, time.Minute, true)
			if err != nil || k.EmptyAt.IsZero() || k.Seen < len(before) {
				t.Fatalf("%+v, %v", k, err)
			}
			dead()
			live()
			s.notFrozen(where + "/p1")
			at := len(s.lines("p1", 1))
			s.lines("p1", at+5) // it goes on
			live()
			k, err = s.EndLaunch(t.Context(), "p1", syscall.SIGTERM, 5*time.Second, 20*time.Second, true)
			if err != nil || k.EmptyAt.IsZero() || k.Seen == 0 {
				t.Fatalf("%+v, %v", k, err)
			}
			live()
			s.noExit("p1")
			if where == "jobs" {
				s.endJob("p1", []int{st.PID})
			}
			s.endTurn()
		})
	}
}

// Those that went when they were asked to are counted.
func TestAskedAreSeen(t *testing.T) {
	s := begin(t)
	st := s.start("p1", "sh", "-c", "sleep 1000 & sleep 1000")
	systest.Until(t, "the sleepers", func() bool { ms, _ := s.Members(); return named(ms, "sleep") == 2 })
	dead := mustEnd(t, st.PID)
	k, err := s.EndLaunch(t.Context(), "p1", syscall.SIGTERM, 20*time.Second, 20*time.Second, false)
	if err != nil || k.Seen != 3 || k.EmptyAt.IsZero() {
		t.Errorf("%+v, %v", k, err)
	}
	dead()
	s.endTurn()
}

// Nobody is spared in place of a launched process that has ended, or left.
func TestSpareNobody(t *testing.T) {
	s := begin(t)
	s.start("p1", "sh", "-c", "sleep 1000 & exit 3")
	if st := s.exit("p1"); st.Code != 3 {
		t.Fatalf("%+v", st)
	}
	left := s.start("p2", "sh", "-c", "sleep 1000 & wait; exec sleep 1000")
	systest.Until(t, "the sleepers", func() bool { ms, _ := s.Members(); return named(ms, "sleep") == 2 })
	out := place(t)
	if err := out.Add(left.PID); err != nil {
		t.Fatal(err)
	}
	live := mustLive(t, left.PID)
	for _, id := range []string{"p1", "p2", "p9"} {
		if k, err := s.EndLaunch(t.Context(), id, syscall.SIGTERM, 0, time.Minute, true); err != nil || k.EmptyAt.IsZero() {
			t.Errorf("%s: %+v, %v", id, k, err)
		}
	}
	if n, err := s.Alive(); n != 0 || err != nil {
		t.Errorf("%d are left, %v", n, err)
	}
	live()
	s.endTurn()
}

// A frozen turn stands still, takes no launch, and is ended all the same, asked or
// not.
func TestFreeze(t *testing.T) {
	for _, asked := range []bool{false, true} {
		s := begin(t)
		s.help("p1", "beat")
		s.launch(containment.Launch{Process: "p2", Argv: []string{"sh", "-c", `trap 'kill $!; exit 7' TERM; sleep 1000 & echo >up; wait`}, Cwd: s.hold.facts.Dir})
		systest.Until(t, "its trap", func() bool {
			fi, err := os.Stat(filepath.Join(s.hold.facts.Dir, "up"))
			return err == nil && fi.Size() > 0
		})
		s.help("p3", "beat")
		s.lines("p1", 5)
		if _, err := s.Promote(t.Context(), "p3", nil); err != nil {
			t.Fatal(err)
		}
		if err := s.Freeze(t.Context()); err != nil {
			t.Fatal(err)
		}
		at := s.output("p1")
		systest.Until(t, "that the keeper has taken all it said", func() bool {
			was := at
			s.lines("p3", len(s.lines("p3", 1))+20)
			at = s.output("p1")
			return at == was
		})
		job := len(s.lines("p3", 1))
		s.lines("p3", job+20) // jobs stand still for no turn
		if now := s.output("p1"); now != at {
			t.Errorf("it wrote on: %q", strings.TrimPrefix(now, at))
		}
		_, err := s.Launch(t.Context(), containment.Launch{Process: "p4", Argv: []string{"true"}, Cwd: "/", Env: os.Environ(),
			Stdio: api.Stdio{Stdin: null, Stdout: null, Stderr: null}}, nil)
		var e *api.Error
		if !errors.As(err, &e) || e.Details["step"] != "frozen" {
			t.Errorf("launch into a frozen turn: %v", err)
		}
		s.restart()
		if now := s.output("p1"); now != at {
			t.Error("a later service has thawed it")
		}
		if err := s.Thaw(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.lines("p1", strings.Count(at, "\n")+5)
		if err := s.Freeze(t.Context()); err != nil {
			t.Fatal(err)
		}
		if asked {
			if n, err := s.Ask(t.Context(), func(string) syscall.Signal { return syscall.SIGTERM }); n < 2 || err != nil {
				t.Errorf("asked %d, %v", n, err)
			}
			if st := s.exit("p2"); st.State != api.ProcessExited || st.Code != 7 {
				t.Errorf("p2 was asked and ended as %+v", st)
			}
		}
		if k, err := s.Kill(t.Context(), time.Minute); err != nil || k.EmptyAt.IsZero() {
			t.Errorf("%+v, %v", k, err)
		}
		ms, err := s.JobMembers("p3")
		s.endJob("p3", pidsOf(t, ms, err))
		s.endTurn()
	}
}

// A launch of a frozen turn becomes a job, which runs.
func TestPromoteOutOfFrozen(t *testing.T) {
	s := begin(t)
	st := s.help("p1", "beat")
	s.lines("p1", 5)
	if err := s.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Promote(t.Context(), "p1", nil); n != 1 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	s.lines("p1", len(s.lines("p1", 1))+20)
	s.endJob("p1", []int{st.PID})
	s.endTurn()
}

// Nothing is frozen when something in it cannot be: the error says so, and all of
// it goes on.
func TestFreezeGivesUp(t *testing.T) {
	s := begin(t)
	s.help("p1", "beat")
	s.lines("p1", 5)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Freeze(over); err == nil {
		t.Log("it was frozen at the first look")
		_ = s.Thaw(t.Context())
	}
	s.lines("p1", len(s.lines("p1", 1))+20)
	s.endTurn()
}

// Each process that an ending would deal with is told, with what that rests on.
func TestTargets(t *testing.T) {
	s := begin(t)
	s.start("p1", "sh", "-c", "sleep 1000 & wait")
	job := s.start("p2", "sleep", "1000")
	escaped := s.start("p3", "sleep", "1000")
	s.start("p4", "sh", "-c", "sleep 1000 & wait")
	beside := s.start("p5", "sleep", "1000")
	var strayed int
	systest.Until(t, "the sleepers", func() bool {
		ms, _ := s.Members()
		for _, m := range ms {
			if m.Process == "p4" && m.Comm == "sleep" {
				strayed = m.PID
			}
		}
		return named(ms, "sleep") == 5 && strayed != 0
	})
	out := place(t)
	if err := errors.Join(out.Add(escaped.PID), out.Add(strayed)); err != nil {
		t.Fatal(err)
	}
	home, err := cgroup.Open(filepath.Join(s.dir.Path(), "keeper"))
	if err != nil {
		t.Fatal(err)
	}
	defer home.Close()
	if err := home.Add(beside.PID); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Promote(t.Context(), "p2", nil); err != nil {
		t.Fatal(err)
	}
	all, err := s.Targets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := map[int]string{job.PID: "p2 owned kept", escaped.PID: "p3 owned signalled", strayed: " foreign refused", beside.PID: " owned signalled"}
	if len(all) != 2+1+1+1+1+1 {
		t.Errorf("%d targets", len(all))
	}
	for _, one := range all {
		got := one.Process + " " + string(one.Verdict) + " " + one.Would
		if w, ok := want[one.PID]; ok && got != w {
			t.Errorf("%+v: %s, not %s", one, got, w)
		} else if !ok && got != "p1 owned signalled" && got != "p4 owned signalled" {
			t.Errorf("%+v", one)
		}
		if one.Evidence == "" || one.Comm == "" || len(one.Argv) == 0 || one.PID == s.keeper.PID() {
			t.Errorf("%+v", one)
		}
	}
	live := mustLive(t, job.PID, escaped.PID, strayed, beside.PID)
	live()
	k, err := s.Kill(t.Context(), time.Minute)
	if err != nil || k.EmptyAt.IsZero() || len(k.Escaped) != 2 { // as was told
		t.Errorf("%+v, %v", k, err)
	}
	mustLive(t, job.PID, strayed)()
	s.endJob("p2", []int{job.PID})
	h, err := pidfd.Open(strayed)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if err := h.Signal(syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	s.endTurn()
}

// What has moved itself beside the launches is ended with its turn also when jobs
// keep the turn's cgroup.
func TestBesideJobs(t *testing.T) {
	s := begin(t)
	job := s.start("p1", "sleep", "1000")
	s.start("p2", "sh", "-c", "sleep 1000 & sleep 1000 & wait")
	var kids []int
	systest.Until(t, "the sleepers", func() bool {
		kids = nil
		ms, _ := s.Members()
		for _, m := range ms {
			if m.Process == "p2" && m.Comm == "sleep" {
				kids = append(kids, m.PID)
			}
		}
		return len(kids) == 2
	})
	for i, rel := range []string{"keeper", "other"} {
		if rel == "other" {
			d, err := s.dir.Make(rel)
			if err != nil {
				t.Fatal(err)
			}
			d.Close()
		}
		d := s.at(rel)
		if err := d.Add(kids[i]); err != nil {
			t.Fatal(err)
		}
		d.Close()
	}
	if _, err := s.Promote(t.Context(), "p1", nil); err != nil {
		t.Fatal(err)
	}
	live, dead := mustLive(t, job.PID, s.keeper.PID()), mustEnd(t, kids...)
	if s.Alone() {
		t.Error("alone, with two beside")
	}
	if k, err := s.Kill(t.Context(), time.Minute); err != nil || k.EmptyAt.IsZero() || len(k.Notes) != 1 {
		t.Errorf("%+v, %v", k, err)
	}
	dead()
	live()
	if !s.Alone() {
		t.Error("somebody is beside the keeper and the job")
	}
	s.endJob("p1", []int{job.PID})
	s.endTurn()
}

// A cgroup is empty before the last that was in it has ended, and on a busy machine
// long before. One that was slow to end has not left: where it is decides that, not
// how long it takes.
func TestSlowToEndIsNoEscape(t *testing.T) {
	for _, c := range []struct {
		name  string
		home  func(s *stage) string
		moved bool
	}{
		{"in work", func(s *stage) string { return s.work.Path() }, false},
		{"in its leaf", func(s *stage) string { return s.leafPath("p1") }, false},
		{"in a job's leaf", func(s *stage) string {
			if _, err := s.Promote(t.Context(), "p1", nil); err != nil {
				t.Fatal(err)
			}
			return s.leafPath("p1")
		}, false},
		{"elsewhere", func(s *stage) string { return s.work.Path() }, true},
		{"in a place of a longer name", func(s *stage) string { return strings.TrimSuffix(s.leafPath("p1"), "1") }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := begin(t)
			st := s.start("p1", "sleep", "1000")
			home := c.home(s)
			if c.name == "elsewhere" {
				if err := place(t).Add(st.PID); err != nil {
					t.Fatal(err)
				}
			}
			dead := mustEnd(t, st.PID)
			var k containment.Killed
			s.endEscaped("p1", s.handles()["p1"], home, time.Now().Add(20*time.Second), &k)
			dead()
			if (len(k.Escaped) == 1) != c.moved || len(k.Survivors) > 0 || len(k.Notes) > 0 {
				t.Errorf("%+v", k)
			}
			if out, err := s.Census(t.Context()); err != nil || (len(out) == 1) != c.moved {
				t.Errorf("%+v, %v", out, err)
			}
			if c.name == "in a job's leaf" {
				s.endJob("p1", nil)
			}
			s.endTurn()
		})
	}
}
