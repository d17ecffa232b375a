package records

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"pinfold.dev/api"
	"pinfold.dev/pidfd"
)

// crowd is how many turns live across how many restarts: PINFOLD_TEST_CROWD is
// TURNSxRESTARTS, 1000x50 for the whole of it.
func crowd(t *testing.T) (turns, restarts int) {
	t.Helper()
	turns, restarts = 60, 6
	if s := os.Getenv("PINFOLD_TEST_CROWD"); s != "" {
		a, b, _ := strings.Cut(s, "x")
		var err1, err2 error
		turns, err1 = strconv.Atoi(a)
		restarts, err2 = strconv.Atoi(b)
		if err1 != nil || err2 != nil || turns < 1 || restarts < 4 {
			t.Fatalf("PINFOLD_TEST_CROWD: %q", s)
		}
	}
	return turns, restarts
}

// usage is what a process holds just now.
type usage struct {
	fds     int
	private int // KiB
}

func usageOf(t *testing.T, pid int) (u usage) {
	t.Helper()
	fds, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/fd")
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/smaps_rollup")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[0], "Private_") {
			n, _ := strconv.Atoi(f[1])
			u.private += n
		}
	}
	return usage{len(fds), u.private}
}

// heldTurn is a turn with one process.
type heldTurn struct {
	turn api.Turn
	pid  int
}

// each calls f with 0 to n-1, eight at a time.
func each(n int, f func(i int)) {
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := w; i < n; i += 8 {
				f(i)
			}
		})
	}
	wg.Wait()
}

// asTheyWere counts open turns that hold one process and are no worse than one.
func asTheyWere(all []api.Turn, one api.Turn) (n int) {
	for _, v := range all {
		if v.State == api.StateOpen && v.Alive == 1 && len(v.Degraded) <= len(one.Degraded) {
			n++
		}
	}
	return n
}

// Many turns live across many restarts: none is lost, none of their processes is
// touched, and neither the service nor the
// keepers grow.
func TestCrowdAcrossRestarts(t *testing.T) {
	turns, restarts := crowd(t)
	s := serve(t)
	canary := newCanary(t, "")
	all := make([]heldTurn, turns)
	each(turns, func(i int) {
		v, err := s.Begin(context.Background(), api.BeginRequest{Label: "crowd " + strconv.Itoa(i), LeaseMS: 3600_000})
		if err != nil {
			t.Error(err)
			return
		}
		p, err := s.Launch(context.Background(), v.ID, api.LaunchRequest{Argv: []string{"sleep", "100000"}, Cwd: "/"})
		if err != nil {
			t.Error(err)
		}
		all[i] = heldTurn{v, p.PID}
	})
	if t.Failed() {
		return
	}
	var first usage
	keeper := usageOf(t, all[0].turn.KeeperPID)
	for n := range restarts {
		if n%2 == 0 {
			s.kill()
		} else {
			s.Close()
			_ = s.cmd.Process.Signal(os.Interrupt)
			<-s.gone
		}
		s.start()
		eventually(t, "all turns are as they were, after restart "+strconv.Itoa(n), func() bool { // a keeper may take its time to answer
			list, err := s.Turns(context.Background(), false, "")
			if err != nil {
				t.Fatal(err)
			}
			return asTheyWere(list.Turns, all[0].turn) == turns
		})
		u := usageOf(t, s.cmd.Process.Pid)
		if n == 1 {
			first = u
		}
		t.Logf("restart %d: %d descriptors, %d KiB private", n, u.fds, u.private)
		if n > 1 && (u.fds > first.fds+8 || u.private > first.private*3/2+4096) {
			t.Errorf("restart %d: it has grown from %+v to %+v", n, first, u)
		}
	}
	if now := usageOf(t, all[0].turn.KeeperPID); now.fds > keeper.fds+2 || now.private > keeper.private*3/2+1024 {
		t.Errorf("a keeper has grown from %+v to %+v", keeper, now)
	}
	for i, h := range all {
		if st := stateOf(h.pid); st == 0 || st == 'Z' {
			t.Errorf("the process of turn %d is dead", i)
		}
	}
	each(turns, func(i int) {
		r, err := s.Abandon(context.Background(), all[i].turn.ID, api.AbandonRequest{GraceMS: new(int64(0))})
		if err != nil || !r.Complete || len(r.Processes) != 1 || r.Processes[0].Status.Signal != "SIGKILL" {
			t.Errorf("turn %d: complete %v, %+v (%v)", i, r.Complete, r.Processes, err)
		}
	})
	canary.lives()
}

// Turns that a service has no descriptors for are shown as unverifiable, and found
// again as soon as there are some: nobody has to restart it. None is lost, and the
// service answers all the while.
func TestTurnsBeyondDescriptors(t *testing.T) {
	s := serve(t)
	const n = 40
	pids := map[string]int{}
	for range n {
		x := s.begin(api.BeginRequest{})
		pids[x.ID] = s.launch(x.ID, "exec sleep 100000").PID
	}
	s.kill()
	bin := s.bin
	s.bin = s.dir + "/limited"
	if err := os.WriteFile(s.bin, []byte("#!/bin/sh\nulimit -n 280\nexec "+bin+" \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	s.start()
	standings := func() map[api.Standing]int {
		l, err := s.Records(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		out := map[api.Standing]int{}
		for _, r := range l.Records {
			out[r.Standing]++
		}
		return out
	}
	first := standings()
	for id, pid := range pids {
		if s.entry(id).Standing != api.StandingLive {
			continue
		}
		if v := s.look(id); has(v.Degraded, "keeper is gone") {
			t.Errorf("turn %s has no keeper: %q", id, v.Degraded)
		}
		if r, err := s.Abandon(context.Background(), id, api.AbandonRequest{GraceMS: new(int64(0))}); err != nil || !r.Complete {
			t.Errorf("turn %s: complete %v (%v)", id, r.Complete, err)
		}
		if st := stateOf(pid); st != 0 && st != 'Z' {
			t.Errorf("process %d lives", pid)
		}
		delete(pids, id)
	}
	if first[api.StandingUnverified] == 0 || first[api.StandingLive] == 0 {
		t.Fatalf("with few descriptors: %v", first)
	}
	for id, pid := range pids { // for which there is room now
		eventually(t, "turn "+id+" can be ended", func() bool {
			r, err := s.Abandon(context.Background(), id, api.AbandonRequest{GraceMS: new(int64(0))})
			return err == nil && r.Complete
		})
		if st := stateOf(pid); st != 0 && st != 'Z' {
			t.Errorf("process %d lives", pid)
		}
	}
	if now := standings(); now[api.StandingUnverified] != 0 {
		t.Errorf("at the end: %v", now)
	}
	t.Logf("of %d turns %d were beyond", n, first[api.StandingUnverified])
}

// A service that is told to stop, and waits for a request under way, has its socket
// gone for good: it does not take its going for a harm that is to be mended.
func TestStopLeavesNoSocket(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.Socket = s.dir + "/run/sock"
	s.args = []string{"--socket", s.Socket}
	s.start()
	ended := make(chan error, 1)
	for grace := int64(1000); ; grace *= 4 {
		x := s.begin(api.BeginRequest{})
		deaf := s.dir + "/deaf." + x.ID
		s.launch(x.ID, "trap '' TERM; : >"+deaf+"; exec sleep 100000")
		eventually(t, "TERM is ignored", func() bool { return exists(deaf) })
		go func() {
			_, err := s.Abandon(context.Background(), x.ID, api.AbandonRequest{GraceMS: &grace})
			ended <- err
		}()
		state := api.StateOpen
		eventually(t, "the turn is being ended", func() bool { state = s.look(x.ID).State; return state != api.StateOpen })
		if state == api.StateEnding {
			break
		}
		if err := <-ended; err != nil || grace > 60_000 { // a busy machine is slow to look
			t.Fatalf("a grace of %d ms was over before anybody looked (%v)", grace, err)
		}
	}
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	if err := <-ended; err != nil {
		t.Logf("abandon, while the service stops: %v", err)
	}
	<-s.gone
	if _, err := os.Lstat(s.Socket); err == nil {
		t.Error("the socket is there when the service is not")
	}
	if n := strings.Count(s.log(), "the service's socket was removed"); n > 0 {
		t.Errorf("it was made anew %d times as the service stopped", n)
	}
	s.start() // which ends the turn, if that was not seen to its end
}

// An adopted process that ends while there is no service, and that its parent has
// not waited for, tells its status to the next.
func TestAdoptedEndsMeanwhile(t *testing.T) {
	t.Parallel()
	s := serve(t)
	x := s.begin(api.BeginRequest{})
	c := exec.Command("sh", "-c", "while [ ! -e "+s.dir+"/go ]; do sleep 0.02; done; exit 22")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Process.Kill(); _ = c.Wait() }()
	h, err := pidfd.Open(c.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	id, err := h.Identity()
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.Adopt(context.Background(), x.ID, api.AdoptRequest{Process: id}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.kill()
	if err := os.WriteFile(s.dir+"/go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it has exited", func() bool { return stateOf(c.Process.Pid) == 'Z' })
	s.start()
	var v api.Turn
	eventually(t, "its end is told", func() bool { v = s.look(x.ID); return v.Processes[0].Status.State != api.ProcessRunning })
	if st := v.Processes[0].Status; st.State != api.ProcessExited || st.Code != 22 {
		t.Errorf("process %s: %+v", p.ID, st)
	}
}
