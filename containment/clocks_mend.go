package containment

import (
	"fmt"
	"slices"
	"time"

	"pinfold.dev/api"
)

// A record's clocks are times on the monotonic clock of this boot, which began at
// 0 and has come to now. What cannot be, because the record was damaged or forged,
// is put right so that no turn ends early for it, and told.

// maxClock is the longest that a clock may be asked to run.
const maxClock = maxClockMS * time.Millisecond

// mend puts right what cannot be, and says what that was.
func (c *clocks) mend(now time.Duration) (notes []string) {
	note := func(name api.ClockName, format string, args ...any) {
		notes = append(notes, fmt.Sprintf("the record's %s clock cannot be: %s", name, fmt.Sprintf(format, args...)))
	}
	if c.Frozen && (c.Since < 0 || c.Since > now) {
		notes = append(notes, fmt.Sprintf("the record cannot be: frozen since %s, it is %s; taken as now", c.Since, now))
		c.Since = now
	}
	if c.Stood < 0 || c.Stood > now {
		notes = append(notes, fmt.Sprintf("the record cannot be: it has stood still for %s of %s; taken as for none", c.Stood, now))
		c.Stood = 0
	}
	at := c.at(now)
	for _, k := range c.named() {
		switch {
		case k.Limit > maxClock:
			note(k.name, "its limit is %s; taken as %s", k.Limit, maxClock)
			k.Limit = maxClock
		case k.Limit < 0, k.Limit == 0 && k.On && k.name != api.ClockClient:
			note(k.name, "it runs with a limit of %s; it is stopped", k.Limit)
			*k.clock = clock{}
		}
		if due := k.mend(at); due != k.Due {
			note(k.name, "it runs out at %s, of %s, and it is %s; it begins anew", k.Due, k.Limit, at)
			k.Due = due
		}
	}
	if c.Last.At < 0 || c.Last.At > now || c.Last.Until < 0 || c.Last.Until > now {
		c.Last = sample{At: at, Output: -1, CPU: -1, IO: -1}
	}
	c.By = slices.DeleteFunc(c.By, func(a api.Activity) bool { return !slices.Contains(api.Activities(), a) })
	if c.Idle.On && len(c.By) == 0 {
		c.By = api.Activities()
	}
	return notes
}

// mend is when a clock runs out: when it says, unless no clock could.
func (c *clock) mend(at time.Duration) time.Duration {
	switch {
	case !c.On, dueCanBe(c.Due, c.Limit, at):
		return c.Due
	}
	return at + c.Limit
}

// dueCanBe tells whether a clock with a limit, begun at 0 at the earliest and at
// the latest now, may run out at a time. Restarts give a little on top.
func dueCanBe(due, limit, now time.Duration) bool {
	return due >= limit && due <= now+2*limit+time.Minute
}

// mendDeadline is a process's deadline, or 0 where it cannot be: then there is none.
func mendDeadline(due, now time.Duration) time.Duration {
	if due < 0 || due > now+maxClock {
		return 0
	}
	return due
}

// mendClocks puts a turn's clocks right, those of its jobs, too. The lock is held,
// or nobody knows the turn yet.
func (t *turn) mendClocks() {
	now := t.clock()
	for _, n := range t.clocks.mend(now) {
		t.view.Degraded = append(t.view.Degraded, n)
		t.tell(api.EventDegraded, n, func(e *api.Event) { e.Message = n })
	}
	for _, j := range t.jobs {
		limit := min(time.Duration(min(max(j.MaxMS, 0), maxClockMS))*time.Millisecond, maxClock)
		if j.Due != 0 && j.EndedAt == nil && (limit == 0 || !dueCanBe(j.Due, limit, now)) {
			n := fmt.Sprintf("the record's clock of the job cannot be: it runs out at %s, of %s, and it is %s; it begins anew", j.Due, limit, now)
			j.Due = 0
			if limit > 0 {
				j.Due = now + limit
			}
			j.Notes = append(j.Notes, n)
		}
	}
}
