package containment

import (
	"strings"
	"testing"
	"time"

	"pinfold.dev/api"
)

// A clock that stands still since the turn is frozen goes on when it is thawed; the
// client's, while the client is there, has not begun.
func TestWhyTellsWhichClocksRun(t *testing.T) {
	due := time.Now().Add(time.Minute)
	wall := api.Clock{Name: api.ClockWall, LimitMS: 90_000, LeftMS: 60_000, Running: true, DueAt: &due}
	still := api.Clock{Name: api.ClockWall, LimitMS: 90_000, LeftMS: 60_000}
	there := api.Clock{Name: api.ClockClient, LimitMS: 30_000, LeftMS: 30_000}
	gone := api.Clock{Name: api.ClockClient, LimitMS: 30_000, LeftMS: 20_000, Running: true, DueAt: &due}
	goneStill := api.Clock{Name: api.ClockClient, LimitMS: 30_000, LeftMS: 20_000}
	for _, c := range []struct {
		name   string
		frozen bool
		clocks []api.Clock
		want   string
	}{
		{"held", false, []api.Clock{wall, there}, "in 1m0s"},
		{"held and frozen", true, []api.Clock{still, there}, "1m0s after it is thawed"},
		{"gone", false, []api.Clock{gone}, "in 20s, unless a client takes or holds it"},
		{"gone and frozen", true, []api.Clock{goneStill}, "20s after it is thawed, unless a client takes or holds it"},
	} {
		v := api.Turn{State: api.StateOpen, Frozen: c.frozen, Clocks: c.clocks, Client: api.Client{Bind: api.BindConnection, AfterMS: 30_000}}
		var when []string
		for _, e := range wouldEnd(v, api.Why{}) {
			when = append(when, e.When)
		}
		want := c.want + "; when nobody holds it open for 30s; when somebody finishes or abandons it"
		if got := strings.Join(when, "; "); got != want {
			t.Errorf("%s: %s; want %s", c.name, got, want)
		}
	}
}
