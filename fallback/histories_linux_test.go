package fallback

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys"
)

// life is a process of the room, whose parent is the room's init: it is reaped by
// nobody else, so what became of it is known.
type life struct {
	pid    int
	ours   bool
	rec    api.Identity
	group  *GroupRecord
	forced bool // it may have been signalled
}

// histories are real ones, with what was wrong about them.
type histories struct {
	Steps   int
	Wrong   []string
	Met     map[string]int
	l       *room
	rng     *rand.Rand
	lives   map[int]*life // by number: those not reaped
	past    []*life       // recorded, and reaped
	lastPID *os.File
	hidden  bool
}

func (h *histories) wrong(format string, args ...any) {
	if len(h.Wrong) < 5 {
		h.Wrong = append(h.Wrong, fmt.Sprintf(format, args...))
	}
}

// historiesInLab plays for args[1] milliseconds from the seed args[2].
func historiesInLab(l *room) (any, error) {
	ms, err := strconv.Atoi(l.args[1])
	if err != nil {
		return nil, err
	}
	seed, err := strconv.ParseUint(l.args[2], 10, 64)
	if err != nil {
		return nil, err
	}
	h := &histories{l: l, rng: rand.New(rand.NewPCG(seed, 0)), lives: map[int]*life{}, Met: map[string]int{}}
	if h.lastPID, err = os.OpenFile("/proc/sys/kernel/ns_last_pid", os.O_WRONLY, 0); err != nil {
		return nil, err
	}
	if err := l.enter(l.args[0]); err != nil {
		return nil, err
	}
	start := time.Now()
	for len(h.Wrong) == 0 {
		past := time.Since(start) / (time.Duration(ms) * time.Millisecond)
		if past > 100 || past > 0 && len(h.missed()) == 0 {
			break
		}
		h.Steps++
		if err := h.step(); err != nil {
			return h, err
		}
		if err := h.reap(); err != nil {
			return h, err
		}
	}
	return h, nil
}

// missed lists what has to be met and was not.
func (h *histories) missed() (out []string) {
	for _, what := range []string{"recall owned", "recall gone", "recall foreign", "group owned", "hidden"} {
		if h.Met[what] == 0 {
			out = append(out, what)
		}
	}
	return out
}

// start starts a process, mostly under a number that somebody had before. What it
// does: it sleeps, at once or after an exec, in a group or a session of its own.
func (h *histories) start(ours bool) (*life, error) {
	pid := 100 + h.rng.IntN(40)
	for n := 0; h.lives[pid] != nil || syscall.Kill(-pid, 0) == nil; n++ {
		if pid = 100 + h.rng.IntN(40); n > 100 {
			return nil, nil
		}
	}
	if _, err := h.lastPID.WriteAt([]byte(strconv.Itoa(pid-1)), 0); err != nil {
		return nil, err
	}
	script := []string{"exec sleep 1000", "exec sh -c 'exec sleep 1001'", "sleep 1002 & exec sleep 1003", "trap '' TERM; sleep 1004 & while :; do wait; done"}[h.rng.IntN(4)]
	attr := &syscall.SysProcAttr{Setpgid: h.rng.IntN(2) == 0}
	if !attr.Setpgid {
		attr = &syscall.SysProcAttr{Setsid: true}
	}
	got, err := syscall.ForkExec("/bin/sh", []string{"sh", "-c", script}, &syscall.ProcAttr{Dir: "/", Env: os.Environ(), Files: []uintptr{0, 2, 2}, Sys: attr})
	if err != nil {
		return nil, err
	}
	x := &life{pid: got, ours: ours}
	h.lives[got] = x
	if !ours {
		return x, nil
	}
	p, err := h.l.host.Hold(got)
	if err != nil {
		if h.hidden {
			delete(h.lives, got)
			x.ours = false
			h.lives[got] = x
			return x, nil
		}
		return nil, err
	}
	defer p.Close()
	x.rec = p.Identity()
	if h.rng.IntN(2) == 0 {
		if rec, err := h.l.host.RecordGroup(p); err == nil {
			x.group = &rec
		}
	}
	return x, nil
}

// reap reaps everything that has ended, and sees that no stranger was ended.
func (h *histories) reap() error {
	for {
		var st syscall.WaitStatus
		now := sys.BootTicks()
		pid, err := syscall.Wait4(-1, &st, syscall.WNOHANG, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if pid <= 0 {
			return nil
		}
		same := h.l.args[0] != "all" && h.forget(pid, now)
		x := h.lives[pid]
		delete(h.lives, pid)
		switch {
		case x == nil: // somebody's child
		case !x.ours && !x.forced:
			h.wrong("stranger %d was ended: %#x", pid, st)
		case x.ours && !same:
			h.past = append(h.past, x)
		}
	}
}

// forget drops what was recorded of a number that becomes free within the tick in
// which the recorded process began: nothing but an inode would tell who has it next.
func (h *histories) forget(pid int, now uint64) (same bool) {
	all := slices.Clone(h.past)
	for _, x := range h.lives {
		all = append(all, x)
	}
	for _, x := range all {
		same = same || x.pid == pid && h.lives[pid] == x && x.rec.StartTicks >= now
		if x.group == nil {
			continue
		}
		for _, id := range append([]api.Identity{x.group.Leader}, x.group.Witnesses...) {
			if id.PID == pid && id.StartTicks >= now {
				x.group = nil
				break
			}
		}
	}
	return same
}

// one chooses a process that lives, as far as is known.
func (h *histories) one() *life {
	for _, x := range h.lives {
		return x
	}
	return nil
}

// step does one thing.
func (h *histories) step() error {
	switch n := h.rng.IntN(12); {
	case len(h.lives) < 6 || n < 3 && len(h.lives) < 25:
		_, err := h.start(h.rng.IntN(3) > 0)
		return err
	case n < 5: // it ends by somebody else's hand
		if x := h.one(); x != nil {
			x.forced = true
			return syscall.Kill(x.pid, syscall.SIGKILL)
		}
	case n < 9:
		return h.recall()
	case n < 11:
		h.groups()
	default:
		return h.hide()
	}
	return nil
}

// hide takes /proc away, or brings it back.
func (h *histories) hide() (err error) {
	if h.hidden {
		err = syscall.Mount("proc", "/proc", "proc", 0, "")
	} else if err = noProc(); err == nil {
		h.Met["hidden"]++
	}
	h.hidden = !h.hidden
	return err
}

// someRecord chooses a recorded process, alive or gone, and tells which it is.
func (h *histories) someRecord() (*life, bool) {
	if len(h.past) > 0 && h.rng.IntN(2) == 0 {
		return h.past[max(0, len(h.past)-1-h.rng.IntN(40))], false
	}
	if x := h.one(); x != nil && x.ours {
		return x, true
	}
	return nil, false
}

func (h *histories) recall() error {
	x, lives := h.someRecord()
	if x == nil {
		return nil
	}
	p, v, why := h.l.host.Recall(x.rec)
	h.Met["recall "+string(v)]++
	switch {
	case v == api.VerdictOwned && !lives:
		h.wrong("%d is owned, and was reaped: %q", x.pid, why)
	case (v == api.VerdictGone || v == api.VerdictForeign) && lives && !x.forced:
		h.wrong("%d is %s, and lives: %q", x.pid, v, why)
	case v == api.VerdictUnverifiable && !h.hidden && x.rec.StartTicks != 0:
		h.wrong("%d is unverifiable, and nothing is hidden: %q", x.pid, why)
	}
	if p == nil {
		return nil
	}
	defer p.Close()
	x.forced = true
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if v, why, err := p.Signal(sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			h.wrong("signal %d: %s %q %v", x.pid, v, why, err)
		}
	}
	if h.rng.IntN(2) == 0 {
		_, err := sys.Waitid(sys.PPid, x.pid, sys.WExited|sys.WNoWait) // it ends
		return err
	}
	return nil
}

func (h *histories) groups() {
	x, _ := h.someRecord()
	if x == nil || x.group == nil {
		return
	}
	x.forced = true
	res := h.l.host.SignalGroup(*x.group, nil, syscall.SIGKILL)
	h.Met["group "+string(res.Verdict)]++
}

// TestRealHistories plays in a PID namespace what TestHistories plays in a model:
// fork, exit, reuse, exec, groups, sessions, and /proc that comes and goes. No
// stranger is ended, and no verdict is against what the parent of all knows.
func TestRealHistories(t *testing.T) {
	for _, mode := range []string{"all", "old", "no pidfd"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			var h histories
			inRoom(t, &h, mode, "histories", mode, strconv.Itoa(rounds(1500, 60_000)), strconv.FormatInt(time.Now().UnixNano(), 10))
			for _, w := range h.Wrong {
				t.Error(w)
			}
			if m := h.missed(); len(m) > 0 && len(h.Wrong) == 0 {
				t.Errorf("not met: %q", m)
			}
			t.Logf("%d steps: %v", h.Steps, h.Met)
		})
	}
}
