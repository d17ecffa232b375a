package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"pinfold.dev/api"
)

// lifeFlags are what begin says of a turn's clocks, its client and its end.
type lifeFlags struct {
	wall, lease, idle, idleBy          string
	client, onClientGone, clientWindow string
	leftoversMax, key                  string
	policy                             []string
	supersede                          bool
}

func (f *lifeFlags) register(c *cobra.Command) {
	fs := c.Flags()
	fs.StringVar(&f.wall, "wall", "", "end the turn when it is older than this, such as 2h")
	fs.StringVar(&f.lease, "lease", "", "end it when \"pinfold touch\" has not renewed it for so long")
	fs.StringVar(&f.idle, "idle", "", "end it when nothing was seen of it for so long, such as 10m")
	fs.StringVar(&f.idleBy, "idle-by", "", "what counts for --idle, with commas: touch, output, cpu, io (default all)")
	fs.StringVar(&f.client, "client", "", "bind it to a client: none (default), or connection, which holds it by GET .../hold")
	fs.StringVar(&f.onClientGone, "on-client-gone", "", "with --client: when that has gone, abandon (default) or detach")
	fs.StringVar(&f.clientWindow, "client-window", "", "with --client: how long that may be gone (default 10s)")
	fs.StringVar(&f.leftoversMax, "leftovers-max", "", "end what it left running so long after its end")
	fs.BoolVar(&f.supersede, "supersede", false, "end the open turns of the same session, as superseded")
	fs.StringArrayVar(&f.policy, "policy", nil, "what differs from \"pinfold policy\": REASON=processes:keep,jobs:end (repeatable)")
	fs.StringVar(&f.key, "key", "", "the same request with the same key begins one turn while that is open")
}

// enter says it in a request.
func (f *lifeFlags) enter(c *cobra.Command, req *api.BeginRequest) (err error) {
	for _, x := range []struct {
		name, said string
		to         *int64
	}{
		{"wall", f.wall, &req.WallMS}, {"lease", f.lease, &req.LeaseMS}, {"idle", f.idle, &req.IdleMS},
		{"client-window", f.clientWindow, &req.Client.AfterMS}, {"leftovers-max", f.leftoversMax, &req.LeftoversMaxMS},
	} {
		if x.said == "" {
			continue
		}
		d, err := parseDuration(x.said)
		if err != nil || d.Milliseconds() < 1 {
			return usageError(c, "--%s: %q is not a time such as 90s or 10m", x.name, x.said)
		}
		*x.to = d.Milliseconds()
	}
	if f.idleBy != "" {
		for w := range strings.SplitSeq(f.idleBy, ",") {
			if !slices.Contains(api.Activities(), api.Activity(w)) {
				return usageError(c, "--idle-by: %q is none of %v", w, api.Activities())
			}
			req.IdleBy = append(req.IdleBy, api.Activity(w))
		}
	}
	switch req.Client.Bind = api.ClientBind(f.client); req.Client.Bind {
	case "", api.BindNone, api.BindConnection:
	case api.BindProcess:
		return usageError(c, "--client process: that would be this command, which ends at once; begin the turn from the process itself, through the API")
	default:
		return usageError(c, "--client: %q is neither none nor connection", f.client)
	}
	switch req.Client.OnGone = api.OnGone(f.onClientGone); req.Client.OnGone {
	case "", api.OnGoneAbandon, api.OnGoneDetach:
	default:
		return usageError(c, "--on-client-gone: %q is neither abandon nor detach", f.onClientGone)
	}
	if (f.onClientGone != "" || f.clientWindow != "") && (f.client == "" || req.Client.Bind == api.BindNone) {
		return usageError(c, "--on-client-gone and --client-window say what becomes of a bound turn: give --client connection, too")
	}
	req.Supersede, req.IdempotencyKey = f.supersede, f.key
	req.Policy, err = endPolicy(c, f.policy)
	return err
}

// endPolicy turns REASON=processes:FATE,jobs:FATE words into rows.
func endPolicy(c *cobra.Command, words []string) (api.EndPolicy, error) {
	if len(words) == 0 {
		return nil, nil
	}
	p := api.EndPolicy{}
	known := api.DefaultPolicy()
	for _, w := range words {
		why, rule, _ := strings.Cut(w, "=")
		if _, ok := known[api.Reason(why)]; !ok {
			return nil, usageError(c, "--policy: %q is no reason; see pinfold policy", why)
		}
		r := p[api.Reason(why)]
		for part := range strings.SplitSeq(rule, ",") {
			what, fate, _ := strings.Cut(part, ":")
			if fate != string(api.FateEnd) && fate != string(api.FateKeep) {
				return nil, usageError(c, "--policy: %q is not such as stop=processes:keep,jobs:end", w)
			}
			switch what {
			case "processes":
				r.Processes = api.Fate(fate)
			case "jobs":
				r.Jobs = api.Fate(fate)
			default:
				return nil, usageError(c, "--policy: %q is neither processes nor jobs", what)
			}
		}
		p[api.Reason(why)] = r
	}
	return p, nil
}
