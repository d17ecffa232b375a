package containers

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"pinfold.dev/api"
)

// tally is what an init's status file says.
type tally struct{ Reaped, Orphans int }

// stale is longer than that file is old: it is written twice a second at most.
const stale = 2 * time.Second

// Who comes into a container from outside, as by docker exec, is nobody's: its
// status goes to its own parent, it is not counted, and no turn takes it along.
func TestExec(t *testing.T) {
	runtimes(t, func(t *testing.T, rt oci) {
		for _, how := range []string{"rw", "ro"} {
			t.Run("cgroups "+how, func(t *testing.T) {
				t.Parallel()
				testExec(t, rt, how)
			})
		}
	})
}

func testExec(t *testing.T, rt oci, how string) {
	b := newBundle(t, gateway("life", "/tmp", "/shared/go")...)
	b.flags("--status", "/shared/status")
	b.imageEnv()
	b.cgroups(how)
	dir := b.shared(t)
	c := rt.start(t, b)
	c.says("the turn is up")
	visitor := c.exec(as("canary", "/shared/visitor")...)
	if err := rt.begin(visitor); err != nil {
		t.Fatal(err)
	}
	eventually(t, "who came by exec", func() bool { return held(dir + "/visitor") })
	before := settledTally(t, dir) // what the service's own start has left may be reaped, and not yet in there
	if out, err := c.exec(as("exit", "9")...).CombinedOutput(); exit(err) != 9 {
		t.Errorf("what exits with 9 is seen with %v: %s", err, out)
	}
	if out, err := c.exec(as("die", "15")...).CombinedOutput(); exit(err) != 143 {
		t.Errorf("what dies of TERM is seen with %v: %s", err, out)
	}
	if out, err := c.exec(as("orphan")...).CombinedOutput(); err != nil {
		t.Errorf("leave an orphan: %v: %s", err, out)
	}
	eventually(t, "the orphan is reaped and counted", func() bool { return readTally(t, dir).Orphans > before.Orphans })
	if after, want := settledTally(t, dir), (tally{before.Reaped + 1, before.Orphans + 1}); after != want { // the others came before it
		t.Errorf("the init counts who came by exec: %+v, then %+v", before, after)
	}

	if err := os.WriteFile(dir+"/go", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if s := c.story(); !s.Gone || !s.Canary || s.Receipt.State != api.StateAbandoned {
		t.Errorf("the turn: gone %v, the canary lives %v, %+v", s.Gone, s.Canary, s.Receipt)
	}
	if !held(dir + "/visitor") {
		t.Error("who came by exec was ended with the turn")
	}
	c.kill("TERM")
	if code := c.code(); code != 7 {
		t.Errorf("code %d", code)
	}
	if err := visitor.Wait(); exit(err) != 137 {
		t.Errorf("who came by exec ended with the container, and its parent sees %v", err)
	}
}

// settledTally is what the file says once nothing has changed for a while.
func settledTally(t *testing.T, dir string) (n tally) {
	t.Helper()
	n = readTally(t, dir)
	for since := time.Now(); time.Since(since) < stale; time.Sleep(20 * time.Millisecond) {
		if now := readTally(t, dir); now != n {
			n, since = now, time.Now()
		}
	}
	return n
}

func readTally(t *testing.T, dir string) (n tally) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "status"))
	if err == nil {
		err = json.Unmarshal(b, &n)
	}
	if err != nil {
		t.Fatal("read the init's status file:", err)
	}
	return n
}

// In a PID namespace that is shared, as a pod's, an init that is not PID 1 ends
// what its own command leaves, and leaves the others alone, their zombies too.
func TestSharedPIDs(t *testing.T) {
	runtimes(t, func(t *testing.T, rt oci) {
		pod := initOnly(t, nil)
		pod.Process.Args = []string{"/usr/bin/pinfold-init", "-P"}
		dir := pod.shared(t)
		p := rt.start(t, pod)
		var first string
		eventually(t, "the pod's first process", func() bool {
			out, err := rt.command("state", p.id).Output()
			var s specs.State
			ok := err == nil && json.Unmarshal(out, &s) == nil && s.Status == "running" && s.Pid > 0
			first = fmt.Sprintf("/proc/%d/ns/pid", s.Pid)
			return ok
		})
		visitor := p.exec(as("canary", "/shared/visitor")...)
		if err := rt.begin(visitor); err != nil {
			t.Fatal(err)
		}
		eventually(t, "another of the pod", func() bool { return held(dir + "/visitor") })

		b := newBundle(t, gateway("life", "/shared")...)
		b.flags("--kill-remaining=5s")
		b.imageEnv()
		b.cgroups("rw")
		b.join(specs.PIDNamespace, first)
		own := b.shared(t)
		c := rt.start(t, b)
		if s := c.story(); !s.Gone || s.Host.Grade != api.GradeCgroup || !s.Canary {
			t.Errorf("the turn: %+v", s)
		}
		if !held(own + "/canary") {
			t.Error("the gateway's child is gone before its time")
		}
		c.kill("TERM")
		if code := c.code(); code != 7 {
			t.Errorf("code %d", code)
		}
		if held(own + "/canary") {
			t.Error("what the gateway has left lives on")
		}
		if !held(dir + "/visitor") {
			t.Error("another container's process was ended")
		}
		p.kill("TERM")
		if code := p.code(); code != 0 {
			t.Errorf("the pod's first process ended with %d", code)
		}
		if err := visitor.Wait(); exit(err) != 137 {
			t.Errorf("the other of the pod is seen with %v", err)
		}
	})
}

// eventually waits for what comes soon.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(patience()); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not seen: %s", what)
		}
	}
}
