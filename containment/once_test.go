package containment

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pinfold.dev/api"
)

func TestOneKeyOneProcess(t *testing.T) {
	m, h, _ := manager(0)
	id := begun(t, m, api.BeginRequest{})
	req := api.LaunchRequest{Argv: []string{"x"}, IdempotencyKey: "k"}
	var wg sync.WaitGroup
	got := make([]api.Process, 20)
	for i := range got {
		wg.Go(func() {
			p, err := m.Launch(t.Context(), id, root, req, nil)
			if err != nil {
				t.Error(err)
			}
			got[i] = p
		})
	}
	wg.Wait()
	first := 0
	for _, p := range got {
		if p.ID != got[0].ID {
			t.Errorf("two processes: %s and %s", p.ID, got[0].ID)
		}
		if !p.Repeated {
			first++
		}
	}
	if n := len(h.holds[0].launched); n != 1 || first != 1 {
		t.Errorf("%d were launched, %d answers were the first", n, first)
	}
	other := req
	other.Argv = []string{"y"}
	for name, try := range map[string]func() error{
		"another request": func() error { _, err := m.Launch(t.Context(), id, root, other, nil); return err },
		"another caller":  func() error { _, err := m.Launch(t.Context(), id, Caller{UID: 5}, req, nil); return err },
	} {
		if err := try(); !errors.Is(err, api.ErrConflict) {
			t.Errorf("%s: %v", name, err)
		}
	}
	second := begun(t, m, api.BeginRequest{}) // keys are a turn's own
	if p, err := m.Launch(t.Context(), second, root, other, nil); err != nil || p.Repeated {
		t.Errorf("in another turn: %+v (%v)", p, err)
	}
}

func TestRefusedLaunchUsesNoKeyUp(t *testing.T) {
	m, h, _ := manager(0)
	id := begun(t, m, api.BeginRequest{})
	x := h.holds[0]
	x.launchErr = api.Errorf(api.CodeExecFailed, "no such program")
	req := api.LaunchRequest{Argv: []string{"x"}, IdempotencyKey: "k"}
	if _, err := m.Launch(t.Context(), id, root, req, nil); !errors.Is(err, api.ErrExecFailed) {
		t.Fatal(err)
	}
	x.launchErr = nil
	req.Argv = []string{"y"}
	if p, err := m.Launch(t.Context(), id, root, req, nil); err != nil || p.Repeated {
		t.Errorf("%+v (%v)", p, err)
	}
}

// A launch whose outcome nobody knows is not made again; when it comes to be
// known, it answers.
func TestUnknownOutcomeKeepsTheKey(t *testing.T) {
	m, h, _ := manager(0)
	id := begun(t, m, api.BeginRequest{})
	x := h.holds[0]
	x.launchErr = api.Errorf(api.CodeTimeout, "no answer")
	req := api.LaunchRequest{Argv: []string{"x"}, IdempotencyKey: "k"}
	for range 2 {
		if _, err := m.Launch(t.Context(), id, root, req, nil); !errors.Is(err, api.ErrTimeout) {
			t.Fatal(err)
		}
	}
	if x.asked != 1 {
		t.Errorf("the keeper was asked %d times", x.asked)
	}
	x.hooks.Started(Recovered{Started: Started{Process: "p7", PID: 70}, Argv: req.Argv, Meta: x.lastMeta})
	if p, err := m.Launch(t.Context(), id, root, req, nil); err != nil || p.ID != "p7" || !p.Repeated {
		t.Errorf("%+v (%v)", p, err)
	}
}

func TestKeysSurviveARestart(t *testing.T) {
	m, h, rec := manager(0)
	id := begun(t, m, api.BeginRequest{})
	req := api.LaunchRequest{Argv: []string{"x"}, IdempotencyKey: "k", Labels: map[string]string{"a": "b"}}
	p, err := m.Launch(t.Context(), id, root, req, nil)
	if err != nil {
		t.Fatal(err)
	}
	again := restarted(t, h, rec, 0)
	if q, err := again.Launch(t.Context(), id, root, req, nil); err != nil || q.ID != p.ID || !q.Repeated || q.Labels["a"] != "b" {
		t.Errorf("%+v (%v)", q, err)
	}
	req.Argv = []string{"y"}
	if _, err := again.Launch(t.Context(), id, root, req, nil); !errors.Is(err, api.ErrConflict) {
		t.Error(err)
	}
}

// restarted is the service after the one that h's holds were begun by.
func restarted(t *testing.T, h *memHost, rec *memRecords, now time.Duration) *Manager {
	t.Helper()
	h.recover = true
	start := time.Now()
	m := New(Config{Host: h, Records: rec, Users: memUsers{}, Boot: "b", Bound: time.Second, Grace: time.Second,
		Clock: func() time.Duration { return now + time.Since(start) }})
	if err := m.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestDeadlineEndsAProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, h, _ := manager(3 * time.Second)
		id := begun(t, m, api.BeginRequest{})
		begin := time.Now()
		p, err := m.Launch(t.Context(), id, root, api.LaunchRequest{Argv: []string{"x"}, DeadlineMS: 5000, StopSignal: "INT"}, nil)
		if err != nil || p.Deadline == nil || p.Deadline.Sub(begin) != 5*time.Second {
			t.Fatalf("%+v (%v)", p, err)
		}
		other := launched(t, m, id)
		p, err = m.WaitProcess(t.Context(), id, p.ID)
		if took := time.Since(begin); err != nil || took != 8*time.Second || p.Status.EndedBy != api.EndedByDeadline || p.Status.SignalNumber != 9 {
			t.Errorf("after %v: %+v (%v)", took, p.Status, err)
		}
		if q, _ := m.Process(t.Context(), id, other); q.Status.State != api.ProcessRunning {
			t.Errorf("the other process: %+v", q.Status)
		}
		r, err := m.Abandon(t.Context(), id, root, api.AbandonRequest{})
		if err != nil || r.Processes[0].EndedBy != "deadline" || r.Processes[1].EndedBy == "deadline" {
			t.Errorf("%+v (%v)", r.Processes, err)
		}
		if x := h.holds[0]; len(x.ended) != 1 {
			t.Errorf("ended: %v", x.ended)
		}
		synctest.Wait()
		_ = m.Close(context.Background())
	})
}

func TestFinishedWorkerBeatsItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, h, _ := manager(0)
		id := begun(t, m, api.BeginRequest{})
		p, err := m.Launch(t.Context(), id, root, api.LaunchRequest{Argv: []string{"x"}, DeadlineMS: 5000}, nil)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(4 * time.Second)
		h.holds[0].exit(p.ID, 0)
		time.Sleep(time.Hour)
		p, err = m.Process(t.Context(), id, p.ID)
		if err != nil || p.Status.State != api.ProcessExited || p.Status.EndedBy != "" || len(h.holds[0].ended) > 0 {
			t.Errorf("%+v (%v), ended %v", p.Status, err, h.holds[0].ended)
		}
		_ = m.Close(context.Background())
	})
}

// The clock goes on while there is no service, and is not the wall's.
func TestDeadlineSurvivesARestart(t *testing.T) {
	for name, c := range map[string]struct{ away, left time.Duration }{
		"in time": {2 * time.Second, 3 * time.Second}, "too late": {time.Minute, 0}} {
		synctest.Test(t, func(t *testing.T) {
			m, h, rec := manager(0)
			id := begun(t, m, api.BeginRequest{})
			p, err := m.Launch(t.Context(), id, root, api.LaunchRequest{Argv: []string{"x"}, DeadlineMS: 5000}, nil)
			if err != nil {
				t.Fatal(err)
			}
			_ = m.Close(context.Background())
			begin := time.Now()
			again := restarted(t, h, rec, c.away)
			p, err = again.WaitProcess(t.Context(), id, p.ID)
			if took := time.Since(begin); err != nil || took != c.left+time.Second || p.Status.EndedBy != api.EndedByDeadline {
				t.Errorf("%s: after %v: %+v (%v)", name, took, p.Status, err)
			}
			_ = again.Close(context.Background())
		})
	}
}

// Whoever has taken a turn asks for its launches again under another epoch.
func TestRequestHash(t *testing.T) {
	of := func(uid uint32, argv string, epoch int64, fds int) string {
		return requestHash(Caller{UID: uid}, api.LaunchRequest{Argv: []string{argv}, Epoch: epoch}, fds)
	}
	if of(1, "a", 1, 2) != of(1, "a", 2, 2) {
		t.Error("the epoch makes it another request")
	}
	for _, other := range []string{of(2, "a", 1, 2), of(1, "b", 1, 2), of(1, "a", 1, 3)} {
		if other == of(1, "a", 1, 2) {
			t.Error("another request has the same hash")
		}
	}
}
