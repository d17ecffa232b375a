package containment

import (
	"errors"
	"testing"
	"time"

	"pinfold.dev/api"
)

func TestJoin(t *testing.T) {
	m, h, rec := manager(0)
	id := begun(t, m, api.BeginRequest{})
	p, err := m.Join(t.Context(), id, Caller{UID: 0, PID: 77, Ino: 770}, api.JoinRequest{Argv: []string{"sh"}, Labels: map[string]string{"a": "b"}}, nil)
	if err != nil || !p.InPlace || p.PID != 77 || p.Placement != "join" || p.Labels["a"] != "b" {
		t.Fatalf("%+v (%v)", p, err)
	}
	if r := rec.live[id]; len(r.Turn.Processes) != 1 || r.Turn.Processes[0].Identity.Ino != 770 {
		t.Errorf("recorded: %+v", r.Turn.Processes)
	}
	if _, err := m.Join(t.Context(), id, Caller{PID: 77, Ino: 770}, api.JoinRequest{}, nil); !errors.Is(err, api.ErrBadRequest) {
		t.Errorf("again: %v", err)
	}
	if _, err := m.Signal(t.Context(), id, p.ID, api.SignalRequest{Signal: "INT", Group: true}); !errors.Is(err, api.ErrBadRequest) {
		t.Errorf("its caller's group was signalled: %v", err)
	}
	r, err := m.Abandon(t.Context(), id, root, api.AbandonRequest{})
	if err != nil || !r.Complete || len(r.Processes) != 1 || r.Processes[0].EndedBy != "kill" {
		t.Errorf("%+v (%v)", r, err)
	}
	if n := len(h.holds); n != 1 {
		t.Error(n)
	}
	if _, err := m.Join(t.Context(), id, root, api.JoinRequest{}, nil); !errors.Is(err, api.ErrTurnOver) {
		t.Errorf("into a turn that is over: %v", err)
	}
}

func TestWhoMayNotJoin(t *testing.T) {
	m, h, rec := manager(0)
	id, other := begun(t, m, api.BeginRequest{}), begun(t, m, api.BeginRequest{})
	x := h.holds[0]
	x.joinFrom = "/t/" + other + "/work/p1"
	if _, err := m.Join(t.Context(), id, Caller{PID: 77}, api.JoinRequest{}, nil); !errors.Is(err, api.ErrForbidden) {
		t.Errorf("from another turn: %v", err)
	}
	x.joinFrom, x.joinErr = "/t/"+id+"/work/p1", api.Errorf(api.CodePeerUnverifiable, "it has exited")
	if _, err := m.Join(t.Context(), id, Caller{PID: 77}, api.JoinRequest{}, nil); !errors.Is(err, api.ErrPeerUnverifiable) {
		t.Errorf("gone: %v", err)
	}
	if v, err := m.Turn(t.Context(), id); err != nil || len(v.Processes) != 0 || len(rec.live[id].Turn.Processes) != 0 {
		t.Errorf("it is listed: %+v, recorded: %+v (%v)", v.Processes, rec.live[id].Turn.Processes, err)
	}
	x.joinErr = nil
	rec.full = true
	if _, err := m.Join(t.Context(), id, Caller{PID: 77}, api.JoinRequest{}, nil); !errors.Is(err, api.ErrUnavailable) || len(x.live) != 0 {
		t.Errorf("unrecorded: %v, %v", err, x.live)
	}
	rec.full = false
	for name, req := range map[string]api.JoinRequest{"signal": {StopSignal: "NOPE"}, "cwd": {Cwd: "here"}, "argv": {Argv: []string{""}}, "grade": {MinGrade: "best"}} {
		if _, err := m.Join(t.Context(), id, root, req, nil); !errors.Is(err, api.ErrBadRequest) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := m.Join(t.Context(), id, root, api.JoinRequest{MinGrade: api.GradeScope}, nil); !errors.Is(err, api.ErrGradeUnavailable) {
		t.Errorf("grade: %v", err)
	}
	if _, err := m.Join(t.Context(), id, root, api.JoinRequest{Epoch: 5}, nil); !errors.Is(err, api.ErrStaleEpoch) {
		t.Errorf("epoch: %v", err)
	}
	own := New(Config{Host: &memHost{}, Records: newMemRecords(), Users: memUsers{}, UID: 1000})
	mine := begun(t, own, api.BeginRequest{})
	if _, err := own.Join(t.Context(), mine, Caller{UID: 1001}, api.JoinRequest{}, nil); !errors.Is(err, api.ErrForbidden) {
		t.Errorf("another user's: %v", err)
	}
}

// One that joined is not the keeper's child: after a restart the record knows
// it, or nobody does.
func TestJoinedIsLostWhenItIsNotFoundAgain(t *testing.T) {
	m, h, rec := manager(0)
	id := begun(t, m, api.BeginRequest{})
	p, err := m.Join(t.Context(), id, Caller{PID: 77}, api.JoinRequest{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	again := restarted(t, h, rec, time.Hour)
	v, err := again.Process(t.Context(), id, p.ID)
	if err != nil || v.Status.State != api.ProcessLost || v.Status.Why == "" || !v.InPlace {
		t.Errorf("%+v (%v)", v, err)
	}
	if q := launched(t, again, id); q == p.ID {
		t.Error("its id was given again")
	}
}

// The end of a process that was to finish its turn does, also when it came while
// there was no service.
func TestJoinedFinishesItsTurn(t *testing.T) {
	for name, policy := range map[string]api.LeftoverPolicy{"keep": api.LeftoversKeep, "reap": api.LeftoversReap} {
		m, h, _ := manager(0)
		id := begun(t, m, api.BeginRequest{Leftovers: policy})
		launched(t, m, id) // stays
		p, err := m.Join(t.Context(), id, Caller{UID: 0, PID: 77}, api.JoinRequest{FinishTurn: true}, nil)
		if err != nil || !p.FinishesTurn {
			t.Fatalf("%+v (%v)", p, err)
		}
		if v, err := m.Turn(t.Context(), id); err != nil || v.State != api.StateOpen {
			t.Fatalf("%s: %+v (%v)", name, v.State, err)
		}
		x := h.holds[0]
		x.mu.Lock()
		delete(x.live, p.ID)
		x.mu.Unlock()
		x.hooks.Exit(Exit{Process: p.ID, At: time.Now(), Status: api.Status{State: api.ProcessExited}})
		v, err := m.WaitTurn(t.Context(), id)
		if err != nil || v.State != api.StateFinished || v.Reason != api.ReasonFinished {
			t.Errorf("%s: %+v (%v)", name, v, err)
		}
		r, err := m.Receipt(t.Context(), id)
		if err != nil || (len(r.Leftovers) > 0) != (policy == api.LeftoversKeep) {
			t.Errorf("%s: %+v (%v)", name, r.Leftovers, err)
		}
	}
	m, h, rec := manager(0)
	id := begun(t, m, api.BeginRequest{})
	if _, err := m.Join(t.Context(), id, Caller{PID: 77}, api.JoinRequest{FinishTurn: true}, nil); err != nil {
		t.Fatal(err)
	}
	x := h.holds[0]
	x.mu.Lock()
	clear(x.live)
	x.mu.Unlock()
	again := restarted(t, h, rec, time.Hour)
	if v, err := again.WaitTurn(t.Context(), id); err != nil || v.State != api.StateFinished {
		t.Errorf("%+v (%v)", v, err)
	}
}
