package records

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"pinfold.dev/api"
	"pinfold.dev/containment"
	"pinfold.dev/pidfd"
)

// scene is one turn that a service finds again, with a canary outside and
// another in the turn beside.
type scene struct {
	*service
	t         *testing.T
	canary    *canary
	turn      api.Turn
	proc      api.Process // of the turn, which runs
	neighbour int         // pid of the neighbour's process
}

// cell is one of the table: what is there, and what is done to it while there is
// no service.
type cell struct {
	found   containment.Found
	verdict api.Verdict
	set     func(x *scene) // makes what is found; the service runs
	disturb func(x *scene)
	check   func(x *scene) // the service runs again
}

// cannotBe are cells that no situation of their own leads to, and why.
func cannotBe() map[string]string {
	return map[string]string{
		cellName(containment.FoundKeeper, containment.OtherBoot): "its turn is of another boot, and was dealt with",
		cellName(containment.FoundClient, containment.OtherBoot): "the same",
		cellName(containment.FoundStray, containment.OtherBoot):  "a cgroup does not outlive a boot",
		cellName(containment.FoundStray, api.VerdictGone):        "there is nothing to find: it went between two looks",
	}
}

func cellName(f containment.Found, v api.Verdict) string { return fmt.Sprintf("%s, %s", f, v) }

// TestReaperTable has a real situation for each cell.
func TestReaperTable(t *testing.T) {
	var all []cell
	all = append(all, openCells()...)
	all = append(all, endingCells()...)
	all = append(all, overCells()...)
	all = append(all, unbegunCells()...)
	all = append(all, jobCells()...)
	all = append(all, keeperCells()...)
	all = append(all, clientCells()...)
	all = append(all, strayCells()...)
	tried := map[string]bool{}
	for _, c := range all {
		tried[cellName(c.found, c.verdict)] = true
	}
	for _, r := range containment.ReaperTable() {
		name := cellName(r.Found, r.Verdict)
		if _, excused := cannotBe()[name]; tried[name] == excused {
			t.Errorf("%s: tried %v, excused %v", name, tried[name], excused)
		}
	}
	for _, c := range all {
		t.Run(cellName(c.found, c.verdict), c.try)
	}
}

func (c cell) try(t *testing.T) {
	x := &scene{service: newService(t), t: t, canary: newCanary(t, "")}
	x.start()
	beside := x.begin(api.BeginRequest{Label: "beside"})
	x.neighbour = x.launch(beside.ID, "exec sleep 100000").PID
	c.set(x)
	if x.running() {
		x.kill()
	}
	if c.disturb != nil {
		c.disturb(x)
	}
	x.start()
	if e := x.entry(x.turn.ID); e.Found == string(c.found) && (e.Verdict != c.verdict || e.Deed != string(containment.RuleFor(c.found, c.verdict).Do)) {
		t.Errorf("it is told as %+v", e)
	}
	c.check(x)
	x.canary.lives()
	if s := stateOf(x.neighbour); s == 0 || s == 'Z' {
		t.Error("the process in the turn beside is dead")
	}
	if v := x.look(beside.ID); v.State != api.StateOpen || v.Alive != 1 {
		t.Errorf("the turn beside is %s, alive %d", v.State, v.Alive)
	}
}

// open is a turn with a process that has ended with 5 and one that runs.
func open(x *scene) {
	x.turn = x.begin(api.BeginRequest{Label: "found"})
	x.exits(x.turn.ID, "exit 5")
	x.proc = x.launch(x.turn.ID, "exec sleep 100000")
}

// gone has the turn's cgroup, with all in it, away.
func gone(x *scene) { remove(x.t, x.turn.Cgroup) }

// foreign has another cgroup at the turn's place, in which a canary is.
func foreign(x *scene) {
	remove(x.t, x.turn.Cgroup)
	work := filepath.Join(x.turn.Cgroup, "work")
	if err := os.MkdirAll(work, 0o755); err != nil {
		x.t.Fatal(err)
	}
	newCanary(x.t, work)
}

// rebooted is what a boot does: nothing runs, and the numbers mean others.
func rebooted(x *scene) {
	remove(x.t, x.turn.Cgroup)
	x.edit(x.turn.ID, func(r map[string]any) {
		r["boot"] = "00000000-0000-4000-8000-000000000000"
		part(r, "facts", "keeper")["pid"] = x.canary.pid()
		part(r, "facts")["cgroup"] = x.parent // what is there now is not touched
	})
}

// unsure has the mark off the turn's cgroup; it is put back when the test is over.
func unsure(x *scene) {
	back := unmark(x.t, x.turn.Cgroup)
	x.t.Cleanup(func() { // before the service is stopped: it ends the turn then
		back()
		x.kill()
		x.start()
		v, err := x.Turn(context.Background(), x.turn.ID)
		if err != nil || v.Alive < 0 {
			x.t.Errorf("its mark is back, and it is %s, alive %d (%v)", v.State, v.Alive, err)
		}
	})
}

func (x *scene) procLives() {
	x.t.Helper()
	if s := stateOf(x.proc.PID); s == 0 || s == 'Z' {
		x.t.Error("the turn's process is dead")
	}
}

// wantLost checks that the turn is lost, with the statuses that were written.
func (x *scene) wantLost(why string) api.Receipt {
	x.t.Helper()
	r := x.receipt(x.turn.ID)
	if r.State != api.StateLost || r.Complete || !has(r.Notes, why) {
		x.t.Errorf("state %s, complete %v, notes %q", r.State, r.Complete, r.Notes)
	}
	x.wantWritten(r)
	return r
}

// wantWritten checks that p1 ended with 5, and that of p2 nobody invents a code.
func (x *scene) wantWritten(r api.Receipt) {
	x.t.Helper()
	if len(r.Processes) < 2 {
		x.t.Fatalf("processes %+v", r.Processes)
	}
	if st := r.Processes[0].Status; st.State != api.ProcessExited || st.Code != 5 {
		x.t.Errorf("p1 is %+v", st)
	}
	if st := r.Processes[1].Status; st.State != api.ProcessLost && (st.State != api.ProcessSignaled || st.Signal != "SIGKILL") {
		x.t.Errorf("p2 is %+v", st)
	}
}

// wantShown checks that the turn is as it was, shown as unverifiable, and cannot
// be ended.
func (x *scene) wantShown() {
	x.t.Helper()
	x.procLives()
	v := x.look(x.turn.ID)
	if !has(v.Degraded, "unverifiable") {
		x.t.Errorf("degraded %q", v.Degraded)
	}
	if n := len(v.Processes); n == 0 || v.Processes[n-1].ID != x.proc.ID || v.Processes[n-1].Status.State != api.ProcessRunning {
		x.t.Errorf("its processes are shown as %+v", v.Processes)
	}
	if e := x.entry(x.turn.ID); e.Standing != api.StandingUnverified || e.Why == "" || e.Remedy == "" {
		x.t.Errorf("its record is told as %+v", e)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience(reasonable))
	defer cancel()
	if r, err := x.Abandon(ctx, x.turn.ID, api.AbandonRequest{GraceMS: new(int64(0))}); err == nil && r.Complete && r.State == api.StateAbandoned {
		x.t.Errorf("it was ended: %+v", r)
	}
	x.procLives()
}

func openCells() []cell {
	f := containment.FoundOpen
	return []cell{
		{f, api.VerdictOwned, open, nil, func(x *scene) {
			x.procLives()
			if v := x.look(x.turn.ID); v.State != api.StateOpen || v.Alive != 1 || v.Processes[0].Status.Code != 5 {
				x.t.Errorf("%s, alive %d, %+v", v.State, v.Alive, v.Processes)
			}
			x.exits(x.turn.ID, "exit 0")
		}},
		{f, api.VerdictGone, open, gone, func(x *scene) { x.wantLost("its cgroup is gone") }},
		{f, api.VerdictForeign, open, foreign, func(x *scene) { x.wantLost("is not it") }},
		{f, api.VerdictUnverifiable, open, unsure, (*scene).wantShown},
		{f, containment.OtherBoot, open, rebooted, func(x *scene) { x.wantLost("rebooted") }},
	}
}

// ending is a turn whose end has been asked for and takes long.
func ending(x *scene) {
	x.turn = x.begin(api.BeginRequest{})
	x.exits(x.turn.ID, "exit 5")
	up := filepath.Join(x.dir, "up")
	x.proc = x.launch(x.turn.ID, "trap '' TERM; echo >"+up+"; while :; do sleep 1; done")
	eventually(x.t, "it ignores TERM", func() bool { _, err := os.Stat(up); return err == nil })
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = x.Abandon(ctx, x.turn.ID, api.AbandonRequest{Reason: api.ReasonIdle, GraceMS: new(int64(600_000))})
	}()
	x.t.Cleanup(cancel)
	eventually(x.t, "it is being ended, on disk too", func() bool {
		b, err := os.ReadFile(x.recordPath(x.turn.ID))
		return err == nil && x.look(x.turn.ID).State == api.StateEnding && has([]string{string(b)}, `"ending":{`)
	})
}

func endingCells() []cell {
	f := containment.FoundEnding
	cut := func(x *scene) { // the next service asks for no grace
		x.edit(x.turn.ID, func(r map[string]any) { part(r, "ending")["grace_ms"] = 100 })
	}
	return []cell{
		{f, api.VerdictOwned, ending, cut, func(x *scene) {
			r := x.receipt(x.turn.ID)
			st := stateOf(x.proc.PID)
			if r.State != api.StateAbandoned || r.Reason != api.ReasonIdle || !r.Complete || st != 0 && st != 'Z' {
				x.t.Errorf("%s for %s, complete %v", r.State, r.Reason, r.Complete)
			}
			x.wantWritten(r)
		}},
		{f, api.VerdictGone, ending, gone, func(x *scene) {
			r := x.receipt(x.turn.ID)
			if r.State != api.StateAbandoned || r.Reason != api.ReasonIdle || !r.Complete || r.SeenEmptyAt == nil {
				x.t.Errorf("%s for %s, complete %v, notes %q", r.State, r.Reason, r.Complete, r.Notes)
			}
			x.wantWritten(r)
		}},
		{f, api.VerdictForeign, ending, foreign, func(x *scene) { x.wantLost("is not it") }},
		{f, api.VerdictUnverifiable, ending, func(x *scene) { cut(x); unsure(x) }, (*scene).wantShown},
		{f, containment.OtherBoot, ending, rebooted, func(x *scene) { x.wantLost("rebooted") }},
	}
}

// over is a finished turn with a leftover.
func over(x *scene) {
	open(x)
	r, err := x.Finish(context.Background(), x.turn.ID, api.FinishRequest{})
	if err != nil || r.State != api.StateFinished || len(r.Leftovers) != 1 {
		x.t.Fatalf("%+v (%v)", r, err)
	}
}

func overCells() []cell {
	f := containment.FoundOver
	closed := func(x *scene) {
		var r api.Receipt
		eventually(x.t, "its leftovers are told gone", func() bool {
			r = x.receipt(x.turn.ID)
			return r.LeftoversEndedAt != nil
		})
		if r.State != api.StateFinished || !r.Complete {
			x.t.Errorf("%s, complete %v", r.State, r.Complete)
		}
		x.wantWritten(r)
	}
	return []cell{
		{f, api.VerdictOwned, over, nil, func(x *scene) {
			x.procLives()
			if v := x.look(x.turn.ID); v.State != api.StateFinished || v.Alive != 1 {
				x.t.Errorf("%s, alive %d", v.State, v.Alive)
			}
		}},
		{f, api.VerdictGone, over, gone, closed},
		{f, api.VerdictForeign, over, foreign, closed},
		{f, api.VerdictUnverifiable, over, unsure, func(x *scene) {
			x.procLives()
			if v := x.look(x.turn.ID); v.State != api.StateFinished || !has(v.Degraded, "unverifiable") {
				x.t.Errorf("%s, degraded %q", v.State, v.Degraded)
			}
		}},
		{f, containment.OtherBoot, over, rebooted, closed},
	}
}

// unbegun is a turn whose service is killed while it begins it.
func unbegun(x *scene) {
	armed := filepath.Join(x.dir, "armed")
	x.kill()
	x.faults = "begin.recorded=kill:" + armed
	x.start()
	if err := os.WriteFile(armed, nil, 0o600); err != nil {
		x.t.Fatal(err)
	}
	before, _ := os.ReadDir(filepath.Join(x.dir, "run", "turns"))
	if _, err := x.Begin(context.Background(), api.BeginRequest{}); err == nil {
		x.t.Fatal("it was begun")
	}
	<-x.gone
	x.Close()
	x.faults = ""
	after, _ := os.ReadDir(filepath.Join(x.dir, "run", "turns"))
	for _, e := range after {
		if !has(names(before), e.Name()) {
			x.turn.ID = e.Name()
		}
	}
	x.edit(x.turn.ID, func(r map[string]any) {
		pid, err := strconv.Atoi(fmt.Sprint(part(r, "facts", "keeper")["pid"]))
		if err != nil || part(r, "facts")["cgroup"] != nil {
			x.t.Fatalf("the record of a turn not yet begun: %v", r)
		}
		x.turn.KeeperPID = pid
	})
}

func names(all []os.DirEntry) (out []string) {
	for _, e := range all {
		out = append(out, e.Name())
	}
	return out
}

// asKeeper has the record say that another process, which it describes well, is the
// turn's keeper.
func asKeeper(x *scene, pid int) {
	h, err := pidfd.Open(pid)
	if err != nil {
		x.t.Fatal(err)
	}
	defer h.Close()
	id, err := h.Identity()
	if err != nil {
		x.t.Fatal(err)
	}
	x.edit(x.turn.ID, func(r map[string]any) { part(r, "facts")["keeper"] = id })
}

func unbegunCells() []cell {
	f := containment.FoundUnbegun
	none := func(x *scene) {
		eventually(x.t, "it is neither listed nor recorded", func() bool {
			_, err := x.Turn(context.Background(), x.turn.ID)
			return err != nil && !exists(filepath.Dir(x.recordPath(x.turn.ID)))
		})
	}
	keeper := func(key string, value any) func(*scene) {
		return func(x *scene) {
			x.edit(x.turn.ID, func(r map[string]any) { part(r, "facts", "keeper")[key] = value })
		}
	}
	return []cell{
		{f, api.VerdictOwned, unbegun, nil, func(x *scene) {
			none(x)
			eventually(x.t, "its keeper has gone", func() bool { s := stateOf(x.turn.KeeperPID); return s == 0 || s == 'Z' })
		}},
		{f, api.VerdictGone, unbegun, endKeeper, none},
		{f, api.VerdictForeign, unbegun, func(x *scene) { endKeeper(x); asKeeper(x, x.canary.pid()) }, none},
		{f, api.VerdictUnverifiable, unbegun, func(x *scene) { keeper("pid_ns", 1)(x); keeper("pidfs_ino", 0)(x); mute(x) }, func(x *scene) {
			if e := x.entry(x.turn.ID); e.Standing != api.StandingUnverified {
				x.t.Errorf("it is told as %+v", e)
			}
			x.kill()
			endKeeper(x)
			if err := os.RemoveAll(filepath.Dir(x.recordPath(x.turn.ID))); err != nil {
				x.t.Fatal(err)
			}
			x.start()
		}},
		{f, containment.OtherBoot, unbegun, func(x *scene) {
			endKeeper(x)
			keeper("pid", x.canary.pid())(x)
			x.edit(x.turn.ID, func(r map[string]any) { r["boot"] = "another" })
		}, none},
	}
}
