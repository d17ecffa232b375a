package containment

import (
	"errors"
	"testing"

	"pinfold.dev/api"
)

// The end policy as a table: for each reason, what happens to processes; the
// twelve cases of the design with what a turn says otherwise. Real processes are
// in integration/turns/policy_test.go.
func TestEndPolicyOfProcesses(t *testing.T) {
	keep := api.EndRule{Processes: api.FateKeep}
	end := api.EndRule{Processes: api.FateEnd}
	type row struct {
		name  string
		begin api.BeginRequest
		end   func(t *testing.T, m *Manager, id string) (api.Receipt, error)
		kept  bool
		state api.State
	}
	finish := func(l api.LeftoverPolicy) func(*testing.T, *Manager, string) (api.Receipt, error) {
		return func(t *testing.T, m *Manager, id string) (api.Receipt, error) {
			return m.Finish(t.Context(), id, root, api.FinishRequest{Leftovers: l})
		}
	}
	rows := []row{
		{"finished", api.BeginRequest{}, finish(""), true, api.StateFinished},
		{"finished, reap", api.BeginRequest{Leftovers: api.LeftoversReap}, finish(""), false, api.StateFinished},
		{"finished, by its row", api.BeginRequest{Policy: api.EndPolicy{api.ReasonFinished: end}}, finish(""), false, api.StateFinished},
		{"finished, leftovers above the row", api.BeginRequest{Leftovers: api.LeftoversKeep, Policy: api.EndPolicy{api.ReasonFinished: end}},
			finish(""), true, api.StateFinished},
		{"finished, the request above all", api.BeginRequest{Leftovers: api.LeftoversKeep}, finish(api.LeftoversReap), false, api.StateFinished},
		{"finished, the request above all, too", api.BeginRequest{Leftovers: api.LeftoversReap}, finish(api.LeftoversKeep), true, api.StateFinished},
	}
	for why := range api.DefaultPolicy() {
		if why == api.ReasonFinished {
			continue
		}
		abandon := func(t *testing.T, m *Manager, id string) (api.Receipt, error) {
			return m.Abandon(t.Context(), id, root, api.AbandonRequest{Reason: why})
		}
		rows = append(rows,
			row{string(why), api.BeginRequest{}, abandon, false, api.StateAbandoned},
			row{string(why) + ", keep", api.BeginRequest{Policy: api.EndPolicy{why: keep}}, abandon, true, api.StateAbandoned},
			row{string(why) + ", leftovers are for finished", api.BeginRequest{Leftovers: api.LeftoversKeep}, abandon, false, api.StateAbandoned})
	}
	for _, c := range rows {
		timed(t, func(t *testing.T, m *Manager, h *memHost, rec *memRecords) {
			id := begun(t, m, c.begin)
			p := launched(t, m, id)
			r, err := c.end(t, m, id)
			n, _ := h.holds[0].Alive()
			if err != nil || !r.Complete || r.State != c.state || (n == 1) != c.kept || (len(r.Leftovers) == 1) != c.kept {
				t.Errorf("%s: %d alive, %+v (%v)", c.name, n, r, err)
			}
			if !c.kept {
				return
			}
			v, err := m.Turn(t.Context(), id)
			if err != nil || v.State != c.state || v.Alive != 1 || r.Leftovers[0].Process != p {
				t.Errorf("%s: not listed: %+v (%v)", c.name, v, err)
			}
			if _, err := m.Launch(t.Context(), id, root, api.LaunchRequest{Argv: []string{"x"}}, nil); !errors.Is(err, api.ErrTurnOver) {
				t.Errorf("%s: a launch: %v", c.name, err)
			}
			r, err = m.Abandon(t.Context(), id, root, api.AbandonRequest{Leftovers: true})
			if n, _ := h.holds[0].Alive(); err != nil || n != 0 || r.LeftoversEndedAt == nil || r.State != c.state {
				t.Errorf("%s: not endable: %d alive, %+v (%v)", c.name, n, r, err)
			}
		})
	}
}

// What the table says of jobs is asked for in rule; the rows with jobs are in
// jobs_test.go.
func TestRuleOfJobs(t *testing.T) {
	tt := newTurn(api.Turn{Policy: api.EndPolicy{api.ReasonStop: {Jobs: api.FateEnd}}})
	for why := range api.DefaultPolicy() {
		want := api.FateKeep
		if why == api.ReasonStop {
			want = api.FateEnd
		}
		if got := tt.rule(why); got.Jobs != want {
			t.Errorf("%s: %+v", why, got)
		}
	}
	if got := tt.rule(api.ReasonKeeperLost); got != (api.EndRule{Processes: api.FateEnd, Jobs: api.FateKeep}) {
		t.Errorf("%+v", got)
	}
}

func TestBeginThatCannotBe(t *testing.T) {
	m, h, _ := manager(0)
	for _, req := range []api.BeginRequest{
		{WallMS: -1}, {LeaseMS: -1}, {IdleMS: -1}, {LeftoversMaxMS: -1}, {WallMS: maxClockMS + 1},
		{IdleBy: []api.Activity{api.ActivityCPU}}, {IdleMS: 1, IdleBy: []api.Activity{"mood"}},
		{IdleMS: 1, IdleBy: []api.Activity{api.ActivityCPU, api.ActivityCPU}},
		{Policy: api.EndPolicy{"whim": {}}}, {Policy: api.EndPolicy{api.ReasonKeeperLost: {}}},
		{Policy: api.EndPolicy{api.ReasonStop: {Processes: "spare"}}}, {Policy: api.EndPolicy{api.ReasonStop: {Jobs: "spare"}}},
	} {
		if _, err := m.Begin(t.Context(), root, req); !errors.Is(err, api.ErrBadRequest) {
			t.Errorf("%+v: %v", req, err)
		}
	}
	if len(h.holds) != 0 {
		t.Error("a turn was begun")
	}
}
