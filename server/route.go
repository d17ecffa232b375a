package server

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"pinfold.dev/api"
)

// route is one row of the API: what is asked, what it does as far as the rules
// of access.go go, which parameters it takes, and what answers it.
type route struct {
	method string
	path   string // {turn} and {process} stand for one segment each
	does   action
	query  []string
	heavy  bool // its answer can be long: only so many at a time
	answer handler
}

// routes is the API. api/openapi.json says the same to others, and a test
// holds the two together.
func routes() []route {
	const (
		turn = "/v1/turns/{turn}"
		proc = turn + "/processes/{process}"
		get  = http.MethodGet
		post = http.MethodPost
	)
	return []route{
		{get, "/v1/host", actLook, nil, false, reads(host)},
		{get, "/v1/openapi.json", actLook, nil, false, reads(openAPI)},
		{get, "/v1/policy", actLook, nil, false, reads(policy)},
		{get, "/v1/turns", actList, []string{"all", "session", "state"}, true, reads(listTurns)},
		{post, "/v1/turns", actBegin, nil, false, takes(begin)},
		{get, turn, actRead, nil, true, reads(showTurn)},
		{get, turn + "/processes", actRead, nil, true, reads(listProcesses)},
		{post, turn + "/processes", actLaunch, []string{"wait", "timeout_ms"}, false, takes(launch)},
		{get, proc, actRead, nil, false, reads(showProcess)},
		{post, proc + "/signal", actSignal, nil, false, takes(signal)},
		{get, proc + "/wait", actRead, []string{"timeout_ms", "drain_ms"}, false, reads(waitProcess)},
		{get, proc + "/output", actRead, []string{"stream", "offset", "tail", "limit", "follow", "drain_ms"}, false, reads(output)},
		{post, proc + "/stdin", actSignal, []string{"close", "epoch"}, false, streams(stdin)},
		{post, proc + "/resize", actSignal, nil, false, takes(resize)},
		{post, proc + "/ack", actSignal, nil, false, takes(acknowledge)},
		{post, turn + "/join", actLaunch, nil, false, takes(join)},
		{post, turn + "/adopt", actEnd, nil, false, takes(adopt)},
		{get, turn + "/tree", actRead, nil, true, reads(tree)},
		{get, turn + "/wait", actRead, []string{"timeout_ms"}, false, reads(waitTurn)},
		{post, turn + "/finish", actEnd, nil, false, takes(finish)},
		{post, turn + "/abandon", actEnd, []string{"wait"}, false, takes(abandon)},
		{post, turn + "/touch", actEnd, nil, false, takes(touch)},
		{post, turn + "/take", actEnd, nil, false, takes(take)},
		{get, turn + "/hold", actEnd, []string{"epoch"}, false, reads(hold)},
		{post, turn + "/freeze", actEnd, nil, false, takes(freeze)},
		{post, turn + "/thaw", actEnd, nil, false, takes(thaw)},
		{post, turn + "/plan", actRead, nil, true, takes(plan)},
		{get, turn + "/why", actRead, nil, true, reads(why)},
		{post, proc + "/end", actSignal, nil, false, takes(endProcess)},
		{post, proc + "/promote", actEnd, nil, false, takes(promote)},
		{post, "/v1/abandon", actBegin, nil, false, takes(abandonMany)}, // asks for leave by itself
		{get, "/v1/records", actList, nil, true, reads(records)},
		{post, "/v1/gc", actList, nil, true, takes(gc)},
		{get, "/v1/quiet", actList, []string{"path"}, true, reads(quiet)},
		{get, "/v1/jobs", actList, []string{"all", "session", "turn", "cwd"}, true, reads(listJobs)},
		{post, "/v1/jobs", actBegin, nil, false, takes(startJob)},
		{get, "/v1/jobs/{job}", actRead, nil, false, reads(showJob)},
		{get, "/v1/jobs/{job}/wait", actRead, []string{"timeout_ms"}, false, reads(waitJob)},
		{post, "/v1/jobs/{job}/stop", actEnd, nil, false, takes(stopJob)},
		{post, "/v1/jobs/{job}/transfer", actEnd, nil, false, takes(transfer)},
		{get, "/v1/events", actList, []string{"after", "limit", "follow", "turn", "session", "kinds", "consumer"}, false, reads(events)},
		{post, "/v1/events/ack", actList, nil, false, takes(ackEvents)},
		{get, turn + "/receipt", actRead, nil, true, reads(receipt)},
		{get, "/v1/receipts", actList, []string{"limit"}, true, reads(listReceipts)},
	}
}

// match finds the route of a request, and the ids in its path.
func match(table []route, method string, u *url.URL) (*route, map[string]string, *api.Error) {
	var allow []string
	for i := range table {
		ids, ok := table[i].fits(u.EscapedPath())
		if !ok {
			continue
		}
		if table[i].method != method {
			allow = append(allow, table[i].method)
			continue
		}
		for name, id := range ids {
			if err := checkID(name, id); err != nil {
				return nil, nil, err
			}
		}
		return &table[i], ids, nil
	}
	if allow != nil {
		slices.Sort(allow)
		return nil, nil, api.Errorf(api.CodeMethod, "%s is not for this path", clip(method)).
			With("allow", strings.Join(allow, ", "))
	}
	return nil, nil, api.Errorf(api.CodeNotFound, "no such path: %s", clip(u.EscapedPath())).
		WithRemedy("GET /v1/openapi.json lists them")
}

// fits matches a path as it was sent, segment by segment: nothing is cleaned
// or decoded, so there is one way to write each path.
func (r *route) fits(path string) (map[string]string, bool) {
	want, got := strings.Split(r.path, "/"), strings.Split(path, "/")
	if len(want) != len(got) {
		return nil, false
	}
	var ids map[string]string
	for i, w := range want {
		name, isID := strings.CutPrefix(w, "{")
		switch {
		case isID:
			if ids == nil {
				ids = map[string]string{}
			}
			ids[strings.TrimSuffix(name, "}")] = got[i]
		case w != got[i]:
			return nil, false
		}
	}
	return ids, true
}

const maxID = 64

// checkID refuses what no id looks like: ids are 1 to 64 ASCII letters, digits,
// dashes and underscores.
func checkID(name, id string) *api.Error {
	bad := func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && r != '-' && r != '_'
	}
	switch {
	case id == "":
		return api.Errorf(api.CodeBadRequest, "the %s id is blank", name).WithRemedy("name exactly one %s", name)
	case len(id) > maxID:
		return api.Errorf(api.CodeBadRequest, "the %s id has %d bytes, ids have at most %d", name, len(id), maxID)
	case strings.ContainsFunc(id, bad):
		if said, err := url.PathUnescape(id); err == nil {
			id = said // for people: it is refused either way
		}
		return api.Errorf(api.CodeBadRequest, "%q is not a %s id", id, name)
	}
	return nil
}

// clip bounds what is quoted back.
func clip(s string) string {
	const most = 200
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
