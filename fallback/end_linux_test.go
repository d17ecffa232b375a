package fallback

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys/systest"
	"pinfold.dev/pidfd"
)

// escapees is a script of everything that is known to get away from those who
// end by process group, by session or by parent.
const escapees = `
setsid sleep 1001 &
(setsid sleep 1002 & ) &
sh -c '(sleep 1003 &) ; exec sleep 1004' &
setsid sh -c 'trap "" TERM HUP INT; sleep 1005 & wait' &
setsid sh -c '(trap "" TERM; setsid sleep 1006 & sleep 1007 &)' &
sh -c 'kill -STOP $$; sleep 1008' &
env -i setsid sh -c 'exec sleep 1009 </dev/null >/dev/null 2>&1' &
sleep 1010 &
wait
exec sleep 1011
`

// storm goes on forking: each of its processes leaves another and ends.
const storm = `
f() { sleep 0.001; f & }
i=0; while [ $i -lt 15 ]; do f & i=$((i+1)); done
exec sleep 1012
`

type labResult struct {
	Result
	How   []How          // by what the processes were held
	Left  map[int]string // what of the room lives that must not
	Spare bool           // what must live, does
}

// endInLab ends a script below a keeper: args are the mode, the script and what
// else is wanted (ask, spare, brief, short, word, root).
func endInLab(l *room) (any, error) {
	mode, script, wants := l.args[0], l.args[1], l.args[2]
	canary, err := startAs(0, sleepCommand())
	if err != nil {
		return nil, err
	}
	k := rerun("keeper", script)
	in, err := k.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := k.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := k.Start(); err != nil {
		return nil, err
	}
	if err := l.untilCalm(); err != nil {
		return nil, err
	}
	if err := l.enter(mode); err != nil {
		return nil, err
	}
	root, err := l.host.Hold(k.Process.Pid)
	if err != nil {
		return nil, err
	}
	e := Ending{MaxTime: 3 * time.Minute, Root: strings.Contains(wants, "root")}
	var spared []int
	if strings.Contains(wants, "ask") {
		e.Ask, e.Grace = syscall.SIGTERM, 100*time.Millisecond
	}
	if strings.Contains(wants, "spare") { // one tree of them
		e.Spare = func(m Member) bool {
			if len(spared) == 0 && m.Comm == "sh" && m.Parent.Identity() != root.Identity() {
				spared = append(spared, m.Identity().PID)
				return true
			}
			return false
		}
	}
	if strings.Contains(wants, "brief") {
		e.MaxTime = 300 * time.Millisecond
	}
	if strings.Contains(wants, "short") { // as long as ends may take on a busy machine
		e.MaxTime = 3 * time.Second
	}
	if strings.Contains(wants, "word") {
		e.Word = keepersWord(in, out)
	}
	res := l.host.End(context.Background(), root, e)
	r, err := l.account(res, spared, canary.Process.Pid, k.Process.Pid, e.Root)
	for range 1000 { // a SIGKILL that was sent comes
		if err != nil || len(r.Left) == 0 || !strings.Contains(wants, "short") {
			break
		}
		time.Sleep(20 * time.Millisecond)
		r, err = l.account(res, spared, canary.Process.Pid, k.Process.Pid, e.Root)
	}
	return r, err
}

// untilCalm waits until a script has done its worst: the same processes are there for
// a while, and all sleep or are stopped, or there are ever more.
func (l *room) untilCalm() error {
	var before map[int]string
	for same := 0; same < 10; time.Sleep(20 * time.Millisecond) {
		m, err := l.alive()
		if err != nil || len(m) > 20 {
			return err
		}
		now, busy := map[int]string{}, false
		for pid, s := range m {
			now[pid] = s.Comm
			busy = busy || s.State != 'S' && s.State != 'T'
		}
		if same++; busy || len(m) <= 8 || !maps.Equal(now, before) {
			same = 0
		}
		before = now
	}
	return nil
}

// keepersWord asks the keeper, as the service asks its own.
func keepersWord(in io.Writer, out io.Reader) func(context.Context) ([]int, error) {
	lines := bufio.NewScanner(out)
	return func(context.Context) ([]int, error) {
		if _, err := in.Write([]byte("\n")); err != nil || !lines.Scan() {
			return nil, errors.Join(err, lines.Err(), io.ErrUnexpectedEOF)
		}
		if lines.Text() == "true" {
			return nil, nil
		}
		return []int{0}, nil // some
	}
}

// account compares an ending with what lives in the room.
func (l *room) account(res Result, spared []int, canary, keeper int, root bool) (labResult, error) {
	m, err := l.alive()
	if err != nil {
		return labResult{}, err
	}
	r := labResult{Result: res, Left: map[int]string{}, Spare: true}
	keep := []int{canary}
	if !root {
		keep = append(keep, keeper)
	}
	for _, pid := range append(slices.Clone(keep), spared...) {
		_, ok := m[pid]
		r.Spare = r.Spare && ok
	}
	for pid, s := range m {
		below := slices.Contains(spared, pid) || slices.Contains(spared, s.PPID)
		if !below && !slices.Contains(keep, pid) {
			r.Left[pid] = fmt.Sprintf("%s %c", s.Comm, s.State)
		}
	}
	how := map[How]bool{}
	for _, f := range res.Processes {
		if f.Verdict == api.VerdictOwned {
			how[f.How] = true
		}
	}
	r.How = slices.Sorted(maps.Keys(how))
	r.Processes = slices.DeleteFunc(r.Processes, func(f Finding) bool { return f.Verdict == api.VerdictOwned && len(r.Processes) > 100 })
	return r, nil
}

// TestEscapees: whatever they do, they are ended, by pidfds and without, with
// children files, by scanning and without any /proc; a canary and what is spared
// live.
func TestEscapees(t *testing.T) {
	suite.Command(t, "keeper") // which the labs start
	for _, test := range []struct {
		mode, wants string
		how         How
		outcome     Outcome
	}{
		{"all", "", ByPidfd, Dead},
		{"all", "ask root", ByPidfd, Dead},
		{"all", "spare", ByPidfd, Dead},
		{"old", "", ByPidfd, Dead},
		{"hidepid", "", ByPidfd, Dead},
		{"no open", "", ByProcDir, Dead},
		{"no open EPERM", "", ByProcDir, Dead},
		{"no send", "", ByToken, Dead},
		{"no pidfd", "ask", ByToken, Dead},
		{"no pidfd EPERM", "spare", ByToken, Dead},
		{"no proc", "word", ByPidfd, Dead},
		{"foreign proc", "word root", ByPidfd, Dead},
		// Nobody says that there is no child left: that is not taken for granted.
		{"no children", "short", ByPidfd, Unconfirmed},
		{"no children", "word", ByPidfd, Dead},
	} {
		t.Run(test.mode+" "+test.wants, func(t *testing.T) {
			t.Parallel()
			canSeeParents(t, test.mode)
			var r labResult
			inRoom(t, &r, test.mode, "end", test.mode, escapees, test.wants)
			if r.Outcome != test.outcome || len(r.Left) > 0 || !r.Spare {
				t.Errorf("%s; %v; left %v; what must live does: %v", r.Result, r.Evidence, r.Left, r.Spare)
			}
			if !slices.Equal(r.How, []How{test.how}) {
				t.Errorf("held by %q, want %s", r.How, test.how)
			}
			if len(r.Processes) < 8 {
				t.Errorf("only %d processes are accounted for", len(r.Processes))
			}
		})
	}
}

// TestStorm: what forks on and on while it is ended, ends, or is told to be
// unconfirmed; it never reads dead while one of it lives.
func TestStorm(t *testing.T) {
	for _, mode := range []string{"all", "no pidfd", "no proc"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			canSeeParents(t, mode)
			var r labResult
			inRoom(t, &r, mode, "end", mode, storm, "word")
			t.Logf("%s: %d left", r.Result, len(r.Left))
			if !r.Spare {
				t.Error("the canary was hit")
			}
			if r.Outcome == Dead && len(r.Left) > 0 {
				t.Errorf("dead, and there live %v", r.Left)
			}
			if r.Outcome != Dead {
				t.Errorf("not ended in a minute: %v", r.Evidence)
			}
		})
	}
}

// canSeeParents skips what needs parents without /proc.
func canSeeParents(t *testing.T, mode string) {
	if strings.HasSuffix(mode, "proc") && !newKernel().info {
		systest.Feature(t, "PIDFD_GET_INFO", "6.13", pidfd.ErrNotSupported)
	}
}

// TestNotPermitted: who may not be signalled is named, as owned and alive; over is
// what is seen, not what was tried.
func TestNotPermitted(t *testing.T) {
	t.Parallel()
	var r labResult
	inRoom(t, &r, "user", "end", "user", escapees, "brief")
	if r.Outcome != Unconfirmed || !r.Spare || len(r.Survivors) < 8 || len(r.Left) != len(r.Survivors) {
		t.Errorf("%s: %d survivors, %d left, %v", r.Result, len(r.Survivors), len(r.Left), r.Evidence)
	}
	for _, f := range r.Processes {
		if f.Verdict != api.VerdictOwned || f.Ended || len(f.Signals) > 0 || !strings.Contains(strings.Join(f.Evidence, " "), "not permitted") {
			t.Errorf("%+v", f)
		}
	}
	for _, s := range r.Survivors {
		if s.Comm == "" || s.State == "?" {
			t.Errorf("%+v", s)
		}
	}
}
