package turns

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"pinfold.dev/api"
	"pinfold.dev/pidfd"
)

// Without a cgroup, an adopted process that lives is the turn's still when keeper
// and service were both killed, and it had nobody else.
func TestAdoptedOutlivesItsKeeper(t *testing.T) {
	barely(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{})
		newCanary(t, s)
		x := s.begin(t, api.BeginRequest{})
		f := files(t, "one")
		one := outsider(t, nil, "beat", f[0])
		heart(f[0]).beating(t)
		p := x.adopt(one.pid, api.AdoptRequest{MinGrade: api.GradeToken})
		s.kill()
		keeper, err := pidfd.Open(x.KeeperPID)
		if err != nil {
			t.Fatal(err)
		}
		defer keeper.Close()
		if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", x.KeeperPID)); err != nil || !strings.Contains(string(b), x.ID) {
			t.Fatalf("process %d is no keeper of it: %q (%v)", x.KeeperPID, b, err)
		}
		if err := keeper.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := keeper.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.restart()
		if v, err := s.Process(t.Context(), x.ID, p.ID); err != nil || v.Status.State != api.ProcessRunning {
			t.Errorf("%+v (%v)", v, err)
		}
		r, err := s.Abandon(t.Context(), x.ID, api.AbandonRequest{GraceMS: new(int64(0))})
		if err != nil || len(r.Processes) != 1 || r.Processes[0].EndedBy != "kill" || r.Processes[0].Verdict != api.VerdictGone {
			t.Errorf("%+v (%v)", r, err)
		}
		<-one.gone
		stopped(t, heart(f[0]))
	})
}
