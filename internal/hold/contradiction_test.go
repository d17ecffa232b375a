//go:build linux

package hold

import (
	"os/exec"
	"syscall"
	"testing"

	"pinfold.dev/api"
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
