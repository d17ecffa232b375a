package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys"
)

const (
	idleTurns = 100
	idleTime  = 10 * time.Second
)

// idle measures what a service without work costs, and then what turns cost in
// which nothing happens. It has a service of its own, that has done nothing.
func (b *bench) idle(int) error {
	s, err := b.place.serve("idle", api.GradeCgroup)
	if err != nil {
		return err
	}
	defer s.stop()
	s.client.Close()
	const group = "idle"
	service := []int{s.cmd.Process.Pid}
	time.Sleep(time.Second)
	before, err := b.watch(service)
	if err != nil {
		return err
	}
	b.add(plain(group, "service: memory, its program included", mb(before.resident), 20e6, float64(before.resident)),
		plain(group, fmt.Sprintf("service: wake-ups in %s", idleTime), strconv.Itoa(before.wakes), 0, float64(before.wakes)))
	turns, keepers, err := s.beginMany(idleTurns)
	if err != nil {
		return err
	}
	s.client.Close()
	time.Sleep(time.Second)
	after, err := b.watch(service)
	if err != nil {
		return err
	}
	kept, err := b.watch(keepers)
	if err != nil {
		return err
	}
	share, keeper := (after.private-before.private)/idleTurns, kept.private/idleTurns
	b.add(plain(group, "turn: keeper's private memory", mb(keeper), 0, 0),
		plain(group, "turn: service's share", mb(share), 0, 0),
		plain(group, "turn: both", mb(keeper+share), 1.2e6, float64(keeper+share)),
		plain(group, fmt.Sprintf("%d turns: wake-ups of the keepers in %s", idleTurns, idleTime), strconv.Itoa(kept.wakes), 0, float64(kept.wakes)),
		plain(group, fmt.Sprintf("%d turns: wake-ups of the service in %s", idleTurns, idleTime), strconv.Itoa(after.wakes), 0, float64(after.wakes)))
	for _, t := range turns {
		if _, err := s.abandon(t); err != nil {
			return err
		}
	}
	return nil
}

// beginMany begins turns and finds their keepers.
func (s *service) beginMany(n int) (turns []string, keepers []int, err error) {
	for range n {
		t, err := s.client.Begin(context.Background(), api.BeginRequest{})
		if err != nil {
			return nil, nil, err
		}
		turns, keepers = append(turns, t.ID), append(keepers, t.KeeperPID)
	}
	return turns, keepers, nil
}

// plain is a row of a figure that has a bound and no peer; unbounded ones have
// an allowed of 0 and a have of 0.
func plain(group, what, shown string, allowed, have float64) row {
	r := row{Group: group, What: what, Ours: shown}
	switch {
	case allowed > 0:
		r.Budget, r.Stands = "≤ "+mb(int64(allowed)), stands(have, allowed, false)
	case have > 0:
		r.Budget, r.Stands = "none", "over"
	}
	return r
}

func mb(n int64) string { return fmt.Sprintf("%.2f MB", float64(n)/1e6) }

// cost is what processes have together.
type cost struct {
	private  int64 // bytes that would be free without them
	resident int64 // bytes that they have, shared or not
	wakes    int   // context switches, of all their threads, in idleTime
}

func (b *bench) watch(pids []int) (cost, error) {
	var c cost
	start, err := switches(pids)
	if err != nil {
		return c, err
	}
	time.Sleep(idleTime)
	end, err := switches(pids)
	if err != nil {
		return c, err
	}
	c.wakes = end - start
	for _, pid := range pids {
		mem, err := sys.ProcFile(pid, "smaps_rollup")
		if err != nil {
			return c, err
		}
		c.private += private(mem)
		c.resident += 1024 * field(mem, "Rss:")
	}
	return c, nil
}

// switches sums up the context switches of all threads.
func switches(pids []int) (n int, err error) {
	for _, pid := range pids {
		files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
		if err != nil || len(files) == 0 {
			return 0, fmt.Errorf("process %d has no threads: %v", pid, err)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				return 0, err
			}
			for _, key := range []string{"voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"} {
				n += int(field(b, key))
			}
		}
	}
	return n, nil
}

// field is the number after a key, on a line of its own.
func field(b []byte, key string) int64 {
	for line := range bytes.Lines(b) {
		f := bytes.Fields(line)
		if len(f) > 1 && string(f[0]) == key {
			n, _ := strconv.ParseInt(string(f[1]), 10, 64)
			return n
		}
	}
	return 0
}
