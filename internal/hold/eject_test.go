//go:build linux

package hold

import (
	"errors"
	"slices"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/containment"
	"pinfold.dev/internal/sys/systest"
	"pinfold.dev/pidfd"
)

// One member with its descendants becomes a job of its own.
func TestEject(t *testing.T) {
	s := begin(t)
	s.start("p1", "sh", "-c", "(sh -c 'setsid sleep 1001 & sleep 1002 & wait' & wait) & sleep 1003 & wait")
	var all []api.Member
	systest.Until(t, "the family", func() bool { all, _ = s.Members(); return len(all) == 6 && named(all, "sleep") == 3 })
	var root, top int
	var tree []int
	under := map[int][]int{}
	for _, m := range all {
		under[m.PPID] = append(under[m.PPID], m.PID)
	}
	for _, m := range all { // the innermost shell has two children, both sleepers
		if kids := under[m.PID]; len(kids) == 2 && len(under[kids[0]])+len(under[kids[1]]) == 0 {
			root, tree = m.PID, append([]int{m.PID}, kids...)
		}
		if m.PPID == s.keeper.PID() {
			top = m.PID
		}
	}
	rest := slices.DeleteFunc(pidsOf(t, all, nil), func(pid int) bool { return slices.Contains(tree, pid) })
	accept := func(containment.Started) error { return nil }
	refused := errors.New("no")
	canary := systest.Start(t, sleeper())
	for pid, want := range map[int]error{root: refused, top: api.ErrBadRequest, 0: api.ErrNotFound, 1: api.ErrNotFound, -1: api.ErrNotFound,
		canary.PID(): api.ErrNotFound, s.keeper.PID(): api.ErrNotFound, syscall.Getpid(): api.ErrNotFound} {
		before := accept
		if pid == root {
			before = func(containment.Started) error { return refused }
		}
		if err := s.Eject(t.Context(), "p1", "j0", pid, nil, before); !errors.Is(err, want) {
			t.Errorf("eject %d: %v, not %v", pid, err, want)
		}
	}
	if n, _ := s.Alive(); n != 6 {
		t.Fatalf("%d are in the turn after refusals", n)
	}
	var told containment.Started
	err := s.Eject(t.Context(), "p1", "j1", root, nil, func(st containment.Started) error { told = st; return nil })
	if err != nil || told.PID != root || told.Process != "j1" || told.Identity.PID != root {
		t.Fatalf("eject: %v, %+v", err, told)
	}
	ms, err := s.JobMembers("j1")
	if got := pidsOf(t, ms, err); !sameInts(got, tree) {
		t.Errorf("the job has %v, not %v", got, tree)
	}
	live, dead := mustLive(t, append(tree, canary.PID())...), mustEnd(t, rest...)
	if k, err := s.Kill(t.Context(), time.Minute); err != nil || k.EmptyAt.IsZero() || k.Seen != len(rest) {
		t.Fatalf("%+v, %v", k, err)
	}
	dead()
	live()
	s.noExit("j1")
	h, err := pidfd.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if v, err := s.Signal(t.Context(), "j1", syscall.SIGTERM); v != api.VerdictOwned || err != nil {
		t.Errorf("signal the job: %s, %v", v, err)
	}
	if st := s.exit("j1"); (st.State != api.ProcessSignaled || st.Signal != "SIGTERM") &&
		!(oldKernel(t) && st.State == api.ProcessLost) {
		t.Errorf("it ended as %+v", st)
	}
	if n, err := s.JobAlive("j1"); n != 2 || err != nil { // it lingers
		t.Errorf("%d of the job are alive, %v", n, err)
	}
	s.endJob("j1", tree[1:])
	s.endTurn()
}

// What was ejected from a job is another one.
func TestEjectFromJob(t *testing.T) {
	s := begin(t)
	s.help("p1", "family", "1", "1")
	s.lines("p1", 2)
	if _, err := s.Promote(t.Context(), "p1", nil); err != nil {
		t.Fatal(err)
	}
	ms, err := s.JobMembers("p1")
	pids := pidsOf(t, ms, err)
	child := 0
	for _, m := range ms {
		if slices.Contains(pids, m.PPID) {
			child = m.PID
		}
	}
	if err := s.Eject(t.Context(), "p1", "j1", child, nil, func(containment.Started) error { return nil }); err != nil {
		t.Fatal(err)
	}
	live := mustLive(t, child)
	s.endJob("p1", slices.DeleteFunc(pids, func(pid int) bool { return pid == child }))
	live()
	s.noExit("j1")
	if u := s.JobUsage("j1"); u.CPUUsec < 0 {
		t.Errorf("%+v", u)
	}
	s.endJob("j1", []int{child})
	s.endTurn()
}

func named(ms []api.Member, comm string) (n int) {
	for _, m := range ms {
		if m.Comm == comm {
			n++
		}
	}
	return n
}
