package crash

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/pidfd"
)

// At the grades that need no cgroup the service runs in the life's own, so that
// all of it is found, and ended, whatever the service thinks.

// bareOf is the grade at which a point is come to that is not there where there are
// cgroups. A keeper is asked to end its children first at grade token; at subreaper
// only once the service could not.
func bareOf(p point) api.Grade {
	switch {
	case p.in == keeper && (p.name == "end.taken" || p.name == "end.told"):
		return api.GradeToken
	case strings.HasPrefix(p.name, "bare."):
		return api.GradeSubreaper
	}
	return ""
}

// barely are plans for usual points at grade subreaper, with both dying there.
func barely(p point) (out []plan) {
	words := []string{"launch.", "intent.written", "exit.", "end.", "fence.", "record."}
	if bareOf(p) != "" || !slices.ContainsFunc(words, func(w string) bool { return strings.HasPrefix(p.name, w) }) {
		return nil
	}
	x := plan{point: p.name, in: p.in, mode: both, stage: atBegin, bare: api.GradeSubreaper}
	if strings.HasPrefix(p.name, "exit.") || strings.HasPrefix(p.name, "record.") {
		x.stage = atEnd
	}
	x.lasting = x.stage == atBegin // what is being launched would go on
	if p.name == "end.termed" {
		x.grace = 300
	}
	return append(out, x)
}

// orphanTime tells those from all others that may outlive their keeper: they had
// lost their parents before, so whose they are only the keeper could tell.
const orphanTime = "100001"

// orphan launches a process that leaves one behind.
func (l *life) orphan() *payload {
	return l.script("orphan", 7, `(setsid sleep `+orphanTime+` &) ; exit 7`)
}

// untraced tells of a process that nobody can find once its keeper is gone: an
// orphan, or one that lost its parent in an ending in whose midst both died.
func (l *life) untraced(b bearer) bool {
	midst := l.plan.mode == both && strings.HasPrefix(l.plan.point, "exit.") && !l.launched(b.pid) && !l.launched(parentOf(b.pid))
	return l.keeperLost() && (strings.Contains(b.cmd, orphanTime) || midst)
}

func (l *life) launched(pid int) bool {
	for _, p := range l.procs {
		if p.pid == pid {
			return true
		}
	}
	return false
}

// above are the numbers of a process and of those above it.
func above(pid int) (out []int) {
	for pid > 1 && len(out) < 100 {
		out = append(out, pid)
		pid = parentOf(pid)
	}
	return out
}

func parentOf(pid int) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	n, _ := strconv.Atoi(string(f[1]))
	return n
}

// listedBare tells whether somebody is a listed process, or below one; or an
// orphan, below a listed turn's keeper.
func (l *life) listedBare(b bearer, turns []api.Turn) bool {
	up := above(b.pid)
	for _, v := range turns {
		if strings.Contains(b.cmd, orphanTime) && slices.Contains(up, v.KeeperPID) {
			return true
		}
		for _, p := range v.Processes {
			if p.Status.State == api.ProcessRunning && slices.Contains(up, p.PID) {
				return true
			}
		}
	}
	return l.untraced(b)
}

// overBare checks what a receipt says of who may go on: nobody when it is complete;
// else it says that it does not know, and those alone go on whom nobody can find.
func (l *life) overBare(r api.Receipt) {
	t := l.t
	t.Helper()
	if on := l.bearers(); r.Complete && len(on) > 0 {
		t.Errorf("the receipt is complete, and there are %v: %+v (%s)", on, r, l.describe())
	}
	if r.Complete {
		return
	}
	left := r.State == api.StateFinished && r.LeftoversEndedAt == nil
	if !l.keeperLost() || r.State != api.StateLost && !left || r.Unconfirmed == "" {
		t.Errorf("the receipt is not complete: %+v (%s)", r, l.describe())
	}
	var lost []bearer
	eventually(t, "all that can be found has ended", func() bool {
		lost = l.bearers()
		return !slices.ContainsFunc(lost, func(b bearer) bool { return !l.untraced(b) })
	})
	for _, b := range lost {
		endBearer(t.Context(), b, l.token)
	}
}

// endBearer ends one that is proved to be the life's.
func endBearer(ctx context.Context, b bearer, token string) {
	h, err := pidfd.Open(b.pid)
	if err != nil {
		return
	}
	defer h.Close()
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", b.pid))
	if err != nil || !slices.Contains(strings.Split(string(env), "\x00"), token) {
		return
	}
	_ = h.Signal(syscall.SIGKILL)
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	_ = h.Wait(ctx)
}

// bareKeepers are the keepers of all turns but the neighbour's.
func (l *life) bareKeepers() (pids []int) {
	b, _ := os.ReadFile(l.parent + "/cgroup.procs")
	for s := range strings.FieldsSeq(string(b)) {
		if pid, err := strconv.Atoi(s); err == nil && l.isBareKeeper(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func (l *life) isBareKeeper(pid int) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	_, turn, ok := strings.Cut(string(line), "\x00--turn\x00")
	return err == nil && ok && (l.neighbour.ID == "" || !strings.HasPrefix(turn, l.neighbour.ID))
}
