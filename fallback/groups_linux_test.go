package fallback

import (
	"fmt"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys"
	"pinfold.dev/internal/sys/systest"
	"pinfold.dev/pidfd"
)

// groupRounds is what came of many rounds.
type groupRounds struct {
	Rounds, Wrong int
	First         string // the first thing that was wrong
	Exact         bool   // the leader's handle was tried as well
}

func (g *groupRounds) check(ok bool, format string, args ...any) {
	if ok {
		return
	}
	if g.Wrong++; g.Wrong == 1 {
		g.First = fmt.Sprintf("round %d: ", g.Rounds) + fmt.Sprintf(format, args...)
	}
}

// leaderAs starts a leader of a group of its own, which runs a script.
func leaderAs(pid int, script string) (*exec.Cmd, error) {
	cmd := exec.Command("sh", "-c", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return startAs(pid, cmd)
}

// membersOf lists the living members of a group in the room.
func (l *room) membersOf(pgid int) (out []int, err error) {
	m, err := l.alive()
	for pid, s := range m {
		if s.Group == pgid {
			out = append(out, pid)
		}
	}
	return out, err
}

// untilMembers waits until a group has n living members.
func (l *room) untilMembers(pgid, n int) error {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		m, err := l.membersOf(pgid)
		if err != nil || len(m) == n {
			return err
		}
		time.Sleep(50 * time.Microsecond)
	}
	return fmt.Errorf("group %d has not come to %d members", pgid, n)
}

// reapAll reaps what the room's init has inherited.
func reapAll() {
	for {
		var st syscall.WaitStatus
		if pid, err := syscall.Wait4(-1, &st, syscall.WNOHANG, nil); pid <= 0 || err != nil {
			return
		}
	}
}

// groupsInLab plays, as often as args[1] says, a group whose leader goes: with a
// witness that lives, and with none but a stranger's group of the same number.
func groupsInLab(l *room) (any, error) {
	rounds, err := strconv.Atoi(l.args[1])
	if err != nil {
		return nil, err
	}
	canary, err := leaderAs(0, "exec sleep 1000")
	if err != nil {
		return nil, err
	}
	if err := l.enter(l.args[0]); err != nil {
		return nil, err
	}
	var g groupRounds
	for ; g.Rounds < rounds && g.Wrong == 0; g.Rounds++ {
		if err := l.witnessed(&g); err != nil {
			return g, err
		}
		if err := l.usurped(&g); err != nil {
			return g, err
		}
	}
	m, err := l.alive()
	_, lives := m[canary.Process.Pid]
	g.check(lives, "the canary does not live")
	return g, err
}

// witnessed: the leader goes, and of two witnesses one remains. The group is ours,
// and who came later is ours with it.
func (l *room) witnessed(g *groupRounds) error {
	a, err := leaderAs(0, "sleep 1001 & sleep 1002 & exec sleep 1007")
	if err != nil {
		return err
	}
	pgid := a.Process.Pid
	if err := l.untilMembers(pgid, 3); err != nil {
		return err
	}
	leader, err := l.host.Hold(pgid)
	if err != nil {
		return err
	}
	rec, err := l.host.RecordGroup(leader)
	leader.Close()
	g.check(err == nil && len(rec.Witnesses) == 2, "recorded %+v, %v", rec, err)
	end(a)
	if err := syscall.Kill(rec.Witnesses[0].PID, syscall.SIGKILL); err != nil {
		return err
	}
	res := l.host.SignalGroup(rec, nil, syscall.SIGKILL)
	g.check(res.Verdict == api.VerdictOwned, "with a witness: %s, %q", res.Verdict, res.Evidence)
	if err := l.untilMembers(pgid, 0); err != nil {
		g.check(false, "%v", err)
		return nil
	}
	reapAll()
	res = l.host.SignalGroup(rec, nil, syscall.SIGKILL)
	g.check(res.Verdict == api.VerdictGone, "ended: %s, %q", res.Verdict, res.Evidence)
	return nil
}

// usurped: the leader and all witnesses go, and a stranger's group of the same
// number appears, all of it newer than our record; its leader goes, too. It is
// not ours.
func (l *room) usurped(g *groupRounds) error {
	a, err := leaderAs(0, "sleep 1003 & exec sleep 1004")
	if err != nil {
		return err
	}
	pgid := a.Process.Pid
	if err := l.untilMembers(pgid, 2); err != nil {
		return err
	}
	handle, err := pidfd.Open(pgid)
	if err == nil {
		defer handle.Close()
	}
	leader, err := l.host.Hold(pgid)
	if err != nil {
		return err
	}
	rec, err := l.host.RecordGroup(leader)
	leader.Close()
	g.check(err == nil && len(rec.Witnesses) == 1, "recorded %+v, %v", rec, err)
	if err := syscall.Kill(-pgid, syscall.SIGKILL); err != nil {
		return err
	}
	_ = a.Wait()
	if err := l.untilMembers(pgid, 0); err != nil {
		return err
	}
	reapAll()
	for rec.Leader.Ino == 0 && sys.BootTicks() <= rec.Witnesses[0].StartTicks+1 {
		time.Sleep(time.Millisecond) // within one tick, nothing would tell them apart
	}
	b, err := leaderAs(pgid, "sleep 1005 & exec sleep 1006") // a stranger
	if err != nil {
		return err
	}
	if err := l.untilMembers(pgid, 2); err != nil {
		return err
	}
	res := l.host.SignalGroup(rec, nil, syscall.SIGKILL)
	g.check(res.Verdict == api.VerdictForeign, "a stranger leads it: %s, %q", res.Verdict, res.Evidence)
	end(b)
	res = l.host.SignalGroup(rec, nil, syscall.SIGKILL)
	g.check(res.Verdict == api.VerdictUnverifiable && len(res.Members) == 0, "a stranger's, leaderless: %s, %q", res.Verdict, res.Evidence)
	if handle != nil {
		res = l.host.SignalGroup(rec, handle, syscall.SIGKILL)
		g.Exact = g.Exact || res.Verdict == api.VerdictGone
		g.check(res.Verdict == api.VerdictGone || res.Verdict == api.VerdictUnverifiable, "by handle: %s, %q", res.Verdict, res.Evidence)
	}
	m, err := l.membersOf(pgid)
	g.check(err == nil && len(m) == 1, "of the stranger's group there live %v, %v", m, err)
	for _, pid := range m {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	if err := l.untilMembers(pgid, 0); err != nil {
		return err
	}
	reapAll()
	return nil
}

// TestNewerUnrelatedGroupIsSpared: a number proves nothing, and neither does age.
func TestNewerUnrelatedGroupIsSpared(t *testing.T) {
	for _, test := range []struct {
		mode   string
		rounds int
	}{{"all", rounds(150, 1000)}, {"old", rounds(50, 1000)}, {"no pidfd", rounds(50, 1000)}} {
		t.Run(test.mode, func(t *testing.T) {
			t.Parallel()
			var g groupRounds
			inRoom(t, &g, test.mode, "groups", test.mode, strconv.Itoa(test.rounds))
			if g.Wrong > 0 || g.Rounds != test.rounds {
				t.Errorf("%d wrong in %d rounds; %s", g.Wrong, g.Rounds, g.First)
			}
			if test.mode == "all" && !g.Exact {
				systest.Feature(t, "signals to a process group by handle", "6.9", pidfd.ErrNotSupported)
			}
		})
	}
}
