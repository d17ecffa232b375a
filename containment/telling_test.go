package containment

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/events"
)

// told is a manager that tells a log of its own.
func told(t *testing.T, dir string, h *memHost, rec *memRecords) *Manager {
	t.Helper()
	log, err := events.Open(events.Config{StateDir: dir, RuntimeDir: dir, Boot: "b", Patience: time.Hour}) // a busy machine is no disk that hangs
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := log.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	m := New(Config{Host: h, Records: rec, Users: memUsers{}, Boot: "b", Events: log, Bound: 10 * time.Millisecond})
	if err := m.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	return m
}

// heard waits until the last of some kinds is told of a turn, and compares all.
func heard(t *testing.T, m *Manager, id, want string) []api.Event {
	t.Helper()
	words := strings.Fields(want)
	var got []string
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		all, _, err := m.Events(t.Context(), EventQuery{Turn: id})
		if err != nil {
			t.Fatal(err)
		}
		got = nil
		for _, e := range all {
			w := string(e.Kind)
			if e.Process != "" {
				w += ":" + e.Process
			}
			got = append(got, w)
		}
		if slices.Equal(got, words) {
			return all
		}
		if len(got) >= len(words) || time.Now().After(end) {
			t.Fatalf("told %q, want %q", got, words)
		}
	}
}

func TestUnkillableIsResolvedThenEnded(t *testing.T) {
	h := &memHost{}
	m := told(t, t.TempDir(), h, newMemRecords())
	id := begun(t, m, api.BeginRequest{Label: "l"})
	launched(t, m, id)
	x := h.holds[0]
	gone := make(chan struct{})
	x.stuck, x.gone = true, gone
	r, err := m.Abandon(t.Context(), id, root, api.AbandonRequest{GraceMS: new(int64(0))})
	if err != nil || r.State != api.StateUnkillable {
		t.Fatalf("%+v %v", r, err)
	}
	heard(t, m, id, "begun launch:p1 ending unkillable")
	close(gone)
	all := heard(t, m, id, "begun launch:p1 ending unkillable exit:p1 resolved ended")
	for i, e := range all {
		if e.Stopped != (i >= 2) || e.Owner != 0 || e.At.IsZero() {
			t.Errorf("%+v", e)
		}
	}
	if last := all[len(all)-1]; last.State != api.StateAbandoned || last.Reason != api.ReasonStop || all[0].Message != "l" {
		t.Errorf("%+v", all)
	}
}

func TestLeftoversAreTold(t *testing.T) {
	h := &memHost{}
	m := told(t, t.TempDir(), h, newMemRecords())
	id := begun(t, m, api.BeginRequest{})
	launched(t, m, id)
	if _, err := m.Finish(t.Context(), id, root, api.FinishRequest{Leftovers: api.LeftoversKeep}); err != nil {
		t.Fatal(err)
	}
	heard(t, m, id, "begun launch:p1 ending leftover ended")
	h.holds[0].exit("p1", 4)
	all := heard(t, m, id, "begun launch:p1 ending leftover ended exit:p1 leftover")
	if e := all[5]; !e.Stopped || e.Status.Code != 4 {
		t.Errorf("a late exit is told as %+v", e)
	}
}

// A service that finds its turns again tells what the log does not have, and
// nothing twice.
func TestToldOnceOverRestarts(t *testing.T) {
	dir := t.TempDir()
	h, rec := &memHost{recover: true}, newMemRecords()
	m := told(t, dir, h, rec)
	id := begun(t, m, api.BeginRequest{})
	launched(t, m, id)
	launched(t, m, id)
	h.holds[0].exit("p1", 1)
	const first = "begun launch:p1 launch:p2 exit:p1"
	heard(t, m, id, first)
	if err := m.save(m.turns[id]); err != nil {
		t.Fatal(err)
	}
	r := rec.live[id]
	r.Facts.Cgroup = "/t/" + id
	rec.live[id] = r
	lost := told(t, t.TempDir(), h, rec) // whose log has gone: the records tell
	heard(t, lost, id, "begun launch:p1 exit:p1 launch:p2")
	log := m.cfg.Events
	for range 3 { // the same log, as a killed service leaves it
		m = New(Config{Host: h, Records: rec, Users: memUsers{}, Boot: "b", Events: log})
		if err := m.Recover(t.Context()); err != nil {
			t.Fatal(err)
		}
		heard(t, m, id, first)
	}
	if _, err := m.Abandon(t.Context(), id, root, api.AbandonRequest{GraceMS: new(int64(0))}); err != nil {
		t.Fatal(err)
	}
	for over := false; !over; time.Sleep(time.Millisecond) {
		_, over, _ = rec.Ended(id)
	}
	heard(t, m, id, first+" ending exit:p2 ended")
}

// What did not come to be in a turn is not told; what did is, before its end.
func TestJoinIsToldWhenItIsIn(t *testing.T) {
	h := &memHost{}
	m := told(t, t.TempDir(), h, newMemRecords())
	id := begun(t, m, api.BeginRequest{})
	x := h.holds[0]
	x.joinErr = api.Errorf(api.CodePeerUnverifiable, "it has exited")
	if _, err := m.Join(t.Context(), id, Caller{PID: 77, Ino: 1}, api.JoinRequest{}, nil); err == nil {
		t.Fatal("joined")
	}
	heard(t, m, id, "begun")
	x.joinErr = nil
	if _, err := m.Join(t.Context(), id, Caller{PID: 77, Ino: 1}, api.JoinRequest{}, nil); err != nil {
		t.Fatal(err)
	}
	heard(t, m, id, "begun launch:p2")
}

func TestEventsAreChosen(t *testing.T) {
	m := told(t, t.TempDir(), &memHost{}, newMemRecords())
	var ids []string
	for i := range 3 {
		v, err := m.Begin(t.Context(), Caller{UID: uint32(i)}, api.BeginRequest{Session: []string{"a", "b", "a"}[i]})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, v.ID)
	}
	heard(t, m, ids[2], "begun") // a busy disk takes its time
	turns := func(q EventQuery) (out []string) {
		all, _, err := m.Events(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range all {
			out = append(out, e.Turn)
		}
		return out
	}
	for i, c := range []struct {
		q    EventQuery
		want []string
	}{
		{EventQuery{}, ids},
		{EventQuery{Limit: 2}, ids[:2]},
		{EventQuery{After: 1}, ids[1:]},
		{EventQuery{After: -1}, nil},
		{EventQuery{Owner: new(uint32(1))}, ids[1:2]},
		{EventQuery{Session: "a"}, []string{ids[0], ids[2]}},
		{EventQuery{Turn: ids[2], Kinds: []api.EventKind{api.EventBegun}}, ids[2:]},
		{EventQuery{Kinds: []api.EventKind{api.EventExit}}, nil},
	} {
		if got := turns(c.q); !slices.Equal(got, c.want) {
			t.Errorf("%d: %q, want %q", i, got, c.want)
		}
	}
	if got, _, _ := m.Events(t.Context(), EventQuery{After: 1000, Owner: new(uint32(9))}); len(got) != 1 || got[0].Kind != api.EventGap {
		t.Errorf("a cursor of a lost log: %+v", got)
	}
	for _, name := range []string{"", "a/b", strings.Repeat("x", 65), "*", "é"} {
		if _, err := m.AckEvents(t.Context(), 0, api.AckRequest{Consumer: name, Seq: 1}); err == nil {
			t.Errorf("consumer %q", name)
		}
	}
	for _, seq := range []int64{0, -1, 4} {
		if _, err := m.AckEvents(t.Context(), 0, api.AckRequest{Consumer: "c", Seq: seq}); err == nil {
			t.Errorf("seq %d", seq)
		}
	}
}
