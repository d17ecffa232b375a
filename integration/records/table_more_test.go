package records

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/client"
	"pinfold.dev/containment"
	"pinfold.dev/pidfd"
)

// reasonable is long enough for an ending that is refused, or goes on.
const reasonable = 3 * time.Second

// endKeeper kills the turn's keeper.
func endKeeper(x *scene) {
	x.t.Helper()
	h, err := pidfd.Open(x.turn.KeeperPID)
	if err != nil {
		return // it has gone by itself
	}
	defer h.Close()
	b, err := os.ReadFile("/proc/" + num(x.turn.KeeperPID) + "/comm")
	if err == nil && !has([]string{string(b)}, "pinfold-init") {
		x.t.Fatalf("process %d is no keeper: %q", x.turn.KeeperPID, b)
	}
	if err == nil {
		err = h.Signal(syscall.SIGKILL)
	}
	if over, _ := h.Exited(); err != nil && !over { // else it has gone by itself just now
		x.t.Fatal(err)
	}
	if err := h.Wait(context.Background()); err != nil {
		x.t.Fatal(err)
	}
}

func num(n int) string { b, _ := json.Marshal(n); return string(b) }

// job is an open turn with a promoted job, which ends with 7 when it is told to.
func job(x *scene) {
	x.turn = x.begin(api.BeginRequest{})
	x.exits(x.turn.ID, "exit 5")
	x.proc = x.launch(x.turn.ID, "while [ ! -e "+x.dir+"/go ]; do sleep 0.02; done; exit 7")
	if _, err := x.Promote(context.Background(), x.turn.ID, x.proc.ID, api.PromoteRequest{Name: "the job"}); err != nil {
		x.t.Fatal(err)
	}
}

// jobEnds has the job end by itself while there is no service.
func jobEnds(x *scene) {
	if err := os.WriteFile(x.dir+"/go", nil, 0o600); err != nil {
		x.t.Fatal(err)
	}
	eventually(x.t, "the job has ended, and its keeper has written that down", func() bool {
		b, _ := os.ReadFile(filepath.Join(x.dir, "run", "turns", x.turn.ID, "journal.jsonl"))
		return stateOf(x.proc.PID) == 0 && has([]string{string(b)}, `"code":7`)
	})
}

// jobNow is the job, and what was told of it.
func (x *scene) jobNow() (j api.Job, told []string) {
	x.t.Helper()
	id := x.turn.ID + "-" + x.proc.ID
	j, err := x.Job(context.Background(), id)
	if err != nil {
		x.t.Fatal(err)
	}
	ev, err := x.Events(context.Background(), client.EventQuery{Turn: x.turn.ID})
	if err != nil {
		x.t.Fatal(err)
	}
	defer ev.Close()
	for {
		e, err := ev.Next()
		if err != nil {
			return j, told
		}
		if e.Kind == api.EventJob {
			told = append(told, e.Message)
		}
	}
}

func jobCells() []cell {
	f := containment.FoundJob
	ended := func(state api.ProcessState, code int) func(x *scene) {
		return func(x *scene) {
			var j api.Job
			var told []string
			eventually(x.t, "the job has ended, and that is told", func() bool { // on a busy disk later
				j, told = x.jobNow()
				return j.State == api.JobEnded && has(told, "ended")
			})
			if j.Status.State != state || j.Status.Code != code {
				x.t.Errorf("%+v, told %q, notes %q", j.Status, told, j.Notes)
			}
		}
	}
	return []cell{
		{f, api.VerdictOwned, job, nil, func(x *scene) {
			if j, _ := x.jobNow(); j.State != api.JobRunning {
				x.t.Errorf("it is %s", j.State)
			}
			x.procLives()
			jobEnds(x)
			ended(api.ProcessExited, 7)(x)
		}},
		{f, api.VerdictGone, job, jobEnds, ended(api.ProcessExited, 7)},
		{f, api.VerdictForeign, job, func(x *scene) { jobEnds(x); foreign(x) }, ended(api.ProcessExited, 7)},
		{f, api.VerdictUnverifiable, job, unsure, func(x *scene) {
			x.procLives()
			var j api.Job
			eventually(x.t, "that is told", func() bool {
				var told []string
				j, told = x.jobNow()
				return has(told, "unverifiable")
			})
			if j.State == api.JobEnded || !has(j.Notes, "unverifiable") {
				x.t.Errorf("it is %s, notes %q", j.State, j.Notes)
			}
		}},
		{f, containment.OtherBoot, job, func(x *scene) { jobEnds(x); rebooted(x) }, ended(api.ProcessExited, 7)},
	}
}

// takenOver makes a recorded process one that has gone, and whose number the canary
// has now.
func takenOver(x *scene, id map[string]any) {
	id["pid"], id["pidfs_ino"] = x.canary.pid(), 1
}

// ofElsewhere makes a recorded process one of another PID namespace, on a kernel
// without pidfs: an inode alone would tell who it is.
func ofElsewhere(_ *scene, id map[string]any) { id["pid_ns"], id["pidfs_ino"] = 1, 0 }

// mute takes the keeper's socket away: at that it would answer for itself.
func mute(x *scene) {
	err := os.Remove(filepath.Join(filepath.Dir(x.recordPath(x.turn.ID)), "keeper.sock"))
	if err != nil && !errors.Is(err, os.ErrNotExist) { // a keeper that nobody has claimed takes it along after five seconds
		x.t.Fatal(err)
	}
}

func keeperCells() []cell {
	f := containment.FoundKeeper
	without := func(x *scene) {
		x.procLives()
		if v := x.look(x.turn.ID); v.State != api.StateOpen || v.Alive != 1 || !has(v.Degraded, "keeper is gone") || v.Processes[0].Status.Code != 5 {
			x.t.Errorf("%s, alive %d, degraded %q", v.State, v.Alive, v.Degraded)
		}
		r, err := x.Abandon(context.Background(), x.turn.ID, api.AbandonRequest{GraceMS: new(int64(0))})
		if s := stateOf(x.proc.PID); err != nil || !r.Complete || s != 0 && s != 'Z' {
			x.t.Errorf("complete %v (%v)", r.Complete, err)
		}
		x.wantWritten(r)
	}
	keeper := func(change func(x *scene, id map[string]any)) func(*scene) {
		return func(x *scene) {
			x.edit(x.turn.ID, func(r map[string]any) { change(x, part(r, "facts", "keeper")) })
		}
	}
	return []cell{
		{f, api.VerdictOwned, open, nil, func(x *scene) { x.exits(x.turn.ID, "exit 0") }},
		{f, api.VerdictGone, open, endKeeper, without},
		{f, api.VerdictForeign, open, keeper(takenOver), without},
		{f, api.VerdictUnverifiable, open, func(x *scene) { keeper(ofElsewhere)(x); mute(x) }, without},
	}
}

func clientCells() []cell {
	f := containment.FoundClient
	bound := func(x *scene) { // this process is the client
		x.turn = x.begin(api.BeginRequest{Client: api.Client{Bind: api.BindProcess}})
		x.exits(x.turn.ID, "exit 5")
		x.proc = x.launch(x.turn.ID, "exec sleep 100000")
	}
	who := func(change func(x *scene, id map[string]any)) func(*scene) {
		return func(x *scene) {
			x.edit(x.turn.ID, func(r map[string]any) { change(x, part(r, "client")) })
		}
	}
	abandoned := func(x *scene) {
		r := x.receipt(x.turn.ID)
		if r.State != api.StateAbandoned || r.Reason != api.ReasonClientGone || !r.Complete {
			x.t.Errorf("%s for %s, complete %v", r.State, r.Reason, r.Complete)
		}
		x.wantWritten(r)
	}
	goesOn := func(x *scene) {
		time.Sleep(patience(300 * time.Millisecond))
		x.procLives()
		if v := x.look(x.turn.ID); v.State != api.StateOpen {
			x.t.Errorf("it is %s", v.State)
		}
	}
	dead := func(x *scene) any { // of a process that has just ended
		c := exec.Command("true")
		if err := c.Run(); err != nil {
			x.t.Fatal(err)
		}
		return c.Process.Pid
	}
	return []cell{
		{f, api.VerdictOwned, bound, nil, goesOn},
		{f, api.VerdictGone, bound, who(func(x *scene, id map[string]any) { id["pid"], id["pidfs_ino"] = dead(x), 1 }), abandoned},
		{f, api.VerdictForeign, bound, who(takenOver), abandoned},
		{f, api.VerdictUnverifiable, bound, who(ofElsewhere), func(x *scene) {
			goesOn(x)
			if v := x.look(x.turn.ID); !has(v.Degraded, "cannot be verified") {
				x.t.Errorf("degraded %q", v.Degraded)
			}
		}},
	}
}

// stray is a cgroup of a turn's name that bears the mark, if any.
func stray(x *scene, mark string) (dir string) {
	x.t.Helper()
	own, err := filepath.Glob(x.parent + "/pinfold-*")
	if err != nil || len(own) != 1 {
		x.t.Fatalf("our directories: %q", own)
	}
	dir = filepath.Join(own[0], "00000000deadbeef")
	if err := os.Mkdir(dir, 0o755); err != nil {
		x.t.Fatal(err)
	}
	if mark != "" {
		if err := syscall.Setxattr(dir, "trusted.pinfold", []byte(mark), 0); err != nil {
			x.t.Fatal(err)
		}
	}
	return dir
}

func strayCells() []cell {
	f := containment.FoundStray
	plain := func(x *scene) { x.turn = x.begin(api.BeginRequest{}) }
	var pid int
	var dir string
	left := func(x *scene) {
		if s := stateOf(pid); s == 0 || s == 'Z' {
			x.t.Error("who was in it is dead")
		}
		if _, err := os.Stat(dir); err != nil {
			x.t.Error(err)
		}
	}
	populated := func(mark func(x *scene) string) func(x *scene) {
		return func(x *scene) {
			dir = stray(x, mark(x))
			pid = newCanary(x.t, dir).pid()
		}
	}
	return []cell{
		{f, api.VerdictOwned, plain, func(x *scene) {
			b, err := os.ReadFile(x.dir + "/run/instance")
			if err != nil {
				x.t.Fatal(err)
			}
			dir = stray(x, string(b)+".0123")
			d, err := os.Open(dir)
			if err != nil {
				x.t.Fatal(err)
			}
			defer d.Close()
			c := exec.Command("sleep", "100000")
			c.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(d.Fd())}
			if err := c.Start(); err != nil {
				x.t.Fatal(err)
			}
			go func() { _ = c.Wait() }()
			pid = c.Process.Pid
		}, func(x *scene) {
			eventually(x.t, "it is ended", func() bool { return stateOf(pid) == 0 })
			eventually(x.t, "it is not there", func() bool { return !exists(dir) })
			eventually(x.t, "it was reported", func() bool { return has([]string{x.log()}, "ended the stray") })
		}},
		{f, api.VerdictForeign, plain, populated(func(*scene) string { return "ffffffff.0123" }), left},
		{f, api.VerdictUnverifiable, plain, populated(func(*scene) string { return "" }), left},
	}
}
