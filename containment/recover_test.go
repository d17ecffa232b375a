package containment

import (
	"context"
	"strings"
	"testing"
	"time"

	"pinfold.dev/api"
)

// goneHost finds the cgroups of all turns removed; told is what their journals
// say.
type goneHost struct {
	memHost
	told []Recovered
}

type toldHold struct {
	memHold
	told []Recovered
}

func (x *toldHold) Processes() []Recovered { return x.told }

func (h *goneHost) Recover(ctx context.Context, turn string, f Facts, hooks Hooks) (Hold, api.Verdict, error) {
	return &toldHold{told: h.told}, api.VerdictGone, nil
}

// exited is a launch that ended with a code.
func exited(id string, code int) Recovered {
	return Recovered{Started: Started{Process: id, PID: 7}, Exit: &Exit{Process: id, At: time.Now(),
		Status: api.Status{State: api.ProcessExited, Code: code}}}
}

// restart is a manager that finds the one record, changed by change.
func restart(t *testing.T, h Host, change func(*Record)) (*Manager, string, *memRecords) {
	t.Helper()
	m, _, rec := manager(0)
	id := begun(t, m, api.BeginRequest{})
	list, _ := rec.Load()
	list[0].Facts.Cgroup = "/t/" + id
	change(&list[0])
	if err := rec.Save(list[0]); err != nil {
		t.Fatal(err)
	}
	again := New(Config{Host: h, Records: rec, Users: memUsers{}, Boot: "b"})
	if err := again.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	return again, id, rec
}

func TestEndingCutShortAfterItsCgroupWasRemoved(t *testing.T) {
	at := time.Now().UTC()
	for _, draft := range []bool{false, true} {
		h := &goneHost{told: []Recovered{exited("p1", 5), {Started: Started{Process: "p2", PID: 8}}}}
		m, id, _ := restart(t, h, func(r *Record) {
			r.Turn.State = api.StateEnding
			r.Ending = &EndRequest{Reason: api.ReasonIdle, AskedAt: at}
			if draft {
				r.Draft = &api.Receipt{Turn: id0(r), Reason: api.ReasonIdle, Mechanism: "cgroup.kill", AskedAt: at, KilledAt: &at,
					SeenEmptyAt: &at, Counts: api.Counts{Ended: 9}, State: api.StateEnding}
			}
		})
		r, err := m.Receipt(t.Context(), id)
		if err != nil || !r.Complete || r.State != api.StateAbandoned || r.Reason != api.ReasonIdle || r.SeenEmptyAt == nil || len(r.Notes) == 0 {
			t.Errorf("draft %v: %+v (%v)", draft, r, err)
		}
		if draft && (r.Mechanism != "cgroup.kill" || r.Counts.Ended != 9 || r.KilledAt == nil || !r.SeenEmptyAt.Equal(at)) {
			t.Errorf("the draft is lost: %+v", r)
		}
		if len(r.Processes) != 2 || r.Processes[0].Status.Code != 5 || r.Processes[1].Status.State != api.ProcessLost {
			t.Errorf("draft %v: processes %+v", draft, r.Processes)
		}
	}
}

func id0(r *Record) string { return r.Turn.ID }

func TestLeftoversGoneWhileThereWasNoService(t *testing.T) {
	m, id, _ := restart(t, &goneHost{told: []Recovered{exited("p1", 5)}}, func(r *Record) {
		r.Turn.State = api.StateFinished
		r.Receipt = &api.Receipt{Turn: id0(r), State: api.StateFinished, Reason: api.ReasonFinished, Complete: true,
			Leftovers: []api.Leftover{{PID: 7, Process: "p1"}}}
	})
	r, err := m.Receipt(t.Context(), id)
	if err != nil || r.State != api.StateFinished || !r.Complete || r.LeftoversEndedAt == nil || r.SeenEmptyAt != nil {
		t.Errorf("%+v (%v)", r, err)
	}
	if len(r.Processes) != 1 || r.Processes[0].Status.Code != 5 {
		t.Errorf("processes %+v", r.Processes)
	}
}

func TestOpenTurnWhoseCgroupIsGoneIsLost(t *testing.T) {
	m, id, _ := restart(t, &goneHost{told: []Recovered{exited("p1", 5), {Started: Started{Process: "p2"}}}}, func(*Record) {})
	r, err := m.Receipt(t.Context(), id)
	if err != nil || r.State != api.StateLost || r.Complete {
		t.Errorf("%+v (%v)", r, err)
	}
	if len(r.Processes) != 2 || r.Processes[0].Status.Code != 5 || r.Processes[1].Status.State != api.ProcessLost {
		t.Errorf("processes %+v", r.Processes)
	}
}

func TestBeginCutShortLeavesNothing(t *testing.T) {
	m, id, rec := restart(t, &goneHost{}, func(r *Record) { r.Facts.Cgroup = "" })
	if _, err := m.Turn(t.Context(), id); err == nil || m.Knows(id) {
		t.Errorf("a turn that nobody was told of is there: %v", err)
	}
	if list, _ := rec.Load(); len(list) != 0 {
		t.Errorf("its record is there: %+v", list)
	}
}

func TestLaunchOfAnEarlierServiceIsListedAndItsIDPassedOver(t *testing.T) {
	m, h, _ := manager(0)
	id := begun(t, m, api.BeginRequest{})
	launched(t, m, id) // p1
	h.holds[0].used = map[string]bool{"p2": true, "p3": true}
	p, err := m.Launch(t.Context(), id, root, api.LaunchRequest{Argv: []string{"x"}}, nil)
	if err != nil || p.ID != "p4" {
		t.Errorf("%+v (%v)", p, err)
	}
	h.holds[0].hooks.Started(Recovered{Started: Started{Process: "p2", PID: 9}, Argv: []string{"early"}})
	h.holds[0].hooks.Started(Recovered{Started: Started{Process: "p7", PID: 10}})
	h.holds[0].exit("p2", 3)
	v, err := m.Process(t.Context(), id, "p2")
	if err != nil || strings.Join(v.Argv, " ") != "early" || v.Status.Code != 3 {
		t.Errorf("%+v (%v)", v, err)
	}
	if p, err := m.Launch(t.Context(), id, root, api.LaunchRequest{Argv: []string{"x"}}, nil); err != nil || p.ID != "p8" {
		t.Errorf("%+v (%v)", p, err)
	}
}
