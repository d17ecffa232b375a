package containment

import (
	"slices"

	"pinfold.dev/api"
)

// The end policy of a turn is a table: api.DefaultPolicy, with what the turn
// says otherwise. What a request for an ending says itself stands above it.

// rule is what happens when the turn ends for a reason; the lock is held.
func (t *turn) rule(why api.Reason) api.EndRule {
	r, ok := api.DefaultPolicy().With(t.view.Policy)[why]
	if !ok { // nobody can ask for any other
		r = api.EndRule{Processes: api.FateEnd, Jobs: api.FateKeep}
	}
	if why == api.ReasonFinished {
		r.Processes = fateOf(t.view.Leftovers)
	}
	return r
}

// fateOf is a policy for leftovers in the words of the table.
func fateOf(l api.LeftoverPolicy) api.Fate {
	if l == api.LeftoversReap {
		return api.FateEnd
	}
	return api.FateKeep
}

// leftoversOf is what happens to leftovers of a turn that asks so: what it says
// of them stands above the row for finished.
func leftoversOf(req api.BeginRequest) api.LeftoverPolicy {
	switch {
	case req.Leftovers != "":
		return req.Leftovers
	case req.Policy[api.ReasonFinished].Processes == api.FateEnd:
		return api.LeftoversReap
	}
	return api.LeftoversKeep
}

// checkLife refuses clocks, clients and policies that cannot be.
func checkLife(req api.BeginRequest) error {
	for _, k := range []struct {
		field string
		ms    int64
	}{{"wall_ms", req.WallMS}, {"lease_ms", req.LeaseMS}, {"idle_ms", req.IdleMS}, {"leftovers_max_ms", req.LeftoversMaxMS},
		{"client.after_ms", req.Client.AfterMS}} {
		if k.ms < 0 || k.ms > maxClockMS {
			return api.Errorf(api.CodeBadRequest, "%s is %d, not between 0 and %d", k.field, k.ms, int64(maxClockMS))
		}
	}
	if len(req.IdleBy) > 0 && req.IdleMS == 0 {
		return api.Errorf(api.CodeBadRequest, "idle_by is given, but no idle_ms")
	}
	for i, a := range req.IdleBy {
		if !slices.Contains(api.Activities(), a) {
			return api.Errorf(api.CodeBadRequest, "idle_by has %q, not one of %v", a, api.Activities())
		}
		if slices.Contains(req.IdleBy[:i], a) {
			return api.Errorf(api.CodeBadRequest, "idle_by has %q twice", a)
		}
	}
	if req.Supersede && req.Session == "" {
		return api.Errorf(api.CodeBadRequest, "supersede is given, but no session").WithRemedy("a blank session is none, and so has no other turns")
	}
	if len(req.IdempotencyKey) > maxLabel {
		return api.Errorf(api.CodeBadRequest, "idempotency_key is %d bytes long, at most %d are taken", len(req.IdempotencyKey), maxLabel)
	}
	if err := checkClient(req.Client); err != nil {
		return err
	}
	return checkPolicy(req.Policy)
}

func checkClient(c api.Client) error {
	switch c.Bind {
	case "", api.BindNone:
		if c.OnGone != "" || c.AfterMS != 0 {
			return api.Errorf(api.CodeBadRequest, "client.on_gone or client.after_ms is given, but client.bind is none")
		}
	case api.BindProcess, api.BindConnection:
	default:
		return api.Errorf(api.CodeBadRequest, "client.bind is %q, not none, process or connection", c.Bind)
	}
	if c.OnGone != "" && c.OnGone != api.OnGoneAbandon && c.OnGone != api.OnGoneDetach {
		return api.Errorf(api.CodeBadRequest, "client.on_gone is %q, not abandon or detach", c.OnGone)
	}
	return nil
}

func checkPolicy(p api.EndPolicy) error {
	known := api.DefaultPolicy()
	for why, r := range p {
		if _, ok := known[why]; !ok {
			return api.Errorf(api.CodeBadRequest, "policy has a row for %q, which is no reason that a turn is ended for", why).
				WithRemedy("see GET /v1/policy for the rows")
		}
		for _, f := range []api.Fate{r.Processes, r.Jobs} {
			if f != "" && f != api.FateEnd && f != api.FateKeep {
				return api.Errorf(api.CodeBadRequest, "policy for %s says %q, not end or keep", why, f)
			}
		}
	}
	return nil
}

// reasonOf is why a turn ends whose clock has run out.
func reasonOf(name api.ClockName) api.Reason {
	switch name {
	case api.ClockWall:
		return api.ReasonWall
	case api.ClockLease:
		return api.ReasonLeaseExpired
	case api.ClockClient:
		return api.ReasonClientGone
	}
	return api.ReasonIdle
}
