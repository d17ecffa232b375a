package turns

import (
	"context"
	"errors"
	"testing"
	"time"

	"pinfold.dev/api"
)

// A process that the kernel ended for want of memory is told from one that was
// killed.
func TestOutOfMemory(t *testing.T) {
	s := serve(t, grades(t)[0], options{})
	v, err := s.Begin(t.Context(), api.BeginRequest{Limits: &api.Limits{MemoryBytes: 64 << 20, SwapBytes: new(int64(0))}})
	if errors.Is(err, api.ErrLimitUnavailable) {
		t.Skipf("skipped: no memory controller: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	x := &turn{v, s, t}
	neighbour := x.launch(api.LaunchRequest{Argv: []string{"sleep", "3600"}})
	killed := x.launch(api.LaunchRequest{Argv: []string{"sh", "-c", "kill -KILL $$"}})
	hog := x.launch(api.LaunchRequest{Argv: []string{"tail", "/dev/zero"}})
	ctx, cancel := context.WithTimeout(t.Context(), patience(time.Minute))
	defer cancel()
	for id, want := range map[string]api.ProcessState{killed.ID: api.ProcessSignaled, hog.ID: api.ProcessOOM} {
		if p, err := s.WaitProcess(ctx, x.ID, id); err != nil || p.Status.State != want || p.Status.Signal != "SIGKILL" {
			t.Errorf("%s: %+v (%v)", id, p.Status, err)
		}
	}
	if p, err := s.Process(ctx, x.ID, neighbour.ID); err != nil || p.Status.State != api.ProcessRunning {
		t.Errorf("the neighbour: %+v (%v)", p.Status, err)
	}
	if r := x.abandon(0); r.Usage.OOMKills < 1 {
		t.Errorf("%+v", r.Usage)
	}
}
