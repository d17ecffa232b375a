package crash

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"pinfold.dev/api"
)

// startsOf counts how often a payload has begun to run.
func (l *life) startsOf(p *payload) int {
	b, _ := os.ReadFile(p.starts)
	return bytes.Count(b, []byte("start\n"))
}

// statusIs checks an end: the code, or lost where a keeper took it along. None
// is ever made up.
func (l *life) statusIs(p *payload, s api.Status) {
	l.t.Helper()
	ok := false
	switch s.State {
	case api.ProcessExited:
		ok = s.Code == p.code
	case api.ProcessSignaled: // those that run are ended by us, or find that who took their output, or held their terminal, is gone
		ok = p.code < 0 && (s.Signal == "SIGKILL" || s.Signal == "SIGTERM") || l.keeperLost() && (s.Signal == "SIGPIPE" || s.Signal == "SIGHUP")
	case api.ProcessLost:
		ok = l.keeperLost() && s.Why != ""
	}
	if !ok {
		l.t.Errorf("%s ended with %+v, it was to exit with %d (%s)", p.key, s, p.code, l.describe())
	}
}

// bearer is a live process with the life's token.
type bearer struct {
	pid    int
	cgroup string
	cmd    string
}

func (b bearer) String() string { return fmt.Sprintf("%d (%s) in %s", b.pid, b.cmd, b.cgroup) }

// bearers are the live processes that bear the life's token.
func (l *life) bearers() (all []bearer) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		l.t.Fatal(err)
	}
	for _, d := range dirs {
		env, err := os.ReadFile(d + "/environ")
		if err != nil || !slices.Contains(strings.Split(string(env), "\x00"), l.token) {
			continue
		}
		in, err := os.ReadFile(d + "/cgroup")
		if err != nil {
			continue
		}
		cmd, _ := os.ReadFile(d + "/cmdline")
		pid, _ := strconv.Atoi(filepath.Base(d))
		for line := range strings.Lines(string(in)) {
			if path, ok := strings.CutPrefix(line, "0::"); ok {
				all = append(all, bearer{pid, strings.TrimSpace(path), string(bytes.ReplaceAll(cmd, []byte{0}, []byte{' '}))})
			}
		}
	}
	return all
}

// recorded checks that nothing runs that the service does not list: each bearer
// of the token is in the leaf of a listed process of a turn that is not over, or
// is a listed process that has left its turn's cgroup.
func (l *life) recorded() {
	l.t.Helper()
	var bad string
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		list, err := l.Turns(ctx, false, "")
		cancel()
		if err != nil {
			return // it died again: whoever calls next sees to it
		}
		if bad = l.unrecorded(list.Turns); bad == "" {
			return
		}
		if time.Now().After(end) {
			l.t.Errorf("%s (%s)", bad, l.describe())
			return
		}
	}
}

func (l *life) unrecorded(turns []api.Turn) string {
	for _, b := range l.bearers() {
		known := l.plan.bare != "" && l.listedBare(b, turns)
		for _, v := range turns {
			if l.plan.bare != "" {
				break
			}
			rel, inside := strings.CutPrefix(b.cgroup, strings.TrimPrefix(v.Cgroup, filepath.Dir(run.cgroup)))
			for _, p := range v.Processes {
				leaf := strings.HasPrefix(rel+"/", "/work/"+p.ID+"/") || strings.HasPrefix(rel+"/", "/jobs/"+p.ID+"/")
				known = known || inside && leaf || p.PID == b.pid && p.Status.State == api.ProcessRunning
			}
			known = known || inside && rel == "/beside"
		}
		if !known {
			return "runs and is not listed: " + b.String()
		}
	}
	return ""
}

// over checks the turn after its end: all that it had is gone, all that is told
// of it is true.
func (l *life) over(r api.Receipt) {
	t := l.t
	t.Helper()
	if l.plan.bare != "" {
		l.overBare(r)
	} else if !r.Complete && r.State != api.StateLost {
		t.Errorf("the receipt is not complete: %+v (%s)", r, l.describe())
	}
	eventually(t, "nothing of the turn runs", func() bool { return len(l.bearers()) == 0 })
	eventually(t, "the turn's cgroup is gone: "+l.turn.Cgroup, func() bool { return !exists(l.turn.Cgroup) })
	eventually(t, "the turn's directory is gone", func() bool { return !exists(l.dir + "/run/turns/" + l.turn.ID) })
	listed := map[string]api.ReceiptProcess{}
	for _, p := range r.Processes {
		listed[p.ID] = p
	}
	for _, key := range l.order {
		p := l.procs[key]
		n := l.startsOf(p)
		if n > 1 && p.cmd == nil {
			t.Errorf("%s started %d times for one key (%s)", key, n, l.describe())
		}
		rp, ok := listed[p.id]
		switch {
		case p.id == "":
		case !ok:
			t.Errorf("%s was %s, the receipt does not tell of it (%s)", key, p.id, l.describe())
		default:
			l.statusIs(p, rp.Status)
			if n != 1 && !l.keeperLost() {
				t.Errorf("%s started %d times (%s)", key, n, l.describe())
			}
		}
		if p.output != "" && p.id != "" {
			l.read(p)
		}
	}
	l.others()
}

// others checks that nobody else was touched.
func (l *life) others() {
	t := l.t
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := run.canary.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the canary: %v", err)
	}
	v, err := l.Process(ctx, l.neighbour.ID, l.beside.ID)
	if err != nil || v.Status.State != api.ProcessRunning || v.PID != l.beside.PID || v.Identity.Ino != l.beside.Identity.Ino {
		t.Errorf("the neighbour's process is %+v, %v; it was %+v (%s)", v, err, l.beside, l.describe())
	}
	if l.plan.bare != "" {
		if up := above(l.beside.PID); !slices.Contains(up, l.neighbour.KeeperPID) {
			t.Errorf("above the neighbour's process is %v, and not its keeper %d (%s)", up, l.neighbour.KeeperPID, l.describe())
		}
		return
	}
	in, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", l.beside.PID))
	if err != nil || !strings.Contains(string(in), l.neighbour.ID) {
		t.Errorf("the neighbour's process runs in %q, %v (%s)", in, err, l.describe())
	}
}

// stop ends the neighbour and the service, and looks for what is left.
func (l *life) stop() {
	t := l.t
	t.Helper()
	if l.plan.mode == gone { // nobody has heard of what was begun for a client that had left
		l.must("look for turns", func(ctx context.Context) error {
			more, err := l.labelled(ctx, l.turn.Label)
			for _, v := range more {
				if _, err := l.Abandon(ctx, v.ID, api.AbandonRequest{}); err != nil {
					return err
				}
			}
			return err
		})
	}
	l.must("abandon the neighbour", func(ctx context.Context) error {
		_, err := l.Abandon(ctx, l.neighbour.ID, api.AbandonRequest{})
		return err
	})
	eventually(t, "the service has as many descriptors as before", func() bool {
		return l.crashes.Load() > 0 || l.openFDs() <= l.fds
	})
	eventually(t, "no directory of a turn is left", func() bool {
		left, err := os.ReadDir(l.dir + "/run/turns")
		return err == nil && len(left) == 0
	})
	l.Close()
	p := l.service()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.gone:
		if !p.cmd.ProcessState.Success() {
			t.Errorf("the service, stopped, ended with %v (%s)", p.cmd.ProcessState, l.describe())
		}
	case <-time.After(60 * time.Second):
		t.Errorf("the service does not stop (%s)", l.describe())
	}
	for _, d := range []string{l.parent, l.out} {
		_ = filepath.WalkDir(d, func(path string, e os.DirEntry, err error) error {
			if rel, rerr := filepath.Rel(d, path); err == nil && rerr == nil && e.IsDir() && strings.Contains(rel, "/") {
				t.Errorf("the cgroup %s is left behind (%s)", path, l.describe())
			}
			return nil
		})
	}
}

// openFDs counts the service's descriptors.
func (l *life) openFDs() int {
	list, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", l.service().cmd.Process.Pid))
	return len(list)
}
