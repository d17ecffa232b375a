package containment

import (
	"slices"
	"time"

	"pinfold.dev/api"
)

// clocks are a turn's clocks as a value: what happens is told to it with the
// time, and due tells what has run out. It has no timer and no lock. All times
// are on the host's monotonic clock, which goes on while there is no service, so
// that a record of them means the same to the next one.
type clocks struct {
	Wall      clock `json:"wall,omitzero"`
	Lease     clock `json:"lease,omitzero"`
	Idle      clock `json:"idle,omitzero"`
	Client    clock `json:"client,omitzero"` // runs while the client is gone
	Leftovers clock `json:"leftovers,omitzero"`
	// By is what counts as activity.
	By []api.Activity `json:"by,omitempty"`
	// Frozen tells that all stand still, since Since; Stood is how long they have
	// stood still before that.
	Frozen bool          `json:"frozen,omitempty"`
	Since  time.Duration `json:"since_ns,omitempty"`
	Stood  time.Duration `json:"stood_ns,omitempty"`
	// Last is what was seen when output, CPU and I/O were looked at.
	Last sample `json:"last,omitzero"`
}

// clock is one of them: a limit, and, while it is On, when it runs out.
type clock struct {
	Limit time.Duration `json:"limit_ns,omitempty"`
	Due   time.Duration `json:"due_ns,omitempty"`
	On    bool          `json:"on,omitempty"`
}

func (c *clock) start(now time.Duration) { c.Due, c.On = now+c.Limit, true }

// sample is how far a turn's output, CPU and I/O were at a time; -1 is not
// known. To look takes its time, on a busy machine much: what came before At is in it
// for sure, what came after Until is not.
type sample struct {
	At     time.Duration `json:"at_ns,omitempty"`
	Until  time.Duration `json:"until_ns,omitempty"` // 0: At
	Output int64         `json:"output,omitempty"`   // bytes
	CPU    int64         `json:"cpu_us,omitempty"`   // microseconds
	IO     int64         `json:"io,omitempty"`       // bytes
}

// end is when all of it was there.
func (s sample) end() time.Duration { return max(s.At, s.Until) }

// Bounds of the clocks.
const (
	leastLook  = 50 * time.Millisecond // between two looks at what a turn does
	connWindow = 10 * time.Second      // for a client to hold its turn again, unsaid
	comeBack   = 10 * time.Second      // for clients to come back to a service that was restarted
	maxClockMS = 10 * 366 * 24 * 3600_000
)

// newClocks are the clocks of a turn that begins now.
func newClocks(now time.Duration, req api.BeginRequest) clocks {
	ms := func(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
	c := clocks{Wall: clock{Limit: ms(req.WallMS)}, Lease: clock{Limit: ms(req.LeaseMS)}, Idle: clock{Limit: ms(req.IdleMS)},
		Leftovers: clock{Limit: ms(req.LeftoversMaxMS)}, By: req.IdleBy, Last: sample{At: now}}
	if len(c.By) == 0 {
		c.By = api.Activities()
	}
	for _, k := range []*clock{&c.Wall, &c.Lease, &c.Idle} {
		if k.Limit > 0 {
			k.start(now)
		}
	}
	switch c.Client.Limit = ms(req.Client.AfterMS); {
	case req.Client.OnGone == api.OnGoneDetach:
		c.Client.Limit = 0 // nobody waits for it
	case req.Client.Bind == api.BindConnection && req.Client.AfterMS == 0:
		c.Client.Limit = connWindow
	}
	return c
}

// at is now, or when they were frozen.
func (c *clocks) at(now time.Duration) time.Duration {
	if c.Frozen {
		return c.Since
	}
	return now
}

// touch says that the turn is wanted.
func (c *clocks) touch(now time.Duration) {
	if c.Lease.On {
		c.Lease.start(c.at(now))
	}
	c.active(now, api.ActivityTouch)
}

// active says that something of a kind has shown.
func (c *clocks) active(now time.Duration, a api.Activity) {
	if c.Idle.On && slices.Contains(c.By, a) {
		c.Idle.start(c.at(now))
	}
}

// freeze lets all stand still from now on.
func (c *clocks) freeze(now time.Duration) {
	if !c.Frozen {
		c.Frozen, c.Since = true, now
	}
}

// thaw lets them go on where they stood.
func (c *clocks) thaw(now time.Duration) {
	if !c.Frozen {
		return
	}
	stood := max(0, now-c.Since)
	c.Frozen, c.Since, c.Stood = false, 0, c.Stood+stood
	for _, k := range c.all() {
		if k.On {
			k.Due += stood
		}
	}
	c.Last.At, c.Last.Until = c.Last.At+stood, c.Last.end()+stood
}

// clientGone says that the client is not there.
func (c *clocks) clientGone(now time.Duration) {
	if !c.Client.On {
		c.Client.start(c.at(now))
	}
}

// clientBack says that it is there.
func (c *clocks) clientBack() { c.Client.Due, c.Client.On = 0, false }

// end stops what can end an open turn.
func (c *clocks) end(now time.Duration) {
	c.thaw(now)
	for _, k := range []*clock{&c.Wall, &c.Lease, &c.Idle, &c.Client} {
		k.Due, k.On = 0, false
	}
}

// left says that leftovers run on from now on.
func (c *clocks) left(now time.Duration) {
	if c.Leftovers.Limit > 0 && !c.Leftovers.On {
		c.Leftovers.start(now)
	}
}

// restarted says that there was no service for a while, up to now: nobody could
// touch the turn or hold it then, and what was done just before may not be
// recorded (see slack). Clients are given time to come back.
func (c *clocks) restarted(now time.Duration) {
	at := c.at(now)
	for _, k := range []*clock{&c.Lease, &c.Idle} {
		k.Due = max(min(k.Due, at+k.Limit)+k.slack(), at+min(k.Limit, comeBack))
	}
	c.Client.Due = max(c.Client.Due, at+min(c.Client.Limit, comeBack))
}

// slack is how far a record may be behind in what renews a clock: after a
// restart that much is given on top.
func (c *clock) slack() time.Duration { return c.Limit / 8 }

// behind tells whether a record of that age is to be renewed.
func (c *clocks) behind(age time.Duration) bool {
	for _, k := range []*clock{&c.Lease, &c.Idle} {
		if k.On && k.Limit > comeBack && age > k.slack() {
			return true
		}
	}
	return false
}

// looks tells whether output, CPU or I/O have to be looked at.
func (c *clocks) looks() bool {
	return c.Idle.On && slices.ContainsFunc(c.By, func(a api.Activity) bool { return a != api.ActivityTouch })
}

// lookAt is when to look next: often enough that an ending for want of activity
// is at most a quarter of the time late.
func (c *clocks) lookAt() time.Duration {
	return min(c.Last.end()+max(c.Idle.Limit/4, leastLook), c.Idle.Due)
}

// looked says what was seen of what counts. Something that has moved did so at some
// time since the last look; it counts as of the end of this one.
func (c *clocks) looked(s sample) {
	if c.Frozen {
		return
	}
	moved := func(was, is, more int64) bool { // what has gone back was not counted as now
		return was >= 0 && is >= 0 && (is-was > more || is < was)
	}
	was := c.Last
	if moved(was.Output, s.Output, 0) {
		c.active(s.end(), api.ActivityOutput)
	}
	if moved(was.CPU, s.CPU, (s.end()-was.end()).Microseconds()/100) { // 1 % of one CPU
		c.active(s.end(), api.ActivityCPU)
	}
	if moved(was.IO, s.IO, 0) {
		c.active(s.end(), api.ActivityIO)
	}
	c.Last = s
}

// named are the clocks with their names, those that end a turn in the order in
// which they do when several have run out.
func (c *clocks) named() []namedClock {
	return []namedClock{{api.ClockWall, &c.Wall}, {api.ClockLease, &c.Lease}, {api.ClockClient, &c.Client},
		{api.ClockIdle, &c.Idle}, {api.ClockLeftovers, &c.Leftovers}}
}

type namedClock struct {
	name api.ClockName
	*clock
}

func (c *clocks) all() []*clock {
	return []*clock{&c.Wall, &c.Lease, &c.Client, &c.Idle, &c.Leftovers}
}

// due tells which clock has run out, the first one first, and when it did. One
// that says idle has been looked at since: a look that was begun before, however late
// it ended, may have missed what came just before.
func (c *clocks) due(now time.Duration) (name api.ClockName, at time.Duration, ok bool) {
	if c.Frozen {
		return "", 0, false
	}
	for _, k := range c.named() {
		over := k.On && k.Due <= now
		if k.name == api.ClockIdle && c.looks() {
			over = over && c.Last.At >= k.Due
		}
		if over && (!ok || k.Due < at) {
			name, at, ok = k.name, k.Due, true
		}
	}
	return name, at, ok
}

// wake is when due, or a look, has something new to tell. While a look is under
// way, idle has not.
func (c *clocks) wake(looking bool) (at time.Duration, ok bool) {
	if c.Frozen {
		return 0, false
	}
	for _, k := range c.named() {
		if !k.On || (k.name == api.ClockIdle && looking) {
			continue
		}
		next := k.Due
		if k.name == api.ClockIdle && c.looks() {
			next = c.lookAt()
		}
		if !ok || next < at {
			at, ok = next, true
		}
	}
	return at, ok
}

// show is what callers see: those that run, and with idle ones also those that
// could.
func (c *clocks) show(now time.Duration, wall time.Time, idle bool) []api.Clock {
	var out []api.Clock
	for _, k := range c.named() {
		if !k.On && (!idle || k.Limit == 0) {
			continue
		}
		v := api.Clock{Name: k.name, LimitMS: k.Limit.Milliseconds(), LeftMS: k.Limit.Milliseconds(), Running: k.On && !c.Frozen}
		if k.On {
			left := max(0, k.Due-c.at(now))
			v.LeftMS = left.Milliseconds()
			if v.Running {
				at := wall.Add(left).UTC().Round(0)
				v.DueAt = &at
			}
		}
		out = append(out, v)
	}
	return out
}
