//go:build linux

package hold

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"pinfold.dev/containment"
	"pinfold.dev/internal/sys/systest"
)

// promoter is a service that finds a turn and makes a job of a launch: CONFIG TURN
// FACTS PROCESS.
func promoter(args []string) error {
	var cfg Config
	var facts containment.Facts
	if err := json.Unmarshal([]byte(args[0]), &cfg); err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(args[2]), &facts); err != nil {
		return err
	}
	h, err := Open(context.Background(), cfg)
	if err != nil {
		return err
	}
	x, _, err := h.Recover(context.Background(), args[1], facts, containment.Hooks{Save: func(containment.Facts) error { return nil },
		Exit: func(containment.Exit) {}, KeeperLost: func(string) {}, Started: func(containment.Recovered) {}})
	if err != nil {
		return err
	}
	fmt.Println("now")
	n, err := x.Promote(context.Background(), args[3], nil)
	fmt.Println(n, err)
	time.Sleep(time.Hour)
	return err
}

// A service is killed at any moment of making a job of a launch that forks all the
// while: the next one finds a launch or a job, whole, that runs.
func TestPromoteAndDie(t *testing.T) {
	s := begin(t)
	canary := s.start("p0", "sleep", "1000")
	live := mustLive(t, canary.PID)
	jobs := map[string]bool{}
	const times = 30
	for i := range times {
		id := "p" + strconv.Itoa(i+1)
		st := s.help(id, "herd")
		var pids []int
		for _, line := range s.lines(id, 5) {
			pid, _ := strconv.Atoi(line)
			pids = append(pids, pid)
		}
		all := mustLive(t, append(pids, st.PID)...)
		s.dieOver(id, time.Duration(rand.IntN(30_000))*time.Microsecond)
		live()
		all()
		work, err := s.Members()
		if err != nil {
			t.Fatal(err)
		}
		in := 0
		for _, m := range work {
			if m.Process == id {
				in++
			}
		}
		job, err := s.JobMembers(id)
		if err != nil || (in > 0) == (len(job) > 0) || s.isJob(id) != (len(job) > 0) {
			t.Fatalf("%s: %d are in work/, %d in jobs/, a job: %v (%v)", id, in, len(job), s.isJob(id), err)
		}
		s.lines(id, len(s.lines(id, 1))+3) // it goes on
		if jobs[id] = s.isJob(id); !jobs[id] {
			if err := s.EndProcess(t.Context(), id, 9, 0, 20*time.Second); err != nil {
				t.Fatal(err)
			}
			continue
		}
		s.endJob(id, append(pids, st.PID))
	}
	n := 0
	for _, is := range jobs {
		if is {
			n++
		}
	}
	t.Logf("%d of %d were jobs by then", n, times)
	live()
	s.endTurn()
}

// dieOver lets another service promote, kills it, and takes the turn again.
func (s *stage) dieOver(process string, after time.Duration) {
	s.t.Helper()
	if err := s.Close(); err != nil {
		s.t.Fatal(err)
	}
	s.mu.Lock()
	facts, err := json.Marshal(s.facts)
	s.mu.Unlock()
	cfg := s.host.cfg
	cfg.Log = nil
	conf, cerr := json.Marshal(cfg)
	if err != nil || cerr != nil {
		s.t.Fatal(err, cerr)
	}
	cmd := suite.Command(s.t, "promoter", string(conf), s.turn, string(facts), process)
	cmd.Env = slices.Concat(cmd.Env, []string{"HOME=" + os.TempDir()})
	p := systest.Start(s.t, cmd)
	p.Line(s.t)
	time.Sleep(after)
	p.End()
	s.find()
}
