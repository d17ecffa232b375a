//go:build linux

package hold

import (
	"log/slog"
	"os/exec"
	"syscall"
	"testing"

	"pinfold.dev/api"
	"pinfold.dev/containment"
	"pinfold.dev/fallback"
	"pinfold.dev/pidfd"
)

// A record with the inode of a keeper that lives, and the number of another process
// or of none, is nobody's word that the keeper has gone: its turn lives.
func TestKeeperRecordThatContradictsItself(t *testing.T) {
	h := &Host{opener: pidfd.NewOpener(), fb: fallback.NewHost()}
	var pids []int
	for range 2 {
		c := exec.Command("sleep", "60")
		c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = c.Process.Kill(), c.Wait() })
		pids = append(pids, c.Process.Pid)
	}
	keeper, err := pidfd.Open(pids[0])
	if err != nil {
		t.Fatal(err)
	}
	defer keeper.Close()
	rec, err := keeper.Identity()
	if err != nil {
		t.Fatal(err)
	}
	rec.PID = pids[1]
	p, v, why := h.openLeader(rec)
	if p != nil || v == api.VerdictOwned {
		t.Fatalf("%s %q", v, why)
	}
	_, _, direct := pidfd.OpenVerified(rec)
	if pidfd.Contradicts(direct) && v != api.VerdictUnverifiable { // before Linux 6.14 nobody finds the keeper by its inode
		t.Errorf("%s %q", v, why)
	}
}

// A record that names a living process which is no keeper says nothing of the
// turn: at grade pidns it must not read as the end of the turn's namespace.
func TestKeeperRecordOfAnother(t *testing.T) {
	c := exec.Command("sleep", "60")
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = c.Process.Kill(), c.Wait() })
	p, err := pidfd.Open(c.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	rec, err := p.Identity()
	if err != nil {
		t.Fatal(err)
	}
	h := &Host{opener: pidfd.NewOpener(), fb: fallback.NewHost(), cfg: Config{RuntimeDir: t.TempDir()}, log: slog.New(slog.DiscardHandler)}
	for _, g := range []api.Grade{api.GradePIDNS, api.GradeSubreaper, api.GradeToken} {
		x, v, err := h.recoverBare(t.Context(), "0123456789abcdef", containment.Facts{Grade: g, Keeper: rec, Dir: h.cfg.RuntimeDir}, containment.Hooks{})
		if x != nil || v != api.VerdictUnverifiable {
			t.Errorf("%s: %v, %s, %v", g, x, v, err)
		}
	}
	if over, err := p.Exited(); over || err != nil {
		t.Errorf("the other process has ended: %v", err)
	}
}
