package turns

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"pinfold.dev/api"
)

// A process that was ejected is found again by a later service, keeper or not: how
// it ends is known, and known at once.
func TestEjectedIsFoundAgain(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		for _, keeper := range []bool{true, false} {
			s := serve(t, g, options{})
			defer s.stopJobs()
			x := s.begin(t, api.BeginRequest{})
			f := files(t, "pid")[0]
			p := x.launch(api.LaunchRequest{Argv: []string{"sh", "-c", "sleep 1000 & echo $! >'" + f + "'; exec sleep 1001"}, Cwd: "/"})
			pid := 0
			eventually(t, "there is a descendant", func() bool {
				b, _ := os.ReadFile(f)
				pid, _ = strconv.Atoi(strings.TrimSuffix(string(b), "\n"))
				return pid > 0 && strings.HasSuffix(string(b), "\n")
			})
			if !keeper {
				x.signalKeeper(t, syscall.SIGKILL)
			}
			j, err := s.Promote(t.Context(), x.ID, p.ID, api.PromoteRequest{PID: pid})
			if err != nil {
				t.Fatal(err)
			}
			x.abandonKeeping(t)
			s.kill()
			s.restart()
			j, err = s.StopJob(t.Context(), j.ID, api.StopJobRequest{})
			lost := strings.Contains(j.Status.Why, "its parent reaped it") // before Linux 6.15 that is so
			if err != nil || j.State != api.JobEnded || j.Status.State != api.ProcessSignaled && !lost {
				t.Errorf("keeper %v: %+v (%v)", keeper, j, err)
			}
		}
	})
}
