package main

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pinfold.dev/api"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden holds text against a file of testdata/golden.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", "golden", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s differs (go test -update writes it anew) (-want +got):\n%s", path, d)
	}
}

func at(ms float64) *time.Time {
	t := time.Date(2026, 11, 29, 19, 0, 0, 0, time.UTC).Add(time.Duration(ms * 1e6))
	return &t
}

func completeReceipt() api.Receipt {
	return api.Receipt{
		Turn: "k3v9x0qm", Epoch: 1, Owner: 1000, Label: "fix the build", State: api.StateAbandoned, Reason: api.ReasonStop,
		Actor: api.Actor{UID: 1000, PID: 4242, Cgroup: "/user.slice/user-1000.slice"}, Grade: api.GradeScope,
		Mechanism: "cgroup.kill", AskedAt: *at(0), FencedAt: at(0.3), TermAt: at(0.4), KilledAt: at(5000.6), SeenEmptyAt: at(5004.2),
		GraceMS: 5000, Rounds: 1, Complete: true,
		Counts: api.Counts{Ended: 14, AlreadyGone: 1},
		Processes: []api.ReceiptProcess{
			{ID: "p1", PID: 4711, Argv: []string{"bash", "-c", "npm run dev & sleep 1"}, EndedBy: "kill", Verdict: api.VerdictGone,
				Status:   api.Status{State: api.ProcessSignaled, Signal: "SIGKILL", SignalNumber: 9},
				Evidence: []string{"launched by the turn's keeper (clone)", "pidfs inode 70123", "its keeper reaped it"}},
			{ID: "p2", PID: 14720, Argv: []string{"make"}, EndedBy: "itself", Verdict: api.VerdictGone,
				Status: api.Status{State: api.ProcessExited, Code: 2}, Adopted: true,
				Evidence: []string{"the caller has sent its pidfd", "start tick 9, user ids [1000 1000 1000 1000]", "\x1b[31mits pidfd told how it ended; its parent reaped it"}},
		},
		Usage: api.Usage{CPUUsec: 1_234_000, MemoryPeak: 123 << 20, PIDsPeak: 20, IOReadBytes: 5000, IOWriteBytes: 0},
	}
}

func incompleteReceipt() api.Receipt {
	r := completeReceipt()
	r.State, r.Complete, r.Mechanism, r.Rounds, r.SeenEmptyAt = api.StateUnkillable, false, "cgroup.kill+members", 41, nil
	r.Label = "evil \x1b[2J\x07label"
	r.Actor = api.Actor{Name: "pinfold"}
	r.Grade = api.GradeCgroup
	r.Counts = api.Counts{Ended: 3, Unverifiable: 1, Survivors: 1}
	r.Processes = r.Processes[:1]
	r.Processes[0].Status = api.Status{State: api.ProcessRunning}
	r.Processes[0].EndedBy, r.Processes[0].Verdict, r.Processes[0].Escaped = "nobody", api.VerdictOwned, true
	r.Leftovers = []api.Leftover{{PID: 77, Process: "p1", Comm: "node", AgeMS: 200_000, RSS: 50 << 20}}
	r.Outside = []api.Outside{{PID: 99, Process: "p1", Comm: "tmux: server", Cgroup: "/user.slice/x.scope", Evidence: "below the turn's keeper"}}
	r.Survivors = []api.Survivor{{PID: 4800, TID: 4801, Comm: "dd", State: "D", WaitChannel: "percpu_rwsem_wait", Cgroup: "work/p1"}}
	r.Usage = api.NoUsage()
	r.Notes = []string{"the keeper did not answer in 250ms"}
	return r
}

func TestSurvivorsWhy(t *testing.T) {
	const roots, others = "it is uid 0's, whom uid 1000 may not signal", "it is uid 7's, whom uid 1000 may not signal"
	text := survivorsText([]api.Survivor{{PID: 11, State: "S", Comm: "sudo", Why: roots}, {PID: 12, State: "D", Comm: "dd"},
		{PID: 13, State: "S", Comm: "x", Why: others}, {PID: 14, State: "R", Comm: "y", Why: roots}}, style{})
	if want := "    11, 14: " + roots + "\n    13: " + others + "\n"; !strings.HasSuffix(text, "y\n"+want) {
		t.Errorf("it ends with another text than %q:\n%s", want, text)
	}
}

func TestRenderReceipt(t *testing.T) {
	finished := completeReceipt()
	finished.State, finished.Reason, finished.Mechanism, finished.Rounds = api.StateFinished, api.ReasonFinished, "none", 0
	finished.TermAt, finished.KilledAt, finished.SeenEmptyAt, finished.Processes = nil, nil, nil, nil
	finished.Leftovers, finished.LeftoversEndedAt = incompleteReceipt().Leftovers, at(90_000)
	reaped := completeReceipt()
	reaped.Reaped = []api.Reaped{{PID: 78, Process: "p1", Comm: "make", AgeMS: 60_000, Verdict: api.VerdictGone}, {PID: 4800, Comm: "dd\x1b", AgeMS: 9, Verdict: api.VerdictOwned}}
	served := completeReceipt()
	served.ServedBy = []api.Served{
		{PID: 78, Process: "p1", Comm: "gradle", Socket: "unix:@gradle\x1b", By: []api.Member{{PID: 34, Comm: "java\x1b", Cgroup: "/user.slice/x.scope"}, {PID: 35, Comm: "java", Cgroup: "/"}}},
		{PID: 79, Comm: "docker", Socket: "unix:/run/docker.sock"}}
	for _, c := range []struct {
		name string
		r    api.Receipt
		st   style
	}{
		{"complete.txt", completeReceipt(), style{utf8: true, width: 80}},
		{"complete-ascii.txt", completeReceipt(), style{}},
		{"incomplete.txt", incompleteReceipt(), style{utf8: true, width: 80}},
		{"incomplete-colour.txt", incompleteReceipt(), style{color: true}},
		{"finished.txt", finished, style{utf8: true}},
		{"reaped.txt", reaped, style{}},
		{"served.txt", served, style{utf8: true}},
	} {
		t.Run(c.name, func(t *testing.T) { golden(t, c.name, renderReceipt(c.r, c.st)) })
	}
}

func TestRenderTree(t *testing.T) {
	tree := api.Tree{Turn: "k3v9x0qm", Grade: api.GradeCgroup, Members: []api.Member{
		{PID: 30, PPID: 20, State: "S", Comm: "sleep", Process: "p1", RSS: 900 << 10, AgeMS: 1000},
		{PID: 20, PPID: 5, State: "S", Comm: "bash", Process: "p1", RSS: 3 << 20, AgeMS: 2000},
		{PID: 31, PPID: 20, State: "R", Comm: "\x1b[31mred", Process: "p1", RSS: 2 << 20, AgeMS: 90_000},
		{PID: 40, PPID: 30, State: "Z", Comm: "true", Process: "p1"},
		{PID: 100, PPID: 1, State: "S", Comm: "daemon", AgeMS: 7_300_000},
		{PID: 101, PPID: 101, State: "S", Comm: "own parent", Process: "p2"},
	}}
	golden(t, "tree.txt", renderTree(tree, style{utf8: true}))
	golden(t, "tree-ascii.txt", renderTree(tree, style{}))
	golden(t, "tree-empty.txt", renderTree(api.Tree{Turn: "x", Grade: api.GradeScope}, style{}))
}

func TestRenderTurns(t *testing.T) {
	now := *at(0)
	turn := api.Turn{ID: "k3v9x0qm", Epoch: 1, Label: "fix the build, which takes more words than a screen has", Owner: 0,
		Session: "s", Labels: map[string]string{"b": "2", "a": "1"}, State: api.StateOpen, Grade: api.GradeCgroup,
		Leftovers: api.LeftoversKeep, CreatedAt: now.Add(-3 * time.Minute), Cgroup: "/sys/fs/cgroup/pinfold/k3v9x0qm",
		Alive: 3, Limits: &api.Limits{MemoryBytes: 1 << 30, PIDs: 100}, Degraded: []string{"no memory controller"},
		Processes: []api.Process{{ID: "p1", PID: 20, Argv: []string{"bash", "-c", "it's"}, Status: api.Status{State: api.ProcessRunning},
			StartedAt: now.Add(-time.Minute)}}}
	lost := api.Turn{ID: "a", State: api.StateLost, Grade: api.GradeScope, Owner: 0, CreatedAt: now.Add(-72 * time.Hour), Alive: -1}
	golden(t, "turns.txt", renderTurns([]api.Turn{turn, lost}, now, style{utf8: true, width: 80}))
	golden(t, "turn.txt", renderTurn(turn, now, style{utf8: true, width: 80}))
}

func TestRenderHost(t *testing.T) {
	h := api.Host{Version: "0.1.0", Kernel: "6.18.0", Grade: api.GradeCgroup, Asked: api.GradeAuto, CgroupMount: "/sys/fs/cgroup/unified",
		CgroupRoot: "/sys/fs/cgroup/unified/pinfold", Controllers: []string{}, RuntimeDir: "/run/pinfold", StateDir: "/var/lib/pinfold", Turns: 2,
		Checks: []api.HostCheck{{Name: "cgroup.kill", OK: true}, {Name: "systemd", Detail: "not running", Remedy: "boot with systemd"}}}
	golden(t, "host.txt", renderHost(h, "", style{utf8: true}))
	golden(t, "host-down.txt", renderHost(h, "no service answers", style{}))
}
