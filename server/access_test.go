package server

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"pinfold.dev/api"
)

func TestDecide(t *testing.T) {
	const yes = api.Code("")
	none, no, dunno := api.CodeNotFound, api.CodeForbidden, api.CodePeerUnverifiable
	peers := map[string]Peer{
		"user":           {UID: 1000, Known: true},
		"other":          {UID: 1001, Known: true},
		"root":           {UID: 0, Known: true, Admin: true},
		"admin":          {UID: 1002, Known: true, Admin: true},
		"inside":         {UID: 1000, Known: true, InTurn: "mine"},
		"inside, other":  {UID: 1001, Known: true, InTurn: "mine"},
		"inside, root":   {UID: 0, Known: true, Admin: true, InTurn: "mine"},
		"inside, admin":  {UID: 1002, Known: true, Admin: true, InTurn: "mine"},
		"unplaced":       {UID: 1000, Why: "x"},
		"unplaced, root": {UID: 0, Admin: true, Why: "x"},
	}
	mine, absent := target{"mine", 1000, true}, target{"absent", 0, false}
	second := target{"second", 1000, true}
	for _, c := range []struct {
		peer   string
		target target
		// look, begin, list, read, launch, signal, end
		want [7]api.Code
	}{
		{"user", mine, [7]api.Code{yes, yes, yes, yes, yes, yes, yes}},
		{"user", absent, [7]api.Code{yes, yes, yes, none, none, none, none}},
		{"other", mine, [7]api.Code{yes, yes, yes, none, none, none, none}},
		{"root", mine, [7]api.Code{yes, yes, yes, yes, yes, yes, yes}},
		{"root", absent, [7]api.Code{yes, yes, yes, none, none, none, none}},
		{"admin", mine, [7]api.Code{yes, yes, yes, yes, yes, yes, yes}},
		{"inside", mine, [7]api.Code{yes, no, no, yes, yes, yes, no}},
		{"inside", second, [7]api.Code{yes, no, no, no, no, no, no}},
		{"inside", absent, [7]api.Code{yes, no, no, no, no, no, no}},
		{"inside, other", mine, [7]api.Code{yes, no, no, yes, yes, no, no}},
		{"inside, other", second, [7]api.Code{yes, no, no, no, no, no, no}},
		{"inside, root", mine, [7]api.Code{yes, no, no, yes, yes, yes, no}},
		{"inside, root", second, [7]api.Code{yes, no, no, no, no, no, no}},
		{"inside, admin", mine, [7]api.Code{yes, no, no, yes, yes, no, no}},
		{"unplaced", mine, [7]api.Code{yes, dunno, dunno, dunno, dunno, dunno, dunno}},
		{"unplaced, root", mine, [7]api.Code{yes, dunno, dunno, dunno, dunno, dunno, dunno}},
	} {
		for a, want := range c.want {
			tg := c.target
			if action(a) <= actList {
				tg = target{} // these are about no turn
			}
			err := decide(peers[c.peer], action(a), tg)
			if got := codeOf(err); got != want {
				t.Errorf("%s, %s, action %d: %q, want %q", c.peer, c.target.id, a, got, want)
			}
			if err != nil && (err.Message == "" || err.Remedy == "") {
				t.Errorf("%s, %s, action %d: no reason or no remedy: %+v", c.peer, c.target.id, a, err)
			}
		}
	}
}

func codeOf(err *api.Error) api.Code {
	if err == nil {
		return ""
	}
	return err.Code
}

// What is somebody else's must look like what is not there.
func TestDecideTellsNothing(t *testing.T) {
	p := Peer{UID: 1, Known: true}
	there := decide(p, actRead, target{"x", 2, true})
	absent := decide(p, actRead, target{"x", 0, false})
	if fmt.Sprintf("%+v", there) != fmt.Sprintf("%+v", absent) {
		t.Errorf("%+v\n%+v", there, absent)
	}
}

func TestUnifiedPath(t *testing.T) {
	for in, want := range map[string]string{
		"0::/\n":                              "/",
		"12:pids:/a\n1:name=systemd:/\n0::/x": "/x",
		"0::/a:b/c d\n":                       "/a:b/c d",
		"0::/../other\n":                      "/../other",
		"0::/gone (deleted)\n":                "",
		"0::\n":                               "",
		"0::relative\n":                       "",
		"1:cpu:/0::/x\n":                      "",
		"":                                    "",
	} {
		got, err := unifiedPath([]byte(in))
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q %v", in, got, err)
		}
	}
}

func TestMatch(t *testing.T) {
	long := strings.Repeat("a", maxID+1)
	for _, c := range []struct {
		method, path, want string // want: route or code
	}{
		{"GET", "/v1/turns/a1/processes/p1", "/v1/turns/{turn}/processes/{process}"},
		{"GET", "/v1/turns/" + long[1:], "/v1/turns/{turn}"},
		{"GET", "/v1/turns/" + long, "bad_request"},
		{"GET", "/v1/turns/", "bad_request"},
		{"GET", "/v1/turns//tree", "bad_request"},
		{"GET", "/v1/turns/%00", "bad_request"},
		{"GET", "/v1/turns/a%2Fb", "bad_request"},
		{"GET", "/v1/turns/..", "bad_request"},
		{"GET", "/v1/turns/%2e%2e", "bad_request"},
		{"GET", "/v1/turns/a b", "bad_request"},
		{"GET", "/v1/turns/é", "bad_request"},
		{"GET", "/v1/turns/a/../b", "not_found"},
		{"GET", "/v1//turns", "not_found"},
		{"GET", "//v1/turns", "not_found"},
		{"GET", "/v1/turns/a/tree/", "not_found"},
		{"GET", "/V1/turns", "not_found"},
		{"GET", "/v1/%74urns", "not_found"},
		{"GET", "/", "not_found"},
		{"GET", "", "not_found"},
		{"GET", "*", "not_found"},
		{"PUT", "/v1/turns", "method_not_allowed"},
		{"DELETE", "/v1/turns/a", "method_not_allowed"},
		{"HEAD", "/v1/host", "method_not_allowed"},
		{"get", "/v1/host", "method_not_allowed"},
	} {
		u, err := url.ParseRequestURI(c.path)
		if err != nil {
			u = &url.URL{Path: c.path}
		}
		r, _, aerr := match(routes(), c.method, u)
		got := string(codeOf(aerr))
		if r != nil {
			got = r.path
		}
		if got != c.want {
			t.Errorf("%s %q: %s, want %s", c.method, c.path, got, c.want)
		}
	}
}

func FuzzMatch(f *testing.F) {
	for _, p := range []string{"/v1/turns/a/processes/b/wait", "/v1/turns/%2e", "//", "/v1/turns/\x00"} {
		f.Add("GET", p)
	}
	table := routes()
	f.Fuzz(func(t *testing.T, method, path string) {
		u, err := url.ParseRequestURI(path)
		if err != nil {
			return
		}
		r, ids, aerr := match(table, method, u)
		if (r == nil) == (aerr == nil) {
			t.Fatalf("%q: both or neither", path)
		}
		if r == nil {
			return
		}
		want := r.path
		for name, id := range ids {
			if checkID(name, id) != nil {
				t.Fatalf("%q: id %q", path, id)
			}
			want = strings.Replace(want, "{"+name+"}", id, 1)
		}
		if u.EscapedPath() != want || method != r.method {
			t.Fatalf("%s %q went to %s %s", method, path, r.method, r.path)
		}
	})
}

func TestStatusesAreHTTPs(t *testing.T) {
	for _, c := range api.Codes() {
		if s := status(c); http.StatusText(s) == "" || (s == 500) != (c == api.CodeInternal) {
			t.Errorf("%s travels with %d", c, s)
		}
	}
}
