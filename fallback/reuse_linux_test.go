package fallback

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys"
	"pinfold.dev/internal/sys/systest"
	"pinfold.dev/pidfd"
)

// recycled is what was said of numbers that had been handed out again.
type recycled struct {
	Rounds   int
	SameTick int // the two began within the same tick
	Wrong    []string
}

func (r *recycled) check(ok bool, format string, args ...any) {
	if !ok && len(r.Wrong) < 10 {
		r.Wrong = append(r.Wrong, fmt.Sprintf(format, args...))
	}
}

// reuseInLab records a process, ends it, and has its number handed out again in
// each way there is; args[1] is how often, args[2] two cgroups to be in.
func reuseInLab(l *room) (any, error) {
	n, err := strconv.Atoi(l.args[1])
	if err != nil {
		return nil, err
	}
	if err := l.enter(l.args[0]); err != nil {
		return nil, err
	}
	var r recycled
	for ; r.Rounds < n && len(r.Wrong) == 0; r.Rounds++ {
		for _, as := range []func(*room, *recycled) error{asProcess, asThread, asZombie, asLeader, amidEscalation} {
			if err := as(l, &r); err != nil {
				return r, err
			}
		}
		if l.args[2] != "" {
			if err := inAnotherCgroup(l, &r, strings.Split(l.args[2], ":")); err != nil {
				return r, err
			}
		}
	}
	return r, nil
}

// record starts a process, records it, and ends it.
func (l *room) record(cmd *exec.Cmd) (api.Identity, error) {
	if _, err := startAs(0, cmd); err != nil {
		return api.Identity{}, err
	}
	p, err := l.host.Hold(cmd.Process.Pid)
	if err != nil {
		return api.Identity{}, err
	}
	defer p.Close()
	end(cmd)
	if v, why := p.Verify(); v != api.VerdictGone {
		return p.Identity(), fmt.Errorf("ended and reaped: %s, %q", v, why)
	}
	return p.Identity(), nil
}

// stranger tries to end the recorded process whose number another has, which is
// told apart by its inode, or else by its start tick. Where both began in one tick
// and no inode is to be had, nothing tells them apart: then that is what is said.
func (l *room) stranger(r *recycled, what string, rec api.Identity, cmd *exec.Cmd, want api.Verdict) {
	p, v, why := l.host.Recall(rec)
	var now api.Identity
	if other, err := l.host.Hold(rec.PID); err == nil {
		now = other.Identity()
		other.Close()
	}
	if same := now.StartTicks == rec.StartTicks; same {
		r.SameTick++
		if rec.Ino == 0 && v == api.VerdictOwned {
			p.Close()
			return
		}
	}
	r.check(v == want && p == nil, "%s: %s, want %s, %q", what, v, want, why)
	if p != nil {
		v, why, err := p.Signal(syscall.SIGKILL)
		r.check(false, "%s: signalled: %s, %q, %v", what, v, why, err)
		p.Close()
	}
	if cmd != nil {
		var st syscall.WaitStatus
		pid, err := syscall.Wait4(cmd.Process.Pid, &st, syscall.WNOHANG, nil)
		r.check(pid == 0 && err == nil, "%s: it was hit: %d %v %#x", what, pid, err, st)
	}
}

func asProcess(l *room, r *recycled) error {
	rec, err := l.record(sleepCommand())
	if err != nil {
		return err
	}
	p, v, why := l.host.Recall(rec)
	r.check(v == api.VerdictGone && p == nil, "free number: %s, %q", v, why)
	b, err := startAs(rec.PID, sleepCommand())
	if err != nil {
		return err
	}
	defer end(b)
	l.stranger(r, "another process", rec, b, api.VerdictForeign)
	return nil
}

// asThread: kill(2) of the number would end the stranger whose thread has it.
func asThread(l *room, r *recycled) error {
	rec, err := l.record(sleepCommand())
	if err != nil {
		return err
	}
	b, err := startAs(rec.PID-1, rerun("threads"))
	if err != nil {
		return err
	}
	defer end(b)
	task := fmt.Sprintf("%d/task/%d", b.Process.Pid, rec.PID)
	for range 60_000 {
		if _, err = os.Stat(filepath.Join("/proc", task)); err == nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if err != nil {
		return err
	}
	p, v, why := l.host.Recall(rec)
	r.check(v == api.VerdictGone && p == nil, "a thread's number: %s, %q", v, why)
	_, herr := l.host.Hold(rec.PID)
	r.check(errors.Is(herr, pidfd.ErrGone), "a thread was held: %v", herr)
	var st syscall.WaitStatus
	pid, err := syscall.Wait4(b.Process.Pid, &st, syscall.WNOHANG, nil)
	r.check(pid == 0 && err == nil, "the thread's process was hit: %v %#x", err, st)
	return nil
}

func asZombie(l *room, r *recycled) error {
	rec, err := l.record(sleepCommand())
	if err != nil {
		return err
	}
	b, err := startAs(rec.PID, exec.Command("true"))
	if err != nil {
		return err
	}
	defer b.Wait()
	if _, err := sys.Waitid(sys.PPid, b.Process.Pid, sys.WExited|sys.WNoWait); err != nil {
		return err
	}
	p, v, why := l.host.Recall(rec)
	if rec.Ino != 0 {
		r.check(v == api.VerdictForeign && p == nil, "a stranger's zombie: %s, %q", v, why)
	} else { // in the same tick it reads as ours, which has ended as well
		r.check((v == api.VerdictForeign || v == api.VerdictGone || v == api.VerdictUnverifiable) && p == nil, "a stranger's zombie: %s, %q", v, why)
	}
	return nil
}

func asLeader(l *room, r *recycled) error {
	lead := exec.Command("sleep", "1000")
	lead.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	rec, err := l.record(lead)
	if err != nil {
		return err
	}
	b := exec.Command("sleep", "1000")
	b.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if _, err := startAs(rec.PID, b); err != nil {
		return err
	}
	defer end(b)
	l.stranger(r, "the leader of another group", rec, b, api.VerdictForeign)
	return nil
}

// amidEscalation: what was asked to end has, and its number is another's before
// the kill. What is held tells, also within one tick.
func amidEscalation(l *room, r *recycled) error {
	a, err := startAs(0, sleepCommand())
	if err != nil {
		return err
	}
	p, err := l.host.Hold(a.Process.Pid)
	if err != nil {
		return err
	}
	defer p.Close()
	if v, why, err := p.Signal(syscall.SIGTERM); v != api.VerdictOwned || err != nil {
		r.check(false, "asked: %s, %q, %v", v, why, err)
	}
	_ = a.Wait()
	b, err := startAs(a.Process.Pid, sleepCommand())
	if err != nil {
		return err
	}
	defer end(b)
	v, why, err := p.Signal(syscall.SIGKILL)
	r.check(v == api.VerdictGone && err == nil, "recycled in its grace: %s, %q, %v", v, why, err)
	var st syscall.WaitStatus
	pid, err := syscall.Wait4(b.Process.Pid, &st, syscall.WNOHANG, nil)
	r.check(pid == 0 && err == nil, "recycled in its grace: it was hit: %v %#x", err, st)
	return nil
}

// inAnotherCgroup: the cgroup tells apart what pid and tick do not.
func inAnotherCgroup(l *room, r *recycled, cgroups []string) error {
	start := func(pid int, dir string) (*exec.Cmd, error) {
		f, err := os.Open(dir)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		cmd := sleepCommand()
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(f.Fd())}
		return startAs(pid, cmd)
	}
	a, err := start(0, cgroups[0])
	if err != nil {
		return err
	}
	p, err := l.host.Hold(a.Process.Pid)
	if err != nil {
		return err
	}
	rec := p.Identity()
	p.Close()
	end(a)
	b, err := start(rec.PID, cgroups[1])
	if err != nil {
		return err
	}
	defer end(b)
	q, v, why := l.host.Recall(rec)
	ok := v == api.VerdictForeign || rec.Ino == 0 && v == api.VerdictUnverifiable
	r.check(ok && q == nil && rec.CgroupID != 0, "same number in another cgroup (%d): %s, %q", rec.CgroupID, v, why)
	return nil
}

// TestRecycled: a number that was handed out again authorises nothing, whatever
// has it now, and by whatever it is told.
func TestRecycled(t *testing.T) {
	systest.Root(t)
	suite.Command(t, "threads") // which the lab starts
	var dirs []string
	if m, _, err := sys.FindCgroup2(); err == nil {
		for _, name := range []string{"a", "b"} {
			dir := filepath.Join(m.Path, fmt.Sprintf("pinfold-test.fallback.%d.%s", os.Getpid(), name))
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Log(err)
				dirs = nil
				break
			}
			dirs = append(dirs, dir)
			t.Cleanup(func() {
				for end := time.Now().Add(time.Minute); os.Remove(dir) != nil && time.Now().Before(end); {
					time.Sleep(time.Millisecond)
				}
			})
		}
	}
	for _, mode := range []string{"all", "old", "no pidfd"} {
		t.Run(mode, func(t *testing.T) {
			var r recycled
			inRoom(t, &r, mode, "reuse", mode, strconv.Itoa(rounds(20, 300)), strings.Join(dirs, ":"))
			for _, w := range r.Wrong {
				t.Error(w)
			}
			t.Logf("%d rounds; in %d of twice as many both began in one tick", r.Rounds, r.SameTick)
		})
	}
}

// TestOldRecords: records of another boot, PID namespace or time namespace, without
// a token, or of nobody, authorise nothing; by pidfd and without.
func TestOldRecords(t *testing.T) {
	p := systest.Start(t, sleepCommand())
	byDir := newKernel()
	byDir.opens = false
	for how, h := range map[string]*Host{"pidfd": NewHost(), "directory": {byDir}} {
		held, err := h.Hold(p.PID())
		if err != nil {
			t.Fatal(err)
		}
		rec := held.Identity()
		held.Close()
		same, v, why := h.Recall(rec)
		if v != api.VerdictOwned {
			t.Fatalf("%s: the same: %s, %q", how, v, why)
		}
		same.Close()
		rec.Ino = 0
		for what, test := range map[string]struct {
			change func(*api.Identity)
			want   api.Verdict
		}{
			"another boot":                {func(r *api.Identity) { r.Boot = "another" }, api.VerdictForeign},
			"no boot":                     {func(r *api.Identity) { r.Boot = "" }, api.VerdictUnverifiable},
			"another PID namespace":       {func(r *api.Identity) { r.PIDNS++ }, api.VerdictUnverifiable},
			"no PID namespace":            {func(r *api.Identity) { r.PIDNS = 0 }, api.VerdictUnverifiable},
			"another time namespace":      {func(r *api.Identity) { r.TimeNS++ }, api.VerdictUnverifiable},
			"no token":                    {func(r *api.Identity) { r.StartTicks = 0 }, api.VerdictUnverifiable},
			"another tick":                {func(r *api.Identity) { r.StartTicks++ }, api.VerdictForeign},
			"another cgroup":              {func(r *api.Identity) { r.CgroupID = 1 << 40 }, api.VerdictUnverifiable},
			"ourselves":                   {func(r *api.Identity) { r.PID = os.Getpid() }, api.VerdictUnverifiable},
			"who started us":              {func(r *api.Identity) { r.PID = os.Getppid() }, api.VerdictUnverifiable},
			"init":                        {func(r *api.Identity) { r.PID = 1 }, api.VerdictUnverifiable},
			"nobody":                      {func(r *api.Identity) { *r = api.Identity{} }, api.VerdictUnverifiable},
			"a group (a negative number)": {func(r *api.Identity) { r.PID = -r.PID }, api.VerdictUnverifiable},
		} {
			r := rec
			test.change(&r)
			if got, v, why := h.Recall(r); v != test.want || got != nil {
				t.Errorf("%s, %s: %s, want %s, %q", how, what, v, test.want, why)
			}
		}
	}
	if p.Process.Signal(syscall.Signal(0)) != nil {
		t.Error("it does not live")
	}
}

// TestTimeNamespace: ticks that were read in another time namespace are not
// compared.
func TestTimeNamespace(t *testing.T) {
	systest.Root(t)
	if _, err := os.Stat("/proc/self/ns/time"); err != nil {
		systest.Feature(t, "time namespaces", "5.6", err)
	}
	p := systest.Start(t, sleepCommand())
	unshare := systest.Program(t, "unshare")
	cmd := systest.Start(t, exec.Command(unshare, "--time", "--boottime", "100000", "sh", "-c",
		"readlink /proc/self/ns/time; cat /proc/"+strconv.Itoa(p.PID())+"/stat; exec sleep 1000")) // what is ended is the sleep, and not a shell that leaves one
	ns := cmd.Line(t)
	var there api.Identity
	if _, err := fmt.Sscanf(ns, "time:[%d]", &there.TimeNS); err != nil {
		t.Fatal(ns, err)
	}
	stat, err := sys.ParseStat([]byte(cmd.Line(t) + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	h := NewHost()
	held, err := h.Hold(p.PID())
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	rec := held.Identity()
	if stat.StartTicks == rec.StartTicks || there.TimeNS == rec.TimeNS {
		t.Fatalf("tick %d there and %d here", stat.StartTicks, rec.StartTicks)
	}
	rec.Ino, rec.TimeNS, rec.StartTicks = 0, there.TimeNS, stat.StartTicks
	if q, v, why := h.Recall(rec); v != api.VerdictUnverifiable || q != nil {
		t.Errorf("%s, %q", v, why)
	}
}
