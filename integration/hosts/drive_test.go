package hosts

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/client"
	"pinfold.dev/integration/guard"
)

// long bounds every wait, longer all that there is on a stage.
const (
	long   = 60 * time.Second
	longer = 5 * time.Minute
)

// outcome is what was seen on a stage.
type outcome struct {
	Refused string // what the service said that did not start
	Grade   api.Grade
	Claims  []string // what a turn says that it lacks
	Checks  []api.HostCheck
	Log     string
	Trials  []trial
}

// trial is one turn with processes that try to get away, and its ending.
type trial struct {
	Name        string
	State       api.State
	Complete    bool
	Mechanism   string
	Unconfirmed string
	Shown       bool // it cannot be verified, so it is kept, shown, and nothing is signalled
	Survivors   int
	Alive       []string // beats that went on after the receipt
	Statuses    []string
	Problems    []string // what must not be
	Notes       []string
}

// drive is the service on a stage.
type drive struct {
	stage
	client.Client
	cmd    *exec.Cmd
	canary *exec.Cmd
	n      int
	grade  api.Grade
	gone   chan struct{} // closed once the service was reaped
}

func (d *drive) all() (out outcome) {
	for _, sub := range []string{"run", "state", "beats"} {
		check(os.Mkdir(d.path(sub), 0o755))
	}
	d.Socket = d.path("sock")
	d.canary = d.helper("beat", d.path("beats/canary"))
	check(d.canary.Start())
	if err := d.start(); err != nil {
		return outcome{Refused: err.Error() + "\n" + d.log()}
	}
	ctx, cancel := context.WithTimeout(context.Background(), longer)
	defer cancel()
	h := must(d.Host(ctx))
	out.Grade, out.Checks = h.Grade, h.Checks
	d.grade = h.Grade
	for _, t := range []struct {
		name string
		do   func(api.Turn)
	}{
		{"abandoned", func(api.Turn) {}},
		{"service killed", func(api.Turn) { d.kill(); d.mustStart() }},
		{"keeper killed", func(v api.Turn) { d.killKeeper(v, true) }},
		{"both killed", func(v api.Turn) { d.kill(); d.killKeeper(v, false); d.mustStart() }},
	} {
		one, v := d.try(ctx, t.name, t.do)
		out.Trials = append(out.Trials, one)
		out.Claims = v.Degraded
	}
	if d.Storm {
		one := d.storm(ctx)
		for range 2 { // an ending that says that it cannot know may have ended all: that shows nothing
			if len(one.Problems) > 0 || one.Complete || len(one.Alive) > 0 {
				break
			}
			one = d.storm(ctx)
		}
		if len(one.Problems) == 0 && !one.Complete && len(one.Alive) == 0 {
			one.Problems = append(one.Problems, "each time it is unconfirmed, and nothing beats on")
		}
		out.Trials = append(out.Trials, one)
	}
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	<-d.gone
	out.Log = d.log()
	return out
}

// bound is how long an ending may take: what is seen at once where the host shows it
// is not to depend on how busy that is. Where it does not show it, all of the time is
// waited for.
func (d *drive) bound() string {
	if d.Proc == "none" || d.Proc == "other" || d.Proc == "subset=pid" {
		return "4s"
	}
	return "20s"
}

// start starts the service and waits until it answers.
func (d *drive) start() error {
	log, err := os.OpenFile(d.path("log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	before, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	d.cmd = exec.Command(d.Bin+"/pinfold", append([]string{"serve", "--socket", d.Socket, "--runtime-dir", d.path("run"), "--state-dir", d.path("state"),
		"--init", d.Bin + "/pinfold-init", "--bound", d.bound(), "--log-level", "debug"}, d.Serve...)...)
	d.cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	d.cmd.Dir, d.cmd.Stdout, d.cmd.Stderr = "/", log, log
	if err := d.cmd.Start(); err != nil {
		return err
	}
	cmd, gone := d.cmd, make(chan error, 1)
	d.gone = make(chan struct{})
	over := d.gone
	go func() { gone <- cmd.Wait(); close(over) }()
	for end := time.Now().Add(long); ; time.Sleep(5 * time.Millisecond) {
		_, err := d.Turns(context.Background(), false, "")
		if err == nil && d.answered(before) {
			return nil
		}
		select {
		case werr := <-gone:
			return fmt.Errorf("it ended: %v", werr)
		default:
		}
		if time.Now().After(end) {
			return err
		}
	}
}

// answered tells that all those keepers have answered that the service has not waited
// for when it started.
func (d *drive) answered(before int64) bool {
	b, _ := os.ReadFile(d.path("log"))
	return len(guard.Unanswered(string(b[min(before, int64(len(b))):]))) == 0
}

// whoHas tells which processes have a file open.
func whoHas(path string) (out []string) {
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && to == path {
			line, _ := os.ReadFile(strings.Split(l, "/fd/")[0] + "/cmdline")
			stat, _ := os.ReadFile(strings.Split(l, "/fd/")[0] + "/stat")
			out = append(out, fmt.Sprintf("%s %q %s", l, line, stat))
		}
	}
	return out
}

func (d *drive) mustStart() {
	if err := d.start(); err != nil {
		check(fmt.Errorf("%w\n%s\n%s", err, d.log(), whoHas(d.path("run/lock"))))
	}
}

func (d *drive) log() string {
	b, _ := os.ReadFile(d.path("log"))
	if len(b) > 20000 {
		b = b[len(b)-20000:]
	}
	return string(b)
}

// kill ends the service as a crash does, and waits until it is gone.
func (d *drive) kill() {
	check(d.cmd.Process.Kill())
	d.Close()
	<-d.gone
}

// killKeeper kills a turn's keeper; told waits until the service knows.
func (d *drive) killKeeper(v api.Turn, told bool) {
	check(syscall.Kill(v.KeeperPID, syscall.SIGKILL))
	for end := time.Now().Add(long); told && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		now, err := d.Turn(context.Background(), v.ID)
		if err != nil || slices.ContainsFunc(now.Degraded, func(s string) bool { return strings.Contains(s, "keeper is gone") }) {
			return
		}
		w, err := d.Why(context.Background(), v.ID)
		if err == nil && slices.ContainsFunc(w.Because, func(s string) bool { return strings.Contains(s, "keeper is gone") }) {
			return
		}
	}
}

// escapees are what a turn runs: each beats, and those that lose their parents do
// before the turn is ended.
var escapees = [][]string{{"beat"}, {"setsid"}, {"daemon"}, {"regroup"}, {"termproof"}}

// try is a whole turn; do is what happens to it before it is abandoned.
func (d *drive) try(ctx context.Context, name string, do func(api.Turn)) (out trial, v api.Turn) {
	out.Name = name
	wrong := func(format string, args ...any) { out.Problems = append(out.Problems, fmt.Sprintf(format, args...)) }
	d.n++
	dir := d.path(fmt.Sprintf("beats/%d", d.n))
	check(os.Mkdir(dir, 0o755))
	v, err := d.Begin(ctx, api.BeginRequest{Label: name})
	if err != nil {
		wrong("begin: %v", err)
		return out, v
	}
	for _, e := range escapees {
		cmd := d.helper(e[0], filepath.Join(dir, e[0]), filepath.Join(dir, e[0]+".child"))
		if _, err := d.Launch(ctx, v.ID, api.LaunchRequest{Argv: cmd.Args, Env: cmd.Env, Cwd: "/"}); err != nil {
			wrong("launch %s: %v", e[0], err)
			return out, v
		}
	}
	beats := []string{"beat", "setsid", "setsid.child", "daemon.child", "regroup", "regroup.child", "termproof"}
	for _, b := range beats {
		if !await(func() bool { return size(filepath.Join(dir, b)) > 0 }) {
			wrong("%s does not beat", b)
		}
	}
	if tree, err := d.Tree(ctx, v.ID); err != nil {
		wrong("tree: %v", err)
	} else {
		for i, id := range []string{"p1", "p2", "p4", "p5"} { // p3 has gone
			if !slices.ContainsFunc(tree.Members, func(m api.Member) bool { return m.Process == id && m.PID > 0 }) {
				wrong("the tree does not have %s, which is %s: %+v", id, []string{"beat", "setsid", "regroup", "termproof"}[i], tree.Members)
			}
		}
	}
	do(v)
	grace := int64(50)
	r, err := d.Abandon(ctx, v.ID, api.AbandonRequest{GraceMS: &grace})
	if err != nil {
		now, terr := d.Turn(ctx, v.ID)
		unverifiable := func(s string) bool { return strings.HasPrefix(s, "unverifiable") }
		if out.Shown = terr == nil && slices.ContainsFunc(now.Degraded, unverifiable); !out.Shown {
			wrong("abandon: %v", err)
		}
	}
	d.judge(&out, r, dir, beats)
	return out, v
}

// storm is a turn whose processes each start the next and go: who is looked at has
// gone by then. There are few at a time, and it ends by itself.
func (d *drive) storm(ctx context.Context) (out trial) {
	out.Name = "storm of forks"
	wrong := func(format string, args ...any) { out.Problems = append(out.Problems, fmt.Sprintf(format, args...)) }
	v, err := d.Begin(ctx, api.BeginRequest{Label: out.Name})
	if err != nil {
		wrong("begin: %v", err)
		return out
	}
	file := d.path("beats/storm")
	_ = os.Remove(file)
	script := `next() { echo . >> ` + file + `; [ $1 -gt 0 ] && next $(($1 - 1)) & }
for i in 1 2 3 4 5 6 7 8; do next 2000; done; sleep 100`
	if _, err := d.Launch(ctx, v.ID, api.LaunchRequest{Argv: []string{"/bin/sh", "-c", script}, Cwd: "/", Env: []string{"PATH=/usr/bin:/bin"}}); err != nil {
		wrong("launch: %v", err)
		return out
	}
	if !await(func() bool { return size(file) > 200 }) {
		wrong("there is no storm")
	}
	now := int64(0)
	began := time.Now()
	r, err := d.Abandon(ctx, v.ID, api.AbandonRequest{GraceMS: &now})
	if err != nil {
		wrong("abandon: %v", err)
	}
	out.State, out.Complete, out.Mechanism, out.Unconfirmed = r.State, r.Complete, r.Mechanism, r.Unconfirmed
	out.Survivors, out.Notes = len(r.Survivors), append(r.Notes, fmt.Sprintf("it took %v, %d rounds", time.Since(began), r.Rounds))
	before, canary := size(file), size(d.path("beats/canary"))
	if !await(func() bool { return size(d.path("beats/canary")) > canary+10 }) {
		wrong("the canary is dead")
	}
	if size(file) != before {
		out.Alive = []string{"storm"}
	}
	if r.Complete && len(out.Alive) > 0 || !r.Complete && r.Unconfirmed == "" {
		wrong("complete is %v, unconfirmed %q, and beats on: %v", r.Complete, r.Unconfirmed, out.Alive)
	}
	return out
}

// judge compares a receipt with what beats on.
func (d *drive) judge(out *trial, r api.Receipt, dir string, beats []string) {
	wrong := func(format string, args ...any) { out.Problems = append(out.Problems, fmt.Sprintf(format, args...)) }
	out.State, out.Complete, out.Mechanism, out.Unconfirmed = r.State, r.Complete, r.Mechanism, r.Unconfirmed
	out.Survivors, out.Notes = len(r.Survivors), r.Notes
	before := map[string]int64{}
	for _, b := range beats {
		before[b] = size(filepath.Join(dir, b))
	}
	canary := size(d.path("beats/canary"))
	if !await(func() bool { return size(d.path("beats/canary")) > canary+10 }) {
		wrong("the canary is dead")
	}
	for _, b := range beats {
		if size(filepath.Join(dir, b)) != before[b] {
			out.Alive = append(out.Alive, b)
		}
	}
	if out.Shown {
		for _, b := range beats {
			if d.grade != api.GradePIDNS && !await(func() bool { return size(filepath.Join(dir, b)) > before[b] }) {
				wrong("nothing may be signalled, and %s does not beat on", b)
			}
		}
		return
	}
	if r.Complete && len(out.Alive) > 0 {
		wrong("the receipt is complete, and %v beat on", out.Alive)
	}
	if !r.Complete && r.Unconfirmed == "" && len(r.Survivors) == 0 && (r.State != api.StateLost || len(r.Notes) == 0) {
		wrong("the receipt is not complete, and does not say why")
	}
	for _, p := range r.Processes {
		out.Statuses = append(out.Statuses, fmt.Sprintf("%s %s %s", p.ID, p.Status.State, p.Verdict))
		name := escapees[int(p.ID[1]-'1')][0]
		if p.Verdict == api.VerdictGone && slices.Contains(out.Alive, name) {
			wrong("%s is said to be gone, and beats on", name)
		}
	}
	if len(r.Processes) != len(escapees) {
		wrong("the receipt has %d of %d processes", len(r.Processes), len(escapees))
	}
}

func size(path string) int64 {
	fi, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return fi.Size()
}

func await(cond func() bool) bool {
	for end := time.Now().Add(long); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if cond() {
			return true
		}
	}
	return false
}
