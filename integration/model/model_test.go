package model

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"pinfold.dev/api"
)

// turn is a turn as the model knows it.
type turn struct {
	api.Turn
	by       *gateway // who began it
	policy   api.EndPolicy
	over     bool
	frozen   bool
	stoodLo  time.Time // when the freeze was asked for, and when it was answered
	stoodHi  time.Time
	clocks   map[api.Reason]*clock
	asked    map[api.Reason]bool // endings that somebody has asked for
	must     bool                // one of them was answered
	reap     *api.LeftoverPolicy // what finish said
	jobsToo  bool                // what abandon said
	launches []*launch
	jobs     []*job // that are listed with it
	keeper   bool   // it lives
	clashed  bool   // several things came at once
	leftDue  time.Time
}

// clock is one that may end something from a time on, and then does.
type clock struct {
	limit time.Duration
	from  time.Time
}

// launch is a launched process with all that it has started.
type launch struct {
	turn   *turn // nil: of a started job
	id     string
	tokens []*token // the first is the launched process
	job    *job     // that it was made
}

// job is a job as the model knows it.
type job struct {
	api.Job
	listed *turn
	due    time.Time // zero: never
	ended  bool
	tokens []*token
}

func (l *launch) leader() *token { return l.tokens[0] }

// work are the tokens of a turn that are no job's and live.
func (t *turn) work() (out []*token) {
	for _, l := range t.launches {
		out = append(out, l.leaf()...)
	}
	return out
}

// leaf are those of a launch.
func (l *launch) leaf() (out []*token) {
	for _, k := range l.tokens {
		if k.job == nil && !k.gone {
			out = append(out, k)
		}
	}
	return out
}

// late tells that its time is over: it may have ended.
func (j *job) late() bool { return !j.due.IsZero() && !time.Now().Before(j.due) }

func (j *job) alive() (out []*token) {
	for _, k := range j.tokens {
		if !k.gone {
			out = append(out, k)
		}
	}
	return out
}

// at is when clocks of the turn stand: now, or when it was frozen.
func (t *turn) at() time.Time {
	if t.frozen {
		return t.stoodLo
	}
	return time.Now()
}

// may are the reasons for which the turn may be over by now.
func (t *turn) may() []api.Reason {
	var out []api.Reason
	now := time.Now()
	if t.frozen {
		now = t.stoodHi
	}
	for why, c := range t.clocks {
		if !c.from.After(now) {
			out = append(out, why)
		}
	}
	for why, so := range t.asked {
		if so && !slices.Contains(out, why) {
			out = append(out, why)
		}
	}
	return out
}

// bound tells that it has to be over soon.
func (t *turn) bound() bool {
	return t.must || t.due()
}

// due tells that a clock has run out.
func (t *turn) due() bool {
	for _, c := range t.clocks {
		if !t.frozen && !c.from.After(time.Now()) {
			return true
		}
	}
	return false
}

// leftOver tells that the time of what it has left is over.
func (t *turn) leftOver() bool {
	return t.over && !t.leftDue.IsZero() && !time.Now().Before(t.leftDue)
}

// amid notes that something was taken out of it that its receipt may have: it may have
// ended meanwhile.
func (t *turn) amid() {
	if t != nil && !t.over && len(t.may()) > 0 {
		t.clashed = true
	}
}

// touched renews what a touch renews.
func (t *turn) touched(at time.Time, names ...api.Reason) {
	for _, why := range names {
		if c := t.clocks[why]; c != nil {
			c.from = at.Add(c.limit)
		}
	}
}

// thawed lets the clocks go on.
func (t *turn) thawed(asked time.Time) {
	stood := max(0, asked.Sub(t.stoodHi))
	t.frozen = false
	for _, c := range t.clocks {
		c.from = c.from.Add(stood)
	}
}

// rule is what an ending for a reason does.
func (t *turn) rule(why api.Reason) (processes, jobs api.Fate) {
	r := t.policy[why]
	if why == api.ReasonFinished && t.reap != nil {
		r.Processes = map[api.LeftoverPolicy]api.Fate{api.LeftoversKeep: api.FateKeep, api.LeftoversReap: api.FateEnd}[*t.reap]
	}
	if t.jobsToo && why != api.ReasonFinished {
		r.Jobs = api.FateEnd
	}
	return r.Processes, r.Jobs
}

// ended applies the ending that the receipt tells of.
func (t *turn) ended(r api.Receipt) {
	processes, jobs := t.rule(r.Reason)
	t.over, t.frozen = true, false
	if processes == api.FateEnd {
		for _, k := range t.work() {
			k.end()
		}
	} else if t.LeftoversMaxMS > 0 && len(t.work()) > 0 {
		t.leftDue = r.AskedAt.Add(time.Duration(t.LeftoversMaxMS) * time.Millisecond)
	}
	if jobs == api.FateEnd {
		for _, j := range t.jobs {
			for _, k := range j.alive() {
				k.end()
			}
		}
	}
}

// wentWithKeeper tells that nobody was left in the turn but a keeper that was
// killed: systemd removes a scope that is empty, and the next service finds none.
func (t *turn) wentWithKeeper(r api.Receipt) bool {
	return r.Grade == api.GradeScope && !t.keeper && len(t.work()) == 0 && r.State == api.StateLost && r.Reason == api.ReasonKeeperLost
}

func (t *turn) String() string {
	s := "open"
	if t.over {
		s = "over"
	}
	if t.frozen {
		s += ", frozen"
	}
	return fmt.Sprintf("turn %s (%s, uid %d, session %q)", t.ID, s, t.Owner, t.Session)
}

// names lists tokens for people.
func names(ks []*token) string {
	var out []string
	for _, k := range ks {
		out = append(out, fmt.Sprintf("%s (pid %d)", k.File[strings.LastIndexByte(k.File, '/')+1:], k.pid()))
	}
	return strings.Join(out, ", ")
}
