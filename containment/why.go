package containment

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"pinfold.dev/api"
)

// Why tells why a turn is as it is, and what would change that.
func (m *Manager) Why(ctx context.Context, id string) (api.Why, error) {
	t, ok := m.live(id)
	if !ok {
		r, err := m.ended(id)
		if err != nil {
			return api.Why{}, err
		}
		t = newTurn(r.Turn)
		t.receipt, t.ending = r.Receipt, r.Ending
	}
	t.mu.Lock()
	v := t.snapshot()
	w := api.Why{Turn: id, State: v.State, Epoch: v.Epoch, Reason: v.Reason, Frozen: v.Frozen, Client: v.Client, Degraded: v.Degraded,
		Jobs: slices.Clone(v.Jobs), Grade: v.Grade, Policy: api.DefaultPolicy().With(v.Policy), Clocks: []api.Clock{}, Ends: []api.WouldEnd{},
		Targets: []api.Target{}, Servers: []api.Server{}}
	if t.ending != nil {
		a := t.ending.Actor
		w.Reason, w.Actor = t.ending.Reason, &a
	}
	w.Clocks = append(w.Clocks, v.Clocks...)
	w.Because = t.because(v)
	h, rule := t.hold, t.rule(api.ReasonStop) // as who abandons it without a reason
	t.mu.Unlock()
	if w.Jobs == nil {
		w.Jobs = []string{}
	}
	if h != nil {
		var err error
		if w.Targets, w.Servers, w.ServedBy, err = m.lookAround(ctx, t, h); err != nil {
			w.Because = append(w.Because, "not everything could be looked at: "+err.Error())
		}
		if err := h.Reached(); err != nil {
			w.Because = append(w.Because, "what was launched in it may be more than is known here: "+err.Error())
		}
		if !v.State.Terminal() {
			byRule(w.Targets, rule, "the policy for "+string(api.ReasonStop)+" keeps processes")
		}
	}
	w.Ends = wouldEnd(v, w)
	for _, s := range w.Servers {
		w.Because = append(w.Because, fmt.Sprintf("process %d (%s) serves %s to %d processes outside the turn; ending the turn ends it, unless it is made a job first",
			s.PID, s.Comm, s.Socket, len(s.Clients)))
	}
	for _, s := range w.ServedBy {
		w.Because = append(w.Because, s.Words())
	}
	return w, nil
}

// because says why the turn is in its state, in words; the lock is held.
func (t *turn) because(v api.Turn) []string {
	var out []string
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	running := 0
	for _, p := range v.Processes {
		if p.Status.State == api.ProcessRunning {
			running++
		}
	}
	switch v.State {
	case api.StateOpen:
		say("it was begun %s ago and nobody has ended it; %s", ago(v.CreatedAt), plural(running, "launched process runs", "launched processes run"))
	case api.StateFinishing, api.StateEnding:
		say("it is being ended: %s", t.whoEnds())
	case api.StateUnkillable:
		say("%s; %s could not be ended, and it stays open until they go", t.whoEnds(), plural(len(v.Survivors), "process", "processes"))
		for _, s := range v.Survivors {
			say("process %d (%s) is in state %s, waiting in %s", s.PID, s.Comm, s.State, cmp.Or(s.WaitChannel, "unknown"))
		}
	case api.StateFinished, api.StateAbandoned:
		say("%s, and was seen to be over", t.whoEnds())
		if t.receipt != nil && len(t.receipt.Leftovers) > 0 && t.receipt.LeftoversEndedAt == nil {
			say("%s left running by its policy", plural(len(t.receipt.Leftovers), "process was", "processes were"))
		}
		if t.liveJobs() {
			say("its keeper stays, because jobs that were made of its processes run on")
		}
	case api.StateLost:
		say("nobody can hold it any more")
		if t.receipt != nil {
			out = append(out, t.receipt.Notes...)
		}
	}
	for _, p := range v.Processes {
		if a := p.Adopted; a != nil && p.Status.State == api.ProcessRunning {
			how := "by its identity alone, and what it forks is not"
			if a.Moved > 0 {
				how = "in the turn's cgroup"
			}
			say("%s ran before and was adopted %s ago, by uid %d (process %d); it is held %s", p.ID, ago(a.At), a.By.UID, a.By.PID, how)
		}
	}
	if v.Frozen {
		say("it is frozen: its processes and its clocks stand still")
	}
	if t.hold == nil && !v.State.Terminal() {
		say("it cannot be verified since the service was restarted: nothing in it is signalled")
	}
	if t.lost != "" {
		say("its keeper is gone (%s): it can be ended, but nothing can be launched in it", t.lost)
	}
	return out
}

// whoEnds says who ended the turn, and for what; the lock is held.
func (t *turn) whoEnds() string {
	e := t.ending
	if e == nil {
		return "it was ended"
	}
	who := fmt.Sprintf("uid %d (process %d)", e.Actor.UID, e.Actor.PID)
	if e.Actor.Name != "" {
		who = e.Actor.Name + " itself"
	}
	return fmt.Sprintf("%s asked for it %s ago, for the reason %s", who, ago(e.AskedAt), e.Reason)
}

func ago(at time.Time) string { return time.Since(at).Round(time.Millisecond).String() }

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// clockReasons is which reason each clock ends a turn for.
var clockReasons = map[api.ClockName]api.Reason{
	api.ClockWall: api.ReasonWall, api.ClockLease: api.ReasonLeaseExpired, api.ClockIdle: api.ReasonIdle, api.ClockClient: api.ReasonClientGone,
}

// wouldEnd lists what would end a turn, the soonest first.
func wouldEnd(v api.Turn, w api.Why) []api.WouldEnd {
	out := []api.WouldEnd{}
	if v.State != api.StateOpen {
		return out
	}
	for _, c := range v.Clocks {
		why, ok := clockReasons[c.Name]
		if !ok {
			continue
		}
		if !c.Running && (!v.Frozen || c.Name == api.ClockClient && c.LeftMS == c.LimitMS) {
			continue // not started: the client is there
		}
		when := fmt.Sprintf("in %s", (time.Duration(c.LeftMS) * time.Millisecond).Round(time.Millisecond))
		if !c.Running {
			when = fmt.Sprintf("%s after it is thawed", time.Duration(c.LeftMS)*time.Millisecond)
		}
		switch c.Name {
		case api.ClockLease:
			when += ", unless POST …/touch renews the lease"
		case api.ClockIdle:
			when += ", unless it shows " + activities(v.IdleBy)
		case api.ClockClient:
			when += ", unless a client takes or holds it"
		}
		out = append(out, api.WouldEnd{Reason: why, When: when, At: c.DueAt})
	}
	slices.SortStableFunc(out, func(a, b api.WouldEnd) int {
		if a.At == nil || b.At == nil {
			return cmp.Compare(b2i(a.At == nil), b2i(b.At == nil))
		}
		return a.At.Compare(*b.At)
	})
	if v.Client.Bind == api.BindProcess && v.Client.OnGone != api.OnGoneDetach {
		out = append(out, api.WouldEnd{Reason: api.ReasonClientGone, When: "when its client's process has gone" + after(v.Client)})
	}
	if v.Client.Bind == api.BindConnection && v.Client.OnGone != api.OnGoneDetach {
		out = append(out, api.WouldEnd{Reason: api.ReasonClientGone, When: "when nobody holds it open" + after(v.Client)})
	}
	if v.OutputMax > 0 && v.OnOutputMax == api.OutputStop {
		out = append(out, api.WouldEnd{Reason: api.ReasonLimit, When: fmt.Sprintf("when it has written %d bytes", v.OutputMax)})
	}
	return append(out, api.WouldEnd{Reason: api.ReasonFinished, When: "when somebody finishes or abandons it"})
}

func after(c api.Client) string {
	if c.AfterMS == 0 {
		return ""
	}
	return fmt.Sprintf(" for %s", time.Duration(c.AfterMS)*time.Millisecond)
}

func activities(by []api.Activity) string {
	if len(by) == 0 {
		by = api.Activities()
	}
	words := make([]string, len(by))
	for i, a := range by {
		words[i] = string(a)
	}
	return strings.Join(words, ", ")
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}
