//go:build linux

package hold

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/cgroup"
	"pinfold.dev/containment"
	"pinfold.dev/internal/sys/systest"
)

// A later service finds the jobs again, by what the kernel has of them.
func TestJobsAfterRestart(t *testing.T) {
	s := begin(t)
	s.help("p1", "family", "1", "2")
	s.lines("p1", 3)
	rest := s.start("p2", "sleep", "1000")
	if _, err := s.Promote(t.Context(), "p1", nil); err != nil {
		t.Fatal(err)
	}
	ms, err := s.JobMembers("p1")
	job := pidsOf(t, ms, err)
	live, dead := mustLive(t, job...), mustEnd(t, rest.PID)
	s.restart()
	if !s.isJob("p1") || s.isJob("p2") {
		t.Fatal("it does not know its jobs")
	}
	if ms, err := s.JobMembers("p1"); !sameInts(pidsOf(t, ms, err), job) {
		t.Errorf("the job has %+v", ms)
	}
	if k, err := s.Kill(t.Context(), time.Minute); err != nil || k.Seen != 1 || len(k.Escaped) > 0 {
		t.Errorf("%+v, %v", k, err)
	}
	dead()
	live()
	if err := s.Release(t.Context()); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("released with a live job: %v", err)
	}
	s.restart()
	live()
	s.endJob("p1", job)
	if st := s.exit("p1"); st.State != api.ProcessSignaled {
		t.Errorf("it ended as %+v", st)
	}
	s.restart()
	if n, err := s.JobAlive("p1"); n != 0 || err != nil {
		t.Errorf("%d of the job are alive, %v", n, err)
	}
	s.endTurn()
}

// One that was ejected is found again as one that had joined is.
func TestEjectedAfterRestart(t *testing.T) {
	s := begin(t)
	s.start("p1", "sh", "-c", "setsid sleep 1000 & wait")
	var pid int
	systest.Until(t, "the sleeper", func() bool {
		ms, _ := s.Members()
		for _, m := range ms {
			if m.Comm == "sleep" {
				pid = m.PID
			}
		}
		return pid != 0
	})
	var told containment.Started
	if err := s.Eject(t.Context(), "p1", "j1", pid, nil, func(st containment.Started) error { told = st; return nil }); err != nil {
		t.Fatal(err)
	}
	s.restart()
	if v, err := s.Rejoin("j1", told.Identity); v != api.VerdictOwned || err != nil {
		t.Fatalf("%s, %v", v, err)
	}
	if k, err := s.Kill(t.Context(), time.Minute); err != nil || k.Seen != 1 || len(k.Escaped) > 0 {
		t.Errorf("%+v, %v", k, err)
	}
	mustLive(t, pid)()
	if v, err := s.Signal(t.Context(), "j1", syscall.SIGTERM); v != api.VerdictOwned || err != nil {
		t.Errorf("%s, %v", v, err)
	}
	if st := s.exit("j1"); st.Signal != "SIGTERM" && !oldKernel(t) {
		t.Errorf("it ended as %+v", st)
	}
	s.endTurn()
}

// Without its keeper a job lives on, is held, and is ended; how it ended nobody
// saw. That holds over a restart, also for one whose turn has nothing else left.
func TestJobsWithoutKeeper(t *testing.T) {
	s := begin(t)
	st := s.start("p1", "sleep", "1000")
	s.start("p2", "sleep", "1000")
	for _, id := range []string{"p1", "p2"} {
		if _, err := s.Promote(t.Context(), id, nil); err != nil {
			t.Fatal(err)
		}
	}
	live := mustLive(t, st.PID)
	if err := s.EndKeeper(t.Context()); err != nil {
		t.Fatal(err)
	}
	if k, err := s.Kill(t.Context(), time.Minute); err != nil || k.EmptyAt.IsZero() {
		t.Errorf("%+v, %v", k, err)
	}
	live()
	if !s.Alone() {
		t.Error("somebody is beside the jobs")
	}
	ms, err := s.JobMembers("p2")
	s.endJob("p2", pidsOf(t, ms, err))
	if err := s.work.Remove(t.Context()); err != nil { // somebody tidied up
		t.Fatal(err)
	}
	s.restart()
	if s.work.ID() == s.dir.ID() {
		t.Fatal("it takes the whole turn's cgroup for work/, jobs and all")
	}
	if k, err := s.Kill(t.Context(), time.Minute); err != nil || k.Seen != 0 {
		t.Errorf("%+v, %v", k, err)
	}
	live()
	if v, err := s.Signal(t.Context(), "p1", 0); v != api.VerdictOwned || err != nil {
		t.Errorf("signal the job: %s, %v", v, err)
	}
	s.endJob("p1", []int{st.PID})
	if got := s.exit("p1"); got.SignalNumber != int(syscall.SIGKILL) && !(oldKernel(t) && got.State == api.ProcessLost) {
		t.Errorf("it ended as %+v", got) // nobody reaped it for us: its handle tells, or nobody does
	}
	s.endTurn()
}

// What a service was at when it died is undone by the next one: who had been moved
// goes back to where he was, and nobody stays frozen.
func TestUnfinishedMoves(t *testing.T) {
	s := begin(t)
	s.help("p1", "family", "1", "2")
	s.lines("p1", 3)
	s.help("p2", "family", "1", "2")
	s.lines("p2", 3)
	if _, err := s.Promote(t.Context(), "p2", nil); err != nil {
		t.Fatal(err)
	}
	all, err := s.Members()
	p1 := pidsOf(t, all, err)
	job, err := s.JobMembers("p2")
	p2 := pidsOf(t, job, err)
	live := mustLive(t, slices.Concat(p1, p2)...)
	s.half("jobs/p1", "from work/p1", p1[:2])
	s.half("jobs/j3", "from jobs/p2", p2[:1])
	s.half("jobs/p9", "", nil)
	for _, rel := range []string{"work/p1", "jobs/p2", "jobs/p1"} {
		d := s.at(rel)
		if err := d.Freeze(true); err != nil {
			t.Fatal(err)
		}
		d.Close()
	}
	s.restart()
	live()
	after, err := s.Members()
	if got := pidsOf(t, after, err); !sameInts(got, p1) || slices.ContainsFunc(after, func(m api.Member) bool { return m.Process != "p1" }) {
		t.Errorf("the turn has %+v, not %v", after, p1)
	}
	job, err = s.JobMembers("p2")
	if got := pidsOf(t, job, err); !sameInts(got, p2) {
		t.Errorf("the job has %v, not %v", got, p2)
	}
	for _, rel := range []string{"work/p1", "jobs/p2"} {
		s.notFrozen(rel)
	}
	if names, err := s.jobsDir().Children(); !slices.Equal(names, []string{"p2"}) || err != nil {
		t.Errorf("jobs/ has %v, %v", names, err)
	}
	s.endJob("p2", p2)
	s.endTurn()
}

// half makes a leaf as one is that was being filled.
func (s *stage) half(rel, mark string, pids []int) {
	s.t.Helper()
	dir, name, _ := strings.Cut(rel, "/")
	all := s.at(dir)
	defer all.Close()
	d, err := all.Make(name)
	if err != nil {
		s.t.Fatal(err)
	}
	defer d.Close()
	if mark != "" {
		if err := d.Mark(mark); err != nil {
			s.t.Fatal(err)
		}
	}
	for _, pid := range pids {
		if err := d.Add(pid); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *stage) at(rel string) *cgroup.Dir {
	s.t.Helper()
	d, err := cgroup.Open(filepath.Join(s.dir.Path(), rel))
	if err != nil {
		s.t.Fatal(err)
	}
	return d
}

// A turn's client is watched by its handle, and later by what was recorded.
func TestWatch(t *testing.T) {
	s := begin(t)
	p := systest.Start(t, sleeper())
	gone := make(chan string, 4)
	fd := openPidfd(t, p.PID())
	id, _, v, err := s.host.Watch(containment.Client{FD: fd}, func() { gone <- "by handle" })
	if v != api.VerdictOwned || err != nil || id.PID != p.PID() {
		t.Fatalf("%+v, %s, %v", id, v, err)
	}
	if _, _, v, err := s.host.Watch(containment.Client{FD: -1, Recorded: id}, func() { gone <- "by record" }); v != api.VerdictOwned || err != nil {
		t.Fatalf("%s, %v", v, err)
	}
	_, stop, v, err := s.host.Watch(containment.Client{FD: -1, Recorded: id}, func() { gone <- "stopped" })
	if v != api.VerdictOwned || err != nil {
		t.Fatalf("%s, %v", v, err)
	}
	stop()
	other := id
	other.Ino, other.StartTicks = other.Ino+1<<40, other.StartTicks+1 // nobody's: the next inode is the next process's
	if _, _, v, err := s.host.Watch(containment.Client{FD: -1, Recorded: other}, func() { gone <- "another" }); v != api.VerdictForeign || err == nil {
		t.Errorf("another's: %s, %v", v, err)
	}
	select {
	case who := <-gone:
		t.Fatalf("gone is told of one that lives: %s", who)
	case <-time.After(50 * time.Millisecond):
	}
	p.End()
	got := []string{<-gone, <-gone}
	if slices.Sort(got); !slices.Equal(got, []string{"by handle", "by record"}) {
		t.Errorf("told %v", got)
	}
	for _, c := range []containment.Client{{FD: fd}, {FD: -1, Recorded: id}} {
		if _, _, v, _ := s.host.Watch(c, func() { gone <- "the dead" }); v != api.VerdictGone {
			t.Errorf("of one that has ended: %s", v)
		}
	}
	time.Sleep(50 * time.Millisecond)
	if len(gone) > 0 {
		t.Errorf("told %s", <-gone)
	}
	s.endTurn()
}
