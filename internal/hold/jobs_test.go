//go:build linux

package hold

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/cgroup"
	"pinfold.dev/containment"
	"pinfold.dev/internal/sys/systest"
)

// A launch with its descendants, whatever sessions they have made, becomes a job;
// the ending of its turn ends the rest and not it.
func TestPromote(t *testing.T) {
	s := begin(t)
	s.help("p1", "family", "2", "2")
	s.lines("p1", 7)
	rest := s.start("p2", "sleep", "1000")
	all, err := s.Members()
	if err != nil {
		t.Fatal(err)
	}
	var family []int
	for _, m := range all {
		if m.Process == "p1" {
			family = append(family, m.PID)
		}
	}
	if len(family) != 1+2+4+1 {
		t.Fatalf("the family has %d members: %+v", len(family), all)
	}
	live, dead := mustLive(t, family...), mustEnd(t, rest.PID)
	n, err := s.Promote(t.Context(), "p1", nil)
	if err != nil || n != len(family) {
		t.Fatalf("promoted %d of %d: %v", n, len(family), err)
	}
	ms, err := s.JobMembers("p1")
	if got := pidsOf(t, ms, err); !sameInts(got, family) {
		t.Errorf("the job has %v, not %v", got, family)
	}
	if _, err := s.Promote(t.Context(), "p1", nil); !errors.Is(err, api.ErrBadRequest) {
		t.Errorf("promoted twice: %v", err)
	}
	if ms, err := s.Members(); !slices.Equal(pidsOf(t, ms, err), []int{rest.PID}) {
		t.Errorf("the turn has %+v", ms)
	}
	k, err := s.Kill(t.Context(), time.Minute)
	if err != nil || k.EmptyAt.IsZero() || len(k.Escaped) > 0 || k.Seen != 1 {
		t.Fatalf("%+v, %v", k, err)
	}
	dead()
	live()
	s.noExit("p1")
	if out, err := s.Census(t.Context()); err != nil || len(out) > 0 {
		t.Errorf("census: %+v, %v", out, err)
	}
	if !s.Alone() {
		t.Error("somebody is beside the keeper and the job")
	}
	if err := s.Release(t.Context()); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("released with a live job: %v", err)
	}
	if err := s.Remove(t.Context()); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("removed with a live job: %v", err)
	}
	live()
	s.endJob("p1", family)
	s.endTurn()
}

// endJob ends a job, which has to be seen gone.
func (s *stage) endJob(process string, members []int) {
	s.t.Helper()
	dead := mustEnd(s.t, members...)
	k, err := s.EndLaunch(s.t.Context(), process, syscall.SIGTERM, 0, time.Minute, false)
	if err != nil || k.EmptyAt.IsZero() {
		s.t.Fatalf("end the job: %+v, %v", k, err)
	}
	dead()
	if err := s.WaitJob(s.t.Context(), process); err != nil {
		s.t.Error(err)
	}
	if n, err := s.JobAlive(process); n != 0 || err != nil {
		s.t.Errorf("%d of the job are alive, %v", n, err)
	}
	if st := s.exit(process); st.State == api.ProcessOOM {
		s.t.Errorf("the job ended as %+v", st)
	}
	s.mu.Lock()
	lost := s.lost != "" // then systemd removes the scope, and what it counted, at once
	s.mu.Unlock()
	if u := s.JobUsage(process); u.CPUUsec < 0 && !lost {
		s.t.Errorf("the usage of a job that has ended: %+v", u)
	}
}

func sameInts(a, b []int) bool {
	a, b = slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b))
	return slices.Equal(a, b)
}

// Nobody of a storm of forks is left behind.
func TestPromoteStorm(t *testing.T) {
	s := begin(t)
	canary := s.start("p2", "sleep", "1000")
	live := mustLive(t, canary.PID)
	id, n := "", 0
	for try := 1; ; try++ { // on a busy machine a storm may be over before that
		id = fmt.Sprintf("p1%d", try)
		s.help(id, "storm")
		s.lines(id, 1)
		var err error
		if n, err = s.Promote(t.Context(), id, nil); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(s.output(id), "over") {
			break
		}
		if try == 5 {
			t.Fatal("each storm was over: nothing was shown")
		}
		ms, err := s.JobMembers(id)
		s.endJob(id, pidsOf(t, ms, err))
	}
	leaf, err := s.work.Open(id)
	if err != nil {
		t.Fatal(err)
	}
	defer leaf.Close()
	for range 200 {
		if left, _, err := leaf.Count(); left > 0 || err != nil {
			t.Fatalf("%d are left behind (%v) of %d", left, err, n)
		}
		time.Sleep(time.Millisecond)
	}
	live()
	if k, err := s.Kill(t.Context(), time.Minute); err != nil || k.Seen != 1 {
		t.Fatalf("%+v, %v", k, err)
	}
	if n, err := s.JobAlive(id); n < 2 || err != nil {
		t.Errorf("%d of the job are alive, %v", n, err)
	}
	t.Logf("%d processes were moved", n)
	s.lines(id, 2) // the storm goes on to its end
	ms, err := s.JobMembers(id)
	s.endJob(id, pidsOf(t, ms, err))
	s.endTurn()
}

// A launch that ends while it is promoted is told with its own status, once.
func TestPromoteWhileItEnds(t *testing.T) {
	s := begin(t)
	for i := range 60 {
		id := "p" + strconv.Itoa(i+1)
		s.start(id, "sh", "-c", fmt.Sprintf("sleep 1000 & c=$!; sleep 0.0%02d; kill -KILL $c; exit %d", i%20, i))
		time.Sleep(time.Duration(i%20) * time.Millisecond)
		if _, err := s.Promote(t.Context(), id, nil); err != nil && !errors.Is(err, api.ErrNotFound) {
			t.Errorf("%s: %v", id, err)
		}
	}
	for i := range 60 {
		id := "p" + strconv.Itoa(i+1)
		if st := s.exit(id); st.State != api.ProcessExited || st.Code != i {
			t.Errorf("%s: %+v", id, st)
		}
		if err := s.WaitJob(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	s.endTurn()
}

// What cannot be moved to the end goes back, all of it.
func TestPromoteGoesBack(t *testing.T) {
	s := begin(t)
	s.help("p1", "family", "2", "2")
	s.lines("p1", 7)
	before, err := s.Members()
	pids := pidsOf(t, before, err)
	live := mustLive(t, pids...)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if n, err := s.Promote(over, "p1", nil); err == nil || n != 0 {
		t.Fatalf("promoted %d with no time: %v", n, err)
	}
	after, err := s.Members()
	if got := pidsOf(t, after, err); !sameInts(got, pids) {
		t.Errorf("the turn has %v, not %v", got, pids)
	}
	for _, m := range after {
		if m.Process != "p1" {
			t.Errorf("%+v is not in its leaf", m)
		}
	}
	live()
	s.notFrozen("work/p1")
	if s.isJob("p1") {
		t.Error("it is a job")
	}
	if n, err := s.Promote(t.Context(), "p1", nil); err != nil || n != len(pids) {
		t.Errorf("promoted %d afterwards: %v", n, err)
	}
	s.endJob("p1", pids)
	if _, err := s.Promote(t.Context(), "p9", nil); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("promoted what there is not: %v", err)
	}
	s.endTurn()
}

func (s *stage) notFrozen(rel string) {
	s.t.Helper()
	d, err := cgroup.Open(filepath.Join(s.dir.Path(), rel))
	if err != nil {
		s.t.Fatal(err)
	}
	defer d.Close()
	if asked, err := d.FreezeAsked(); asked || err != nil {
		s.t.Errorf("%s is frozen (%v)", rel, err)
	}
}

// Output, kept or a terminal's, goes on over a promotion without a gap.
func TestPromoteKeepsStreams(t *testing.T) {
	s := begin(t)
	s.help("p1", "beat")
	s.launch(containment.Launch{Process: "p2", Argv: []string{"cat"}, Stdio: api.Stdio{
		Stdin: api.Stream{Mode: api.StdioPTY}, Stdout: api.Stream{Mode: api.StdioPTY, MaxBytes: 1 << 16},
		Stderr: api.Stream{Mode: api.StdioPTY}, PTY: &api.WinSize{Rows: 24, Cols: 80}}})
	s.lines("p1", 20)
	for _, id := range []string{"p1", "p2"} {
		if _, err := s.Promote(t.Context(), id, nil); err != nil {
			t.Fatal(err)
		}
	}
	if k, err := s.Kill(t.Context(), time.Minute); err != nil || k.Seen != 0 {
		t.Errorf("%+v, %v", k, err)
	}
	at := len(s.lines("p1", 1))
	for i, line := range s.lines("p1", at+50) {
		if line != strconv.Itoa(i) {
			t.Fatalf("line %d is %q", i, line)
		}
	}
	if err := s.Resize(t.Context(), "p2", api.WinSize{Rows: 50, Cols: 100}); err != nil {
		t.Error(err)
	}
	if err := s.Input(t.Context(), "p2", []byte("still there?\n"), false); err != nil {
		t.Fatal(err)
	}
	systest.Until(t, "the echo", func() bool { return strings.Count(s.output("p2"), "still there?") == 2 })
	if err := s.Input(t.Context(), "p2", nil, true); err != nil {
		t.Fatal(err)
	}
	if st := s.exit("p2"); st.State != api.ProcessExited || st.Code != 0 {
		t.Errorf("cat: %+v", st)
	}
	ms, err := s.JobMembers("p1")
	s.endJob("p1", pidsOf(t, ms, err))
	s.endTurn()
}

// A process without its main thread is in no list once it was moved; it is of the
// job all the same.
func TestPromoteHeadless(t *testing.T) {
	s := begin(t)
	st := s.help("p1", "headless")
	s.lines("p1", 1)
	systest.Until(t, "the end of its main thread", func() bool {
		ms, err := s.Members()
		return err == nil && len(ms) == 1 && ms[0].State == "Z"
	})
	live := mustLive(t, st.PID)
	for _, ctx := range []func() context.Context{func() context.Context {
		over, cancel := context.WithCancel(t.Context())
		cancel()
		return over // there and back
	}, t.Context} {
		n, err := s.Promote(ctx(), "p1", nil)
		t.Logf("%d, %v", n, err)
		live()
		if n, err := s.Alive(); n+len(s.jobs.of) != 1 || err != nil {
			t.Errorf("%d are alive in the turn, %v", n, err)
		}
	}
	if ms, err := s.JobMembers("p1"); !slices.Equal(pidsOf(t, ms, err), []int{st.PID}) {
		t.Errorf("the job has %+v", ms)
	}
	if n, err := s.JobAlive("p1"); n != 1 || err != nil {
		t.Fatalf("%d of the job are alive, %v", n, err)
	}
	if full, err := s.work.Populated(); full || err != nil {
		t.Errorf("work/ is populated: %v, %v", full, err)
	}
	// Its dead main thread is listed in work/ still: it is no reason to signal it.
	other := s.start("p2", "sleep", "1000")
	if ms, err := s.Members(); !slices.Equal(pidsOf(t, ms, err), []int{other.PID}) {
		t.Errorf("the turn has %+v", ms)
	}
	if all, err := s.Targets(t.Context()); err != nil || len(all) != 2 {
		t.Errorf("%+v, %v", all, err)
	}
	if n, err := s.Ask(t.Context(), func(string) syscall.Signal { return syscall.SIGTERM }); n != 1 || err != nil {
		t.Errorf("asked %d, %v", n, err)
	}
	s.exit("p2")
	live()
	if k, err := s.Kill(t.Context(), time.Minute); err != nil || k.EmptyAt.IsZero() {
		t.Errorf("%+v, %v", k, err)
	}
	live()
	s.endJob("p1", []int{st.PID})
	if st := s.exit("p1"); st.State != api.ProcessSignaled || st.SignalNumber != 9 {
		t.Errorf("it ended as %+v", st)
	}
	s.endTurn()
}

// Cgroups that a launch has made below its leaf are gone through, too; one of
// them may be frozen.
func TestPromoteNested(t *testing.T) {
	s := begin(t)
	s.help("p1", "family", "1", "2")
	s.lines("p1", 3)
	ms, err := s.Members()
	pids := pidsOf(t, ms, err)
	leaf, err := s.work.Open("p1")
	if err != nil {
		t.Fatal(err)
	}
	defer leaf.Close()
	own, err := leaf.Make("own")
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	deep, err := own.Make("deep")
	if err != nil {
		t.Fatal(err)
	}
	defer deep.Close()
	if err := errors.Join(own.Add(pids[0]), deep.Add(pids[1]), deep.Freeze(true)); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Promote(t.Context(), "p1", nil); err != nil || n != len(pids) {
		t.Fatalf("promoted %d of %d: %v", n, len(pids), err)
	}
	if full, err := s.work.Populated(); full || err != nil {
		t.Errorf("work/ is populated: %v, %v", full, err)
	}
	s.endJob("p1", pids)
	s.endTurn()
}

// A job is under its own limits, and one that was ended for want of memory reads so,
// though its keeper looks below work/ only.
func TestJobOutOfMemory(t *testing.T) {
	s := begin(t)
	limits := &api.Limits{MemoryBytes: 64 << 20, SwapBytes: new(int64(0)), PIDs: 50}
	st := s.start("p1", "sh", "-c", "while [ ! -e "+s.hold.facts.Dir+"/go ]; do sleep 0.05; done; exec tail /dev/zero")
	other := s.start("p2", "sh", "-c", "sleep 1000 & wait")
	n, err := s.Promote(t.Context(), "p1", limits)
	var e *api.Error
	if errors.As(err, &e) && e.Code == api.CodeLimitUnavailable {
		if n, err := s.Alive(); n < 2 || err != nil {
			t.Errorf("after a refusal %d are in the turn, %v", n, err)
		}
		s.endTurn()
		systest.Lacking(t, "memory controller", err)
	}
	if err != nil || n < 1 {
		t.Fatal(n, err)
	}
	if _, err := s.Promote(t.Context(), "p2", limits); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"memory.max": "67108864", "pids.max": "50"} {
		b, err := os.ReadFile(filepath.Join(s.dir.Path(), jobsName, name))
		if got := strings.TrimSpace(string(b)); got != want || err != nil {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
	live := mustLive(t, other.PID)
	if err := os.WriteFile(s.hold.facts.Dir+"/go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	systest.Until(t, "its end", func() bool { h := s.handleOf("p1"); return h == nil || h.Wait(t.Context()) == nil })
	if got := s.exit("p1"); got.State != api.ProcessOOM {
		t.Errorf("%d ended as %+v", st.PID, got)
	}
	live()
	if err := s.WaitJob(t.Context(), "p1"); err != nil {
		t.Error(err)
	}
	if u := s.JobUsage("p1"); u.OOMKills != 1 || u.MemoryPeak < 32<<20 {
		t.Errorf("%+v", u)
	}
	ms, err := s.JobMembers("p2")
	s.endJob("p2", pidsOf(t, ms, err))
	s.endTurn()
}
