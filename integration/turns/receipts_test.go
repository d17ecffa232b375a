package turns

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
)

// Each row of a receipt says what the process was known by, and how its end was seen.
func TestReceiptTellsItsEvidence(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		needCgroups(t, g)
		s := serve(t, g, options{})
		x := s.begin(t, api.BeginRequest{})
		f := files(t, "killed", "outsider", "away")
		x.launch(helper(t, "exit", "3"))
		x.launch(helper(t, "beat", f[0]))
		x.adopt(outsider(t, nil, "beat", f[1]).pid, api.AdoptRequest{})
		x.joiner(nil, "sleep", "3600")
		away := x.launch(helper(t, "beat", f[2]))
		for _, file := range f {
			heart(file).beating(t)
		}
		place(t, "away", away.PID)
		eventually(t, "the first has ended", func() bool {
			p, err := s.Process(t.Context(), x.ID, "p1")
			return err == nil && p.Status.State == api.ProcessExited
		})
		r, err := s.Abandon(t.Context(), x.ID, api.AbandonRequest{GraceMS: new(int64(0))})
		if err != nil || !r.Complete || len(r.Processes) != 5 {
			t.Fatalf("%+v (%v)", r, err)
		}
		stopped(t, heart(f[0]), heart(f[1]), heart(f[2]))
		for i, want := range []struct{ by, first, last string }{
			{"itself", "launched by the turn's keeper", "its keeper reaped it"},
			{"kill", "launched by the turn's keeper", "its keeper reaped it"},
			{"kill", "the caller has sent its pidfd", "its parent reaped it"},
			{"kill", "it moved itself in", "its parent reaped it"},
			{"kill", "launched by the turn's keeper", "ended through its handle"},
		} {
			p := r.Processes[i]
			if p.EndedBy != want.by || p.Verdict != api.VerdictGone || len(p.Evidence) < 2 ||
				!strings.Contains(p.Evidence[0], want.first) || !strings.Contains(p.Evidence[len(p.Evidence)-1], want.last) {
				t.Errorf("%s: %s, %s, on %q", p.ID, p.EndedBy, p.Verdict, p.Evidence)
			}
		}
		gone := func(o api.Outside) bool { return o.Process == away.ID && o.Ended && o.Verdict == api.VerdictGone }
		if !slices.ContainsFunc(r.Outside, gone) || r.Counts.Foreign+r.Counts.Unverifiable != 0 {
			t.Errorf("%+v %+v", r.Outside, r.Counts)
		}
	})
}

// What a turn reaps as it is finished is named, launched processes in their rows.
func TestReceiptNamesWhatWasReaped(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{})
		x := s.begin(t, api.BeginRequest{})
		f := files(t, "leader", "child", "daemon")
		p := x.launch(helper(t, "setsid", f[0], f[1]))
		x.launch(helper(t, "daemon", f[2]))
		for _, file := range f {
			heart(file).beating(t)
		}
		var m api.Tree
		eventually(t, "who left the daemon has ended", func() bool {
			p, err := s.Process(t.Context(), x.ID, "p2")
			if err == nil {
				m, err = s.Tree(t.Context(), x.ID)
			}
			return err == nil && p.Status.State == api.ProcessExited && len(m.Members) == 3
		})
		r, err := s.Finish(t.Context(), x.ID, api.FinishRequest{Leftovers: api.LeftoversReap, GraceMS: new(int64(0))})
		if err != nil || !r.Complete || len(r.Reaped) != 2 || r.Counts.Ended != 3 {
			t.Fatalf("%+v (%v)", r, err)
		}
		stopped(t, heart(f[0]), heart(f[1]), heart(f[2]))
		for _, one := range r.Reaped {
			member := func(m api.Member) bool { return m.PID == one.PID && m.PID != p.PID && m.Process == one.Process }
			if !slices.ContainsFunc(m.Members, member) || one.Verdict != api.VerdictGone || len(one.Evidence) != 2 {
				t.Errorf("%+v", one)
			}
		}
	})
}

// What was stopped while the turn went on did not end by itself, and that is known
// to the next service, too.
func TestReceiptTellsWhatWasStopped(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		needCgroups(t, g)
		s := serve(t, g, options{})
		x := s.begin(t, api.BeginRequest{})
		f := files(t, "ended", "job", "left", "late")
		for _, file := range f {
			x.launch(helper(t, "beat", file))
		}
		for _, file := range f {
			heart(file).beating(t)
		}
		if a, err := s.EndProcess(t.Context(), x.ID, "p1", api.EndProcessRequest{}); err != nil || a.Status.EndedBy != api.EndedByStop {
			t.Errorf("end p1: %+v (%v)", a, err)
		}
		j, err := s.Promote(t.Context(), x.ID, "p2", api.PromoteRequest{})
		if err == nil {
			j, err = s.StopJob(t.Context(), j.ID, api.StopJobRequest{})
		}
		if err != nil || j.Status.EndedBy != api.EndedByStop {
			t.Errorf("stop a job: %+v (%v)", j, err)
		}
		if a, err := s.EndProcess(t.Context(), x.ID, "p4", api.EndProcessRequest{}); err != nil || a.Status.EndedBy != api.EndedByStop {
			t.Errorf("end p4: %+v (%v)", a, err)
		}
		s.kill()
		s.restart()
		r := x.abandon(0)
		stopped(t, heart(f[0]), heart(f[1]), heart(f[2]), heart(f[3]))
		for i, want := range []string{"stop", "stop", "kill", "stop"} {
			if by := r.Processes[i].EndedBy; by != want {
				t.Errorf("p%d was ended by %q, want %q", i+1, by, want)
			}
		}
		if r.Counts.AlreadyGone != 3 {
			t.Errorf("%+v", r.Counts)
		}
	})
}

// What nothing proves any more is not signalled, and the receipt names it: a process
// that has left its turn's cgroup, whose keeper and service are both gone, and that
// does not look as it was launched any more, so that a file is all that knows of it.
func TestReceiptNamesWhatItRefused(t *testing.T) {
	needCgroups(t, grades(t)[0])
	s := serve(t, grades(t)[0], options{})
	newCanary(t, s)
	x := s.begin(t, api.BeginRequest{})
	f := files(t, "in", "away")
	x.launch(helper(t, "beat", f[0]))
	away := x.launch(helper(t, "other", f[1]))
	heart(f[0]).beating(t)
	heart(f[1]).beating(t)
	keeper := keeperOf(t, x)
	s.kill()
	place(t, "away", away.PID)
	if err := syscall.Kill(keeper, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the keeper is gone", func() bool { return errors.Is(syscall.Kill(keeper, 0), syscall.ESRCH) })
	s.restart()
	r, err := s.Abandon(t.Context(), x.ID, api.AbandonRequest{GraceMS: new(int64(0))})
	if err != nil || len(r.Processes) != 2 {
		t.Fatalf("%+v (%v)", r, err)
	}
	stopped(t, heart(f[0]))
	heart(f[1]).beating(t) // nobody could prove it
	row := r.Processes[1]
	if row.ID != away.ID || row.Verdict != api.VerdictUnverifiable || row.EndedBy != "nobody" || row.Evidence[len(row.Evidence)-1] != "so nothing was sent to it" {
		t.Errorf("%+v", row)
	}
	named := func(o api.Refused) bool {
		return o.PID == away.PID && o.Process == away.ID && o.Verdict == api.VerdictUnverifiable && len(o.Evidence) > 0
	}
	if !slices.ContainsFunc(r.Refused, named) || r.Counts.Unverifiable != 1 || r.Counts.Foreign != 0 {
		t.Errorf("%+v %+v", r.Refused, r.Counts)
	}
	if err := syscall.Kill(away.PID, syscall.SIGKILL); err != nil {
		t.Error(err)
	}
}

// An adopted process that leaves the turn's cgroup is still ended by its handle, and
// nothing else that is where it went.
func TestAdoptedThatLeaves(t *testing.T) {
	needCgroups(t, grades(t)[0])
	s := serve(t, grades(t)[0], options{})
	newCanary(t, s)
	x := s.begin(t, api.BeginRequest{})
	f := files(t, "one", "beside")
	one, beside := outsider(t, nil, "beat", f[0]), outsider(t, nil, "beat", f[1])
	heart(f[0]).beating(t)
	p := x.adopt(one.pid, api.AdoptRequest{})
	place(t, "away", one.pid, beside.pid)
	r, err := s.Abandon(t.Context(), x.ID, api.AbandonRequest{GraceMS: new(int64(0))})
	if err != nil || !r.Complete || len(r.Processes) != 1 || !r.Processes[0].Escaped || r.Processes[0].ID != p.ID || r.Counts.Ended != 1 {
		t.Errorf("%+v (%v)", r, err)
	}
	<-one.gone
	stopped(t, heart(f[0]))
	heart(f[1]).beating(t)
}

// A process that is adopted while the turn ends is in it and ended, or is refused and
// lives: nothing between.
func TestAdoptWhileItEnds(t *testing.T) {
	needCgroups(t, grades(t)[0])
	s := serve(t, grades(t)[0], options{})
	in, out := 0, 0
	for round := range 30 {
		x := s.begin(t, api.BeginRequest{})
		x.launch(helper(t, "beat", ""))
		c := outsiderQuick(t)
		id, f := named(t, c.pid)
		done := make(chan error, 1)
		go func() {
			for range round % 5 * 2000 { // a little later each time
				_ = strconv.Itoa(round)
			}
			_, err := s.Abandon(t.Context(), x.ID, api.AbandonRequest{GraceMS: new(int64(0))})
			done <- err
		}()
		p, err := s.Adopt(t.Context(), x.ID, api.AdoptRequest{Process: id, Tree: true}, f)
		f.Close()
		if aerr := <-done; aerr != nil {
			t.Fatal(aerr)
		}
		if err == nil {
			in++
			<-c.gone
			if ws := c.cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signal() != syscall.SIGKILL {
				t.Errorf("adopted as %s: %v", p.ID, c.cmd.ProcessState)
			}
			continue
		}
		if !errors.Is(err, api.ErrTurnOver) && !errors.Is(err, api.ErrAdoptRefused) {
			t.Errorf("round %d: %v", round, err)
		}
		out++
		if c.wasIn(t, x) && errors.Is(err, api.ErrTurnOver) {
			t.Errorf("round %d: refused, and dead: %v", round, err)
		}
		c.kill()
	}
	t.Logf("%d were in, %d were refused", in, out)
}

// wasIn tells whether a process had been moved into a turn that is over. Then it has
// ended with it, and may only not be reaped yet.
func (c *child) wasIn(t *testing.T, x *turn) bool {
	t.Helper()
	if b, err := os.ReadFile("/proc/" + strconv.Itoa(c.pid) + "/cgroup"); err == nil && !strings.Contains(string(b), x.ID) {
		return false
	}
	select {
	case <-c.gone:
	case <-time.After(patience(time.Minute)):
		t.Errorf("refused, and in the turn: %d, in state %c", c.pid, stateOf(c.pid))
	}
	return true
}

// An adopted process can be made a job, which outlives its turn, and the service.
func TestAdoptedBecomesAJob(t *testing.T) {
	needCgroups(t, grades(t)[0])
	s := serve(t, grades(t)[0], options{})
	x := s.begin(t, api.BeginRequest{})
	f := files(t, "one", "kid")
	one := outsider(t, nil, "setsid", f[0], f[1])
	heart(f[0]).beating(t)
	heart(f[1]).beating(t)
	p := x.adopt(one.pid, api.AdoptRequest{Tree: true})
	j, err := s.Promote(t.Context(), x.ID, p.ID, api.PromoteRequest{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Abandon(t.Context(), x.ID, api.AbandonRequest{GraceMS: new(int64(0))})
	if err != nil || !r.Complete || r.Processes[0].Verdict != api.VerdictOwned {
		t.Errorf("%+v (%v)", r, err)
	}
	s.kill()
	s.restart()
	heart(f[0]).beating(t)
	heart(f[1]).beating(t)
	if j, err = s.StopJob(t.Context(), j.ID, api.StopJobRequest{GraceMS: new(int64(0))}); err != nil || j.State != api.JobEnded || j.Status.SignalNumber != 9 {
		t.Errorf("%+v (%v)", j, err)
	}
	<-one.gone
	stopped(t, heart(f[0]), heart(f[1]))
}
