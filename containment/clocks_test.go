package containment

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pinfold.dev/api"
)

const sec = time.Second

func ms(d time.Duration) int64 { return d.Milliseconds() }

func TestClocksRunOut(t *testing.T) {
	touchOnly := []api.Activity{api.ActivityTouch}
	for _, c := range []struct {
		name string
		req  api.BeginRequest
		do   func(*clocks)
		want api.ClockName
		at   time.Duration
	}{
		{"none", api.BeginRequest{}, nil, "", 0},
		{"wall", api.BeginRequest{WallMS: ms(10 * sec)}, func(c *clocks) { c.touch(9 * sec) }, api.ClockWall, 10 * sec},
		{"lease", api.BeginRequest{LeaseMS: ms(10 * sec)}, func(c *clocks) { c.active(9*sec, api.ActivityCPU) }, api.ClockLease, 10 * sec},
		{"lease, renewed", api.BeginRequest{LeaseMS: ms(10 * sec)}, func(c *clocks) { c.touch(9 * sec) }, api.ClockLease, 19 * sec},
		{"idle", api.BeginRequest{IdleMS: ms(10 * sec), IdleBy: touchOnly}, nil, api.ClockIdle, 10 * sec},
		{"idle, touched", api.BeginRequest{IdleMS: ms(10 * sec), IdleBy: touchOnly}, func(c *clocks) { c.touch(4 * sec) }, api.ClockIdle, 14 * sec},
		{"idle, active otherwise", api.BeginRequest{IdleMS: ms(10 * sec), IdleBy: touchOnly},
			func(c *clocks) { c.active(4*sec, api.ActivityCPU) }, api.ClockIdle, 10 * sec},
		{"the first of two", api.BeginRequest{WallMS: ms(10 * sec), LeaseMS: ms(9 * sec)}, nil, api.ClockLease, 9 * sec},
		{"two at once", api.BeginRequest{WallMS: ms(10 * sec), LeaseMS: ms(10 * sec)}, nil, api.ClockWall, 10 * sec},
		{"frozen for 5", api.BeginRequest{WallMS: ms(10 * sec)}, func(c *clocks) { c.freeze(3 * sec); c.thaw(8 * sec) }, api.ClockWall, 15 * sec},
		{"frozen twice at once", api.BeginRequest{WallMS: ms(10 * sec)},
			func(c *clocks) { c.freeze(3 * sec); c.freeze(5 * sec); c.thaw(8 * sec); c.thaw(9 * sec) }, api.ClockWall, 15 * sec},
		{"touched while frozen", api.BeginRequest{LeaseMS: ms(10 * sec)},
			func(c *clocks) { c.freeze(3 * sec); c.touch(7 * sec); c.thaw(8 * sec) }, api.ClockLease, 18 * sec},
		{"still frozen", api.BeginRequest{WallMS: ms(10 * sec)}, func(c *clocks) { c.freeze(3 * sec) }, "", 0},
		{"client gone at once", api.BeginRequest{Client: api.Client{Bind: api.BindProcess}},
			func(c *clocks) { c.clientGone(3 * sec) }, api.ClockClient, 3 * sec},
		{"client gone for 5", api.BeginRequest{Client: api.Client{Bind: api.BindProcess, AfterMS: ms(5 * sec)}},
			func(c *clocks) { c.clientGone(3 * sec); c.clientGone(4 * sec) }, api.ClockClient, 8 * sec},
		{"client back", api.BeginRequest{Client: api.Client{Bind: api.BindProcess, AfterMS: ms(5 * sec)}},
			func(c *clocks) { c.clientGone(3 * sec); c.clientBack() }, "", 0},
		{"connection, unsaid", api.BeginRequest{Client: api.Client{Bind: api.BindConnection}},
			func(c *clocks) { c.clientGone(0) }, api.ClockClient, connWindow},
		{"ended", api.BeginRequest{WallMS: 1, LeaseMS: 1, IdleMS: 1}, func(c *clocks) { c.end(0) }, "", 0},
		{"leftovers", api.BeginRequest{WallMS: 1, LeftoversMaxMS: ms(10 * sec)},
			func(c *clocks) { c.freeze(0); c.end(3 * sec); c.left(4 * sec) }, api.ClockLeftovers, 14 * sec},
		{"lease, over while there was no service", api.BeginRequest{LeaseMS: ms(20 * sec)},
			func(c *clocks) { c.restarted(100 * sec) }, api.ClockLease, 110 * sec},
		{"a short lease, too", api.BeginRequest{LeaseMS: ms(2 * sec)},
			func(c *clocks) { c.restarted(100 * sec) }, api.ClockLease, 102 * sec},
		{"lease, not over", api.BeginRequest{LeaseMS: ms(80 * sec)},
			func(c *clocks) { c.restarted(30 * sec) }, api.ClockLease, 90 * sec},
		{"wall, over while there was no service", api.BeginRequest{WallMS: ms(20 * sec)},
			func(c *clocks) { c.restarted(100 * sec) }, api.ClockWall, 20 * sec},
	} {
		k := newClocks(0, c.req)
		if c.do != nil {
			c.do(&k)
		}
		if name, at, ok := k.due(1000 * sec); name != c.want || at != c.at || ok != (c.want != "") {
			t.Errorf("%s: %q at %v, want %q at %v", c.name, name, at, c.want, c.at)
		}
		if c.want == "" {
			continue
		}
		if _, _, ok := k.due(c.at - 1); ok {
			t.Errorf("%s: too early", c.name)
		}
		if at, ok := k.wake(false); !ok || at != c.at {
			t.Errorf("%s: wakes at %v, want %v", c.name, at, c.at)
		}
	}
}

func TestNobodyWakesForNothing(t *testing.T) {
	k := newClocks(0, api.BeginRequest{})
	if at, ok := k.wake(false); ok {
		t.Errorf("wakes at %v", at)
	}
	k = newClocks(0, api.BeginRequest{IdleMS: ms(40 * sec), WallMS: ms(100 * sec)})
	if at, ok := k.wake(false); !ok || at != 10*sec {
		t.Errorf("looks at %v", at)
	}
	if at, ok := k.wake(true); !ok || at != 100*sec { // a look that hangs holds nothing up
		t.Errorf("while it looks: %v", at)
	}
}

func TestWhatCountsAsActivity(t *testing.T) {
	req := api.BeginRequest{IdleMS: ms(8 * sec)}
	for _, c := range []struct {
		name   string
		by     []api.Activity
		seen   sample
		active bool
	}{
		{"nothing", nil, sample{}, false},
		{"output", nil, sample{Output: 1}, true},
		{"1 % of a CPU", nil, sample{CPU: 20000}, false},
		{"more", nil, sample{CPU: 20001}, true},
		{"io", nil, sample{IO: 1}, true},
		{"not known", nil, sample{Output: -1, CPU: -1, IO: -1}, false},
		{"output, which does not count", []api.Activity{api.ActivityCPU}, sample{Output: 1}, false},
		{"io, which does not count", []api.Activity{api.ActivityCPU, api.ActivityOutput}, sample{IO: 1}, false},
	} {
		req.IdleBy = c.by
		k := newClocks(0, req)
		c.seen.At = 2 * sec
		k.looked(c.seen)
		want := 8 * sec
		if c.active {
			want += 2 * sec
		}
		if k.Idle.Due != want {
			t.Errorf("%s: due at %v, want %v", c.name, k.Idle.Due, want)
		}
	}
}

// Whatever a turn does and whenever it stops, it is ended for that no sooner than
// it may be, and at most a quarter of the time, or one look, late.
func TestIdleIsAtMostAQuarterLate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		idle := time.Duration(rapid.Int64Range(1, 100_000).Draw(t, "idle")) * time.Millisecond
		k := newClocks(0, api.BeginRequest{IdleMS: ms(idle)})
		var now, last, stood time.Duration
		acts := rapid.SliceOfN(rapid.Int64Range(1, int64(idle)), 0, 20).Draw(t, "pauses")
		seen := sample{}
		for _, pause := range acts {
			next := last + time.Duration(pause)
			for at, ok := k.wake(false); ok && at < next; at, ok = k.wake(false) {
				now = at
				seen.At = now
				k.looked(seen)
				if name, _, over := k.due(now); over {
					t.Fatalf("%s at %v, active at %v, may be idle for %v", name, now, last, idle)
				}
			}
			last = next
			switch rapid.IntRange(0, 2).Draw(t, "how") {
			case 0:
				k.active(last, api.ActivityTouch)
			case 1:
				seen.Output++
			default:
				k.freeze(last)
				d := time.Duration(rapid.Int64Range(0, int64(3*idle)).Draw(t, "frozen"))
				k.active(last, api.ActivityTouch)
				k.thaw(last + d)
				last, stood = last+d, stood+d
			}
			now = last
		}
		for range 20 {
			at, _ := k.wake(false)
			now = max(now, at)
			seen.At = now
			k.looked(seen)
			if _, _, over := k.due(now); over {
				break
			}
		}
		late := max(idle/4, leastLook)
		if now < last+idle || now > last+idle+late {
			t.Fatalf("ended at %v: active at %v, may be idle for %v", now, last, idle)
		}
		if k.Stood != stood {
			t.Fatalf("stood %v, want %v", k.Stood, stood)
		}
	})
}

// A clock that stands still is shown so, and what is shown adds up.
func TestClocksAreShown(t *testing.T) {
	k := newClocks(0, api.BeginRequest{WallMS: ms(10 * sec), LeftoversMaxMS: ms(7 * sec)})
	wall := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	got := k.show(4*sec, wall, true)
	if len(got) != 2 || got[0].Name != api.ClockWall || !got[0].Running || got[0].LeftMS != ms(6*sec) || !got[0].DueAt.Equal(wall.Add(6*sec)) ||
		got[1].Name != api.ClockLeftovers || got[1].Running || got[1].LeftMS != ms(7*sec) || got[1].DueAt != nil {
		t.Errorf("%+v", got)
	}
	k.freeze(5 * sec)
	if got := k.show(9*sec, wall, false); len(got) != 1 || got[0].Running || got[0].LeftMS != ms(5*sec) || got[0].DueAt != nil {
		t.Errorf("frozen: %+v", got)
	}
	if !slices.Equal(k.By, api.Activities()) {
		t.Errorf("%v", k.By)
	}
}

// Records may be behind by what a restart gives on top.
func TestRecordsOfClocksAreRenewed(t *testing.T) {
	for _, c := range []struct {
		req  api.BeginRequest
		age  time.Duration
		want bool
	}{
		{api.BeginRequest{WallMS: 1}, time.Hour, false},
		{api.BeginRequest{LeaseMS: ms(comeBack)}, time.Hour, false}, // a restart gives all of it anyway
		{api.BeginRequest{LeaseMS: ms(80 * sec)}, 9 * sec, false},
		{api.BeginRequest{LeaseMS: ms(80 * sec)}, 11 * sec, true},
		{api.BeginRequest{IdleMS: ms(80 * sec)}, 11 * sec, true},
	} {
		k := newClocks(0, c.req)
		if got := k.behind(c.age); got != c.want {
			t.Errorf("%+v after %v: %v", c.req, c.age, got)
		}
	}
	k := newClocks(0, api.BeginRequest{LeaseMS: ms(80 * sec)})
	was := k // written
	k.touch(10 * sec)
	was.restarted(50 * sec)
	if was.Lease.Due < k.Lease.Due {
		t.Errorf("after a restart due at %v, before that at %v", was.Lease.Due, k.Lease.Due)
	}
}
