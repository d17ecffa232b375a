package containment

import (
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"

	"pinfold.dev/api"
)

func TestBadLaunchesAreRefused(t *testing.T) {
	m, h, _ := manager(0)
	id := begun(t, m, api.BeginRequest{})
	for name, req := range map[string]api.LaunchRequest{
		"no argv":            {},
		"blank program":      {Argv: []string{""}},
		"NUL in argv":        {Argv: []string{"a\x00b"}},
		"env without =":      {Argv: []string{"a"}, Env: []string{"X"}},
		"env without a name": {Argv: []string{"a"}, Env: []string{"=x"}},
		"relative cwd":       {Argv: []string{"a"}, Cwd: "here"},
		"unknown mode":       {Argv: []string{"a"}, Stdio: api.Stdio{Stdout: api.Stream{Mode: "pty2"}}},
		"no descriptor":      {Argv: []string{"a"}, Stdio: api.Stdio{Stdin: api.Stream{Mode: api.StdioPass}}},
		"bad signal":         {Argv: []string{"a"}, StopSignal: "NOPE"},
		"bad grade":          {Argv: []string{"a"}, MinGrade: "best"},
		"too many words":     {Argv: make([]string, maxWords+1)},
	} {
		if _, err := m.Launch(t.Context(), id, root, req, nil); !errors.Is(err, api.ErrBadRequest) &&
			!errors.Is(err, &api.Error{Code: api.CodeTooLarge}) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := len(h.holds[0].launched); n != 0 {
		t.Errorf("%d were launched", n)
	}
}

func TestWhoRunsAsWhom(t *testing.T) {
	for _, c := range []struct {
		name     string
		service  uint32
		caller   Caller
		user     string
		wantUID  uint32
		wantCode api.Code
	}{
		{"the peer", 0, Caller{UID: 1000, GID: 100}, "", 1000, ""},
		{"root", 0, Caller{}, "", 0, ""},
		{"root for another", 0, Caller{}, "1000", 1000, ""},
		{"itself by name", 0, Caller{UID: 1000}, "1000", 1000, ""},
		{"another", 0, Caller{UID: 1000}, "1001", 0, api.CodeForbidden},
		{"root by a user", 0, Caller{UID: 1000}, "0", 0, api.CodeForbidden},
		{"an admin is no root here", 0, Caller{UID: 1000, Admin: true}, "0", 0, api.CodeForbidden},
		{"nobody", 0, Caller{}, "nobody-at-all", 0, api.CodeLaunchRefused},
		{"own service", 1000, Caller{UID: 1000}, "", 1000, ""},
		{"root at a user's service", 1000, Caller{}, "", 0, api.CodeForbidden},
	} {
		m := New(Config{Host: &memHost{}, Records: newMemRecords(), Users: memUsers{}, UID: c.service})
		l, _, err := m.settle(c.caller, api.LaunchRequest{Argv: []string{"x"}, User: c.user}, 0)
		var e *api.Error
		switch {
		case c.wantCode != "":
			if !errors.As(err, &e) || e.Code != c.wantCode {
				t.Errorf("%s: %v, want %s", c.name, err, c.wantCode)
			}
		case err != nil:
			t.Errorf("%s: %v", c.name, err)
		case l.uid(c.service) != c.wantUID:
			t.Errorf("%s: uid %d, want %d", c.name, l.uid(c.service), c.wantUID)
		}
	}
}

func TestPeersGroupsAreKept(t *testing.T) {
	m, _, _ := manager(0)
	l, _, err := m.settle(Caller{UID: 1000, GID: 7, Groups: []uint32{7, 8}}, api.LaunchRequest{Argv: []string{"x"}}, 0)
	if err != nil || l.User == nil || l.User.GID != 7 || !slices.Equal(l.User.Groups, []uint32{7, 8}) {
		t.Errorf("%+v (%v)", l.User, err)
	}
}

func TestManagersVariablesNeverPass(t *testing.T) {
	in := []string{"A=1", "NOTIFY_SOCKET=/x", "LISTEN_FDS=1", "LISTEN_PID=1", "INVOCATION_ID=z", "JOURNAL_STREAM=1:2",
		"WATCHDOG_USEC=5", "NOTIFY_SOCKET_NOT=kept"}
	if got := scrub(in); !slices.Equal(got, []string{"A=1", "NOTIFY_SOCKET_NOT=kept"}) {
		t.Errorf("%v", got)
	}
	for _, kv := range baseEnv(User{Name: "n", Home: "/h", Shell: "/s"}) {
		if k, v, _ := strings.Cut(kv, "="); v == "" {
			t.Errorf("%s is blank", k)
		}
	}
}

func TestParseSignal(t *testing.T) {
	for in, want := range map[string]syscall.Signal{"TERM": 15, "SIGTERM": 15, "sigint": 2, "9": 9, "64": 64} {
		if got, err := ParseSignal(in); err != nil || got != want {
			t.Errorf("%q: %v (%v)", in, got, err)
		}
	}
	for _, in := range []string{"", "0", "-1", "65", "SIGNOPE", "SIGSIGTERM"} {
		if got, err := ParseSignal(in); err == nil {
			t.Errorf("%q: %v", in, got)
		}
	}
	for n := syscall.Signal(1); n < 65; n++ {
		if got, err := ParseSignal(SignalName(n)); err != nil || got != n {
			t.Errorf("%d is called %s, which is %v (%v)", n, SignalName(n), got, err)
		}
	}
}
