package containment

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"pinfold.dev/api"
)

// memAdopts is who can be adopted in memory, by pid.
type memAdopts struct {
	candidates map[int]Candidate
	unmovable  bool
	readopt    func(process string) (api.Verdict, []string, error)
}

func (x *memHold) Adopt(ctx context.Context, a Adopting) (Adopted, error) {
	k, ok := x.candidates[a.Said.PID]
	if !ok {
		return Adopted{}, api.AdoptGone.Refuse(a.Said.PID, "no such process")
	}
	if err := a.May(k); err != nil {
		return Adopted{}, err
	}
	out := Adopted{Started: Started{Process: a.Process, PID: k.Identity.PID, Identity: k.Identity, Placement: "adopt"}, Grade: x.facts.Grade,
		Argv: []string{k.Comm}, UID: k.UIDs[0], From: k.Cgroup, Evidence: []string{"said so"}}
	if x.unmovable {
		if err := a.Before(out); err != nil {
			return out, err
		}
		if !a.Token {
			return out, api.AdoptUnmovable.Refuse(k.Identity.PID, "it stays")
		}
		out.Grade, out.Started.Placement = api.GradeToken, "token"
	} else {
		out.Moved = 1
	}
	if err := a.Before(out); err != nil {
		return out, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.live[a.Process] = k.Identity.PID
	return out, nil
}

func (x *memHold) Readopt(ctx context.Context, process string, was api.Identity, moved bool, may func(Candidate) error) (api.Verdict, []string, error) {
	if x.readopt == nil {
		return api.VerdictOwned, nil, nil
	}
	return x.readopt(process)
}

func candidate(pid int, uid uint32) Candidate {
	return Candidate{Identity: api.Identity{PID: pid, Boot: "b", Ino: uint64(pid) * 10}, Comm: "c", UIDs: [4]uint32{uid, uid, uid, uid}, Cgroup: "/elsewhere"}
}

func adopting(pid int) api.AdoptRequest {
	return api.AdoptRequest{Process: api.Identity{PID: pid, Ino: uint64(pid) * 10}}
}

func reason(err error) api.AdoptRefusal {
	var e *api.Error
	if !errors.As(err, &e) || e.Code != api.CodeAdoptRefused {
		return ""
	}
	return api.AdoptRefusal(e.Details["reason"])
}

func TestAdopt(t *testing.T) {
	m, h, rec := manager(0)
	id := begun(t, m, api.BeginRequest{})
	x := h.holds[0]
	x.candidates = map[int]Candidate{70: candidate(70, 0)}
	req := adopting(70)
	req.IdempotencyKey, req.StopSignal, req.Labels = "k", "INT", map[string]string{"a": "b"}
	p, err := m.Adopt(t.Context(), id, Caller{UID: 0, PID: 5}, req, nil)
	if err != nil || p.PID != 70 || p.Adopted == nil || p.Adopted.Moved != 1 || p.Adopted.Stdio != api.StdioTheirs || p.Adopted.By.PID != 5 || p.Adopted.From != "/elsewhere" || p.InPlace {
		t.Fatalf("%+v %+v (%v)", p, p.Adopted, err)
	}
	r := rec.live[id]
	if len(r.Turn.Processes) != 1 || r.Turn.Processes[0].Identity.Ino != 700 || decodeMeta(r.Meta[p.ID]).Stop == 0 {
		t.Errorf("recorded: %+v %+v", r.Turn.Processes, r.Meta)
	}
	if _, err := m.Signal(t.Context(), id, p.ID, api.SignalRequest{Signal: "INT", Group: true}); !errors.Is(err, api.ErrBadRequest) {
		t.Errorf("its group, which is not ours, was signalled: %v", err)
	}
	other := begun(t, m, api.BeginRequest{})
	if _, err := m.Join(t.Context(), other, Caller{PID: 70, Ino: 700}, api.JoinRequest{}, nil); reason(err) != api.AdoptHeld {
		t.Errorf("it joins another turn: %v", err)
	}
	again := restarted(t, h, rec, 0)
	if q, err := again.Adopt(t.Context(), id, Caller{UID: 0, PID: 5}, req, nil); err != nil || q.ID != p.ID || !q.Repeated {
		t.Errorf("again: %+v (%v)", q, err)
	}
	req.Tree = true
	if _, err := again.Adopt(t.Context(), id, Caller{UID: 0, PID: 5}, req, nil); !errors.Is(err, api.ErrConflict) {
		t.Errorf("another with its key: %v", err)
	}
	if v, err := again.Adopt(t.Context(), id, root, adopting(70), nil); reason(err) != api.AdoptHeld {
		t.Errorf("twice: %+v (%v)", v, err)
	}
	e, err := again.Abandon(t.Context(), id, root, api.AbandonRequest{})
	if err != nil || !e.Complete || len(e.Processes) != 1 || e.Processes[0].EndedBy != "kill" || !e.Processes[0].Adopted {
		t.Errorf("%+v (%v)", e, err)
	}
	if _, err := again.Adopt(t.Context(), id, root, adopting(70), nil); !errors.Is(err, api.ErrTurnOver) {
		t.Errorf("into a turn that is over: %v", err)
	}
}

// Who may be adopted, by whom, into whose turn.
func TestMayAdopt(t *testing.T) {
	m, h, _ := manager(0)
	id, other := begun(t, m, api.BeginRequest{}), begun(t, m, api.BeginRequest{})
	held, _ := m.find(other)
	held.facts.Keeper = api.Identity{PID: 90, Boot: "b", Ino: 900}
	launched(t, m, other)
	held.procs[0].view.Identity = api.Identity{PID: 91, Boot: "b", Ino: 910}
	mine := &turn{id: "u", owner: 1000, view: api.Turn{State: api.StateOpen}, byID: map[string]*process{}}
	user := Caller{UID: 1000}
	setuid := candidate(72, 1000)
	setuid.UIDs[1], setuid.UIDs[2], setuid.UIDs[3] = 0, 0, 0
	saved := candidate(73, 1000)
	saved.UIDs[2] = 0
	below := candidate(74, 0)
	below.Above = []api.Identity{{PID: 80, Boot: "b", Ino: 800}, held.facts.Keeper}
	caller := candidate(75, 1000)
	caller.Caller = true
	inside := candidate(76, 0)
	inside.Cgroup = "/t/" + other + "/work/p1"
	root0, _ := m.find(id)
	for name, k := range map[string]struct {
		t    *turn
		c    Caller
		req  api.AdoptRequest
		k    Candidate
		want api.AdoptRefusal
	}{
		"own":                           {mine, user, api.AdoptRequest{}, candidate(71, 1000), ""},
		"root's, by root":               {root0, root, api.AdoptRequest{}, candidate(71, 0), ""},
		"anybody's, by root":            {root0, root, api.AdoptRequest{}, candidate(71, 1000), ""},
		"another's":                     {mine, user, api.AdoptRequest{}, candidate(71, 1001), api.AdoptOther},
		"root's for a user, by root":    {mine, root, api.AdoptRequest{}, candidate(71, 0), api.AdoptOther},
		"root's into root's, by a user": {root0, user, api.AdoptRequest{}, candidate(71, 0), api.AdoptOther},
		"set-user-ID":                   {mine, user, api.AdoptRequest{}, setuid, api.AdoptOther},
		"with a saved id":               {mine, user, api.AdoptRequest{}, saved, api.AdoptOther},
		"a keeper":                      {root0, root, api.AdoptRequest{}, candidate(90, 0), api.AdoptPinfold},
		"launched, and got away":        {root0, root, api.AdoptRequest{}, candidate(91, 0), api.AdoptHeld},
		"below a keeper":                {root0, root, api.AdoptRequest{}, below, api.AdoptHeld},
		"below its own keeper":          {held, root, api.AdoptRequest{}, below, ""},
		"in a turn's cgroup":            {root0, root, api.AdoptRequest{}, inside, api.AdoptHeld},
		"the caller":                    {mine, user, api.AdoptRequest{}, caller, api.AdoptAncestor},
		"the caller, said":              {mine, user, api.AdoptRequest{Ancestor: true}, caller, ""},
	} {
		err := m.mayAdopt(k.t, k.c, k.req, k.k)
		if reason(err) != k.want || (err == nil) != (k.want == "") {
			t.Errorf("%s: %v, want %q", name, err, k.want)
		}
	}
	mine.clientID = api.Identity{PID: 71, Boot: "b", Ino: 710}
	if err := m.mayAdopt(mine, user, api.AdoptRequest{}, candidate(71, 1000)); reason(err) != api.AdoptAncestor {
		t.Errorf("the client: %v", err)
	}
	own := New(Config{Host: h, Records: newMemRecords(), Users: memUsers{}, UID: 1000})
	if err := own.mayAdopt(root0, root, api.AdoptRequest{}, candidate(71, 0)); reason(err) != api.AdoptOther {
		t.Errorf("by a user's service: %v", err)
	}
}

// What does not name one process is refused before anybody looks.
func TestAdoptNamesOne(t *testing.T) {
	m, h, rec := manager(0)
	id := begun(t, m, api.BeginRequest{})
	x := h.holds[0]
	x.candidates = map[int]Candidate{70: candidate(70, 0)}
	for name, req := range map[string]api.AdoptRequest{
		"nothing": {}, "a number": {Process: api.Identity{PID: 70}}, "init": {Process: api.Identity{PID: 1, StartTicks: 1}},
		"all": {Process: api.Identity{PID: -1, StartTicks: 1}}, "a boot": {Process: api.Identity{PID: 70, Boot: "b"}},
	} {
		if _, err := m.Adopt(t.Context(), id, root, req, nil); reason(err) != api.AdoptAmbiguous {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := m.Adopt(t.Context(), id, root, api.AdoptRequest{Process: api.Identity{PID: 70}}, os.Stdin); err != nil {
		t.Errorf("a number with a handle: %v", err)
	}
	for name, req := range map[string]api.AdoptRequest{
		"signal": {StopSignal: "NOPE"}, "grade": {MinGrade: "best"}, "key": {IdempotencyKey: string(make([]byte, maxKey+1))},
	} {
		req.Process = api.Identity{PID: 70, Ino: 700}
		if _, err := m.Adopt(t.Context(), id, root, req, nil); !errors.Is(err, api.ErrBadRequest) {
			t.Errorf("%s: %v", name, err)
		}
	}
	rec.full = true
	x.candidates[71] = candidate(71, 0)
	if _, err := m.Adopt(t.Context(), id, root, adopting(71), nil); !errors.Is(err, api.ErrUnavailable) || len(x.live) != 1 {
		t.Errorf("unrecorded: %v, %v", err, x.live)
	}
	rec.full = false
	if _, err := m.Abandon(t.Context(), id, root, api.AbandonRequest{}); err != nil {
		t.Error(err)
	}
}

// Where it cannot be moved it is held by its identity only when that was said, or
// the turn has nothing better.
func TestAdoptByIdentity(t *testing.T) {
	m, h, _ := manager(0)
	id := begun(t, m, api.BeginRequest{})
	x := h.holds[0]
	x.candidates, x.unmovable = map[int]Candidate{70: candidate(70, 0)}, true
	if _, err := m.Adopt(t.Context(), id, root, adopting(70), nil); reason(err) != api.AdoptUnmovable {
		t.Errorf("unsaid: %v", err)
	}
	req := adopting(70)
	req.MinGrade = api.GradeToken
	p, err := m.Adopt(t.Context(), id, root, req, nil)
	if err != nil || p.Grade != api.GradeToken || p.Adopted.Moved != 0 {
		t.Errorf("%+v (%v)", p, err)
	}
	if v, err := m.Turn(t.Context(), id); err != nil || v.Grade != api.GradeCgroup {
		t.Errorf("the turn's own: %s (%v)", v.Grade, err)
	} else if len(v.Processes) != 1 {
		t.Errorf("listed: %+v", v.Processes)
	}
	bare := begun(t, m, api.BeginRequest{})
	y := h.holds[1]
	y.facts.Grade, y.candidates, y.unmovable = api.GradeSubreaper, map[int]Candidate{71: candidate(71, 0)}, true
	if p, err := m.Adopt(t.Context(), bare, root, adopting(71), nil); err != nil || p.Grade != api.GradeToken {
		t.Errorf("without a cgroup: %+v (%v)", p, err)
	}
	for _, one := range []string{id, bare} {
		if _, err := m.Abandon(t.Context(), one, root, api.AbandonRequest{}); err != nil {
			t.Error(err)
		}
	}
}

// After a restart an adopted process is there, lost, shown and left alone, or was
// never adopted.
func TestReadopt(t *testing.T) {
	for name, c := range map[string]struct {
		verdict api.Verdict
		err     error
		state   api.ProcessState // empty: it is not listed
	}{
		"owned":        {api.VerdictOwned, nil, api.ProcessRunning},
		"gone":         {api.VerdictGone, nil, api.ProcessLost},
		"foreign":      {api.VerdictForeign, nil, api.ProcessLost},
		"unverifiable": {api.VerdictUnverifiable, nil, api.ProcessRunning},
		"undone":       {api.VerdictUnverifiable, ErrUndone, ""},
	} {
		m, h, rec := manager(0)
		id := begun(t, m, api.BeginRequest{})
		x := h.holds[0]
		x.candidates = map[int]Candidate{70: candidate(70, 0)}
		p, err := m.Adopt(t.Context(), id, root, adopting(70), nil)
		if err != nil {
			t.Fatal(err)
		}
		x.readopt = func(string) (api.Verdict, []string, error) { return c.verdict, []string{"because"}, c.err }
		again := restarted(t, h, rec, time.Hour)
		v, err := again.Process(t.Context(), id, p.ID)
		if c.state == "" {
			if !errors.Is(err, api.ErrNotFound) {
				t.Errorf("%s: %+v (%v)", name, v, err)
			}
			continue
		}
		if err != nil || v.Status.State != c.state {
			t.Errorf("%s: %+v (%v)", name, v.Status, err)
		}
		if tv, err := again.Turn(t.Context(), id); err != nil || (len(tv.Degraded) > 0) != (c.verdict == api.VerdictUnverifiable) {
			t.Errorf("%s: degraded %q (%v)", name, tv.Degraded, err)
		}
		if c.state != api.ProcessLost {
			continue
		}
		r, err := again.Abandon(t.Context(), id, root, api.AbandonRequest{})
		if foreign := c.verdict == api.VerdictForeign; err != nil || len(r.Processes) != 1 || r.Processes[0].Verdict != c.verdict || (r.Counts.Foreign == 1) != foreign || !r.Complete {
			t.Errorf("%s: the receipt has %+v, %+v (%v)", name, r.Processes, r.Counts, err)
		}
	}
}
