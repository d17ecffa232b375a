package containment

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pinfold.dev/api"
)

// Whatever a record says, no clock of it runs out before a turn that has lived
// since then could have had it run out, and nothing overflows.
func TestImpossibleClocks(t *testing.T) {
	edge := []time.Duration{math.MinInt64, math.MinInt64 + 1, -1, 0, 1, sec, maxClock, maxClock + 1, math.MaxInt64 / 2, math.MaxInt64 - 1, math.MaxInt64}
	rapid.Check(t, func(t *rapid.T) {
		now := time.Duration(rapid.Int64Range(int64(sec), int64(1000*24*time.Hour)).Draw(t, "now"))
		some := rapid.OneOf(rapid.SampledFrom(edge), rapid.Custom(func(t *rapid.T) time.Duration { return time.Duration(rapid.Int64().Draw(t, "d")) }))
		one := func(name string) clock {
			return clock{Limit: some.Draw(t, name+" limit"), Due: some.Draw(t, name+" due"), On: rapid.Bool().Draw(t, name+" on")}
		}
		c := clocks{Wall: one("wall"), Lease: one("lease"), Idle: one("idle"), Client: one("client"), Leftovers: one("leftovers"),
			Frozen: rapid.Bool().Draw(t, "frozen"), Since: some.Draw(t, "since"), Stood: some.Draw(t, "stood"),
			Last: sample{At: some.Draw(t, "last"), Output: 7, CPU: 7, IO: 7}}
		if rapid.Bool().Draw(t, "by") {
			c.By = []api.Activity{"nonsense"}
		}
		was := c
		notes := c.mend(now)
		for i, k := range c.named() {
			old := was.named()[i]
			if k.Limit < 0 || k.Limit > maxClock || k.On && (k.Due < k.Limit || k.Due > now+2*k.Limit+time.Minute) {
				t.Fatalf("%s is %+v", k.name, *k.clock)
			}
			if *k.clock != *old.clock && len(notes) == 0 {
				t.Fatalf("%s was %+v, is %+v, and nobody is told", k.name, *old.clock, *k.clock)
			}
			if k.On && k.Due != old.Due && k.Due < c.at(now)+k.Limit {
				t.Fatalf("%s is put right to %s, %s from now", k.name, k.Due, k.Due-now)
			}
		}
		if again := c.mend(now); len(again) != 0 {
			t.Fatalf("put right, it is put right again: %q", again)
		}
		mended := c
		c.restarted(now)
		c.thaw(now)
		for i, k := range c.named() {
			if old := mended.named()[i]; k.On && k.Due < min(old.Due, now+old.Limit) {
				t.Fatalf("after a restart %s runs out at %s, not at %s", k.name, k.Due, old.Due)
			}
		}
		if c.Idle.On && c.Idle.Limit > 0 { // what it has done meanwhile is looked at first
			if name, _, over := c.due(now); over && name == api.ClockIdle {
				t.Fatal("idle at once")
			}
		}
	})
}

// Good clocks are left alone, whatever has happened to them.
func TestPossibleClocks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Duration(rapid.Int64Range(0, int64(1000*24*time.Hour)).Draw(t, "now"))
		limit := rapid.Int64Range(1, maxClockMS)
		c := newClocks(now, api.BeginRequest{WallMS: limit.Draw(t, "wall"), LeaseMS: limit.Draw(t, "lease"), IdleMS: limit.Draw(t, "idle"),
			LeftoversMaxMS: limit.Draw(t, "left"), Client: api.Client{Bind: api.BindConnection, AfterMS: limit.Draw(t, "after")}})
		for range rapid.IntRange(0, 20).Draw(t, "steps") {
			now += time.Duration(rapid.Int64Range(0, int64(24*time.Hour)).Draw(t, "later"))
			switch rapid.IntRange(0, 6).Draw(t, "step") {
			case 0:
				c.touch(now)
			case 1:
				c.freeze(now)
			case 2:
				c.thaw(now)
			case 3:
				c.clientGone(now)
			case 4:
				c.clientBack()
			case 5:
				c.looked(sample{At: now})
			default:
				c.restarted(now)
			}
			if notes := c.mend(now); len(notes) != 0 {
				t.Fatalf("told %q", notes)
			}
		}
	})
}

// A counter that is behind what the record says counts as something that was done.
func TestCountersThatGoBack(t *testing.T) {
	c := newClocks(0, api.BeginRequest{IdleMS: ms(40 * sec)})
	c.Last = sample{Output: math.MaxInt64, CPU: math.MaxInt64, IO: math.MaxInt64}
	c.looked(sample{At: 39 * sec, Output: 5, CPU: 5, IO: 5})
	if name, _, over := c.due(41 * sec); over {
		t.Errorf("%s is over", name)
	}
}
