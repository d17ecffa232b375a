package containment

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"pinfold.dev/api"
)

func TestMoreBadLaunches(t *testing.T) {
	m, h, _ := manager(0)
	m.cfg.Own = Own{HardLimits: map[int]uint64{7: 1000}}
	id := begun(t, m, api.BeginRequest{})
	a := []string{"a"}
	minus := -1
	far := 2000
	for name, c := range map[string]struct {
		req  api.LaunchRequest
		code api.Code
	}{
		"argv twice":             {api.LaunchRequest{Argv: a, ArgvB64: [][]byte{{65}}}, api.CodeBadRequest},
		"NUL in argv_b64":        {api.LaunchRequest{ArgvB64: [][]byte{{65, 0}}}, api.CodeBadRequest},
		"env twice":              {api.LaunchRequest{Argv: a, Env: []string{"A=1"}, EnvB64: [][]byte{[]byte("B=1")}}, api.CodeBadRequest},
		"long labels":            {api.LaunchRequest{Argv: a, Labels: map[string]string{"a": strings.Repeat("x", maxLabelBytes)}}, api.CodeBadRequest},
		"bad env_b64":            {api.LaunchRequest{Argv: a, EnvB64: [][]byte{[]byte("B")}}, api.CodeBadRequest},
		"blank env_add":          {api.LaunchRequest{Argv: a, EnvAdd: []string{""}}, api.CodeBadRequest},
		"nameless env_add":       {api.LaunchRequest{Argv: a, EnvAdd: []string{"=x"}}, api.CodeBadRequest},
		"cwd policy":             {api.LaunchRequest{Argv: a, CwdPolicy: "any"}, api.CodeBadRequest},
		"umask":                  {api.LaunchRequest{Argv: a, Umask: "0999"}, api.CodeBadRequest},
		"umask too large":        {api.LaunchRequest{Argv: a, Umask: "10000"}, api.CodeBadRequest},
		"rlimit name":            {api.LaunchRequest{Argv: a, Rlimits: map[string]api.Rlimit{"files": {}}}, api.CodeBadRequest},
		"rlimit number":          {api.LaunchRequest{Argv: a, Rlimits: map[string]api.Rlimit{"nofile": {Soft: -2}}}, api.CodeBadRequest},
		"soft above hard":        {api.LaunchRequest{Argv: a, Rlimits: map[string]api.Rlimit{"nofile": {Soft: -1, Hard: 5}}}, api.CodeBadRequest},
		"hard above ours":        {api.LaunchRequest{Argv: a, Rlimits: map[string]api.Rlimit{"nofile": {Soft: 5, Hard: 1001}}}, api.CodeForbidden},
		"hard without end":       {api.LaunchRequest{Argv: a, Rlimits: map[string]api.Rlimit{"nofile": {Soft: 5, Hard: -1}}}, api.CodeForbidden},
		"nice for root":          {api.LaunchRequest{Argv: a, Nice: &minus}, api.CodeForbidden},
		"nice that is none":      {api.LaunchRequest{Argv: a, Nice: &far}, api.CodeBadRequest},
		"oom_score_adj for root": {api.LaunchRequest{Argv: a, OOMScoreAdj: &minus}, api.CodeForbidden},
		"oom_score_adj":          {api.LaunchRequest{Argv: a, OOMScoreAdj: &far}, api.CodeBadRequest},
		"group":                  {api.LaunchRequest{Argv: a, Group: "1"}, api.CodeForbidden},
		"groups":                 {api.LaunchRequest{Argv: a, Groups: []string{}}, api.CodeForbidden},
		"pass_fds without":       {api.LaunchRequest{Argv: a, PassFDs: []api.PassFD{{Number: 3}}}, api.CodeBadRequest},
		"deadline":               {api.LaunchRequest{Argv: a, DeadlineMS: -1}, api.CodeBadRequest},
		"key":                    {api.LaunchRequest{Argv: a, IdempotencyKey: string(make([]byte, 200))}, api.CodeBadRequest},
		"stdin spool":            {api.LaunchRequest{Argv: a, Stdio: api.Stdio{Stdin: api.Stream{Mode: api.StdioSpool}}}, api.CodeBadRequest},
		"stdout pipe":            {api.LaunchRequest{Argv: a, Stdio: api.Stdio{Stdout: api.Stream{Mode: api.StdioPipe}}}, api.CodeBadRequest},
		"stdout stdout":          {api.LaunchRequest{Argv: a, Stdio: api.Stdio{Stdout: api.Stream{Mode: api.StdioStdout}}}, api.CodeBadRequest},
		"data without mode":      {api.LaunchRequest{Argv: a, Stdio: api.Stdio{Stdin: api.Stream{Data: []byte("x")}}}, api.CodeBadRequest},
		"much data":              {api.LaunchRequest{Argv: a, Stdio: api.Stdio{Stdin: api.Stream{Mode: api.StdioData, Data: make([]byte, maxData+1)}}}, api.CodeTooLarge},
		"max_bytes of null":      {api.LaunchRequest{Argv: a, Stdio: api.Stdio{Stdout: api.Stream{MaxBytes: 5000}}}, api.CodeBadRequest},
		"tiny max_bytes":         {api.LaunchRequest{Argv: a, Stdio: api.Stdio{Stdout: api.Stream{Mode: api.StdioSpool, MaxBytes: 5}}}, api.CodeBadRequest},
		"size without terminal":  {api.LaunchRequest{Argv: a, Stdio: api.Stdio{PTY: &api.WinSize{Rows: 1, Cols: 1}}}, api.CodeBadRequest},
		"two stdouts": {api.LaunchRequest{Argv: a, Stdio: api.Stdio{Stdin: api.Stream{Mode: api.StdioPTY},
			Stdout: api.Stream{Mode: api.StdioSpool}}}, api.CodeBadRequest},
	} {
		_, err := m.Launch(t.Context(), id, Caller{UID: 1000}, c.req, nil)
		if !errors.Is(err, &api.Error{Code: c.code}) {
			t.Errorf("%s: %v, want %s", name, err, c.code)
		}
	}
	if n := len(h.holds[0].launched); n != 0 {
		t.Errorf("%d were launched", n)
	}
}

func TestPassedDescriptors(t *testing.T) {
	for _, c := range []struct {
		list []api.PassFD
		ok   bool
	}{
		{[]api.PassFD{{FD: 0, Number: 3}, {FD: 0, Number: 1023}, {FD: 1, Number: 4}}, true},
		{[]api.PassFD{{FD: 2, Number: 3}}, false},
		{[]api.PassFD{{FD: -1, Number: 3}}, false},
		{[]api.PassFD{{FD: 0, Number: 2}}, false},
		{[]api.PassFD{{FD: 0, Number: 1024}}, false},
		{[]api.PassFD{{FD: 0, Number: 3}, {FD: 1, Number: 3}}, false},
	} {
		if err := checkPassed(c.list, 2); (err == nil) != c.ok {
			t.Errorf("%v: %v", c.list, err)
		}
	}
}

func settled(t *testing.T, c Caller, req api.LaunchRequest) (Launch, meta) {
	t.Helper()
	m, _, _ := manager(0)
	l, mt, err := m.settle(c, req, 0)
	if err != nil {
		t.Fatal(err)
	}
	return l, mt
}

func TestAttributesAreSettled(t *testing.T) {
	nice, adj := 5, -500
	l, _ := settled(t, root, api.LaunchRequest{Argv: []string{"x"}, Umask: "27", Nice: &nice, OOMScoreAdj: &adj, NoNewPrivs: true,
		CwdPolicy: api.CwdNearest, Rlimits: map[string]api.Rlimit{"core": {}, "nofile": {Soft: 10, Hard: -1}}, User: "7", Group: "8", Groups: []string{"9"}})
	want := []Rlimit{{4, 0, 0}, {7, 10, noLimit}}
	if *l.Umask != 0o27 || *l.Nice != 5 || *l.OOMScoreAdj != -500 || !l.NoNewPrivs || !l.CwdNearest || !slices.Equal(l.Rlimits, want) {
		t.Errorf("%+v", l)
	}
	if u := l.User; u.UID != 7 || u.GID != 8 || !slices.Equal(u.Groups, []uint32{9}) {
		t.Errorf("%+v", u)
	}
	if l, _ := settled(t, Caller{UID: 5, GID: 6, Groups: []uint32{7}}, api.LaunchRequest{Argv: []string{"x"}}); l.Umask != nil || l.Rlimits != nil || l.User.GID != 6 {
		t.Errorf("nothing said: %+v", l)
	}
}

func TestBytesStayBytes(t *testing.T) {
	bad := "\xff\xfe\n"
	l, _ := settled(t, root, api.LaunchRequest{ArgvB64: [][]byte{[]byte("x"), []byte(bad)}, EnvB64: [][]byte{[]byte("A=" + bad)}})
	if l.Argv[1] != bad || !slices.Equal(l.Env, []string{"A=" + bad}) {
		t.Errorf("%q %q", l.Argv, l.Env)
	}
	text, raw := shown(l.Argv)
	if text[1] != "\ufffd\n" || !bytes.Equal(raw[1], []byte(bad)) {
		t.Errorf("%q %q", text, raw)
	}
	if _, raw := shown([]string{"plain", "ü"}); raw != nil {
		t.Errorf("%q", raw)
	}
	if l, _ := settled(t, root, api.LaunchRequest{Argv: []string{"x"}, EnvB64: [][]byte{}}); len(l.Env) != 0 {
		t.Errorf("an empty environment: %q", l.Env)
	}
}

func TestEnvironment(t *testing.T) {
	u := User{UID: 5, Name: "n", Home: "/h", Shell: "/s"}
	for _, c := range []struct{ env, add, want []string }{
		{nil, nil, baseEnv(u)},
		{[]string{}, nil, []string{}},
		{[]string{"A=1", "B=2", "A=3"}, []string{"A=4", "C=5", "B"}, []string{"A=4", "C=5"}},
		{nil, []string{"PATH", "HOME=/x", "SHELL", "LANG", "USER", "LOGNAME"}, []string{"HOME=/x"}},
		{[]string{"A=1"}, []string{"A=", "NOTIFY_SOCKET=/x"}, []string{"A="}},
		{[]string{"AA=1"}, []string{"A"}, []string{"AA=1"}},
	} {
		if got := environ(c.env, c.add, u, false); !slices.Equal(got, c.want) {
			t.Errorf("%q and %q: %q, want %q", c.env, c.add, got, c.want)
		}
	}
	if got := environ(nil, nil, u, true); !slices.Contains(got, "TERM=xterm") {
		t.Errorf("with a terminal: %q", got)
	}
	if got := environ(nil, []string{"TERM=dumb"}, u, true); !slices.Contains(got, "TERM=dumb") || slices.Contains(got, "TERM=xterm") {
		t.Errorf("with a terminal that is said: %q", got)
	}
	if got := environ([]string{}, nil, u, true); len(got) != 0 {
		t.Errorf("with a terminal and nothing: %q", got)
	}
	l, _ := settled(t, root, api.LaunchRequest{Argv: []string{"x"}, User: "1000"})
	if !slices.Contains(l.Env, "USER=") && !slices.ContainsFunc(l.Env, func(s string) bool { return s == "HOME=" || s == "HOME=/" }) {
		t.Errorf("of the user chosen: %q", l.Env)
	}
}

func TestStreamsAreSettled(t *testing.T) {
	s := settleStdio(api.Stdio{Stdin: api.Stream{Mode: api.StdioPTY}, Stdout: api.Stream{Mode: api.StdioPTY, MaxBytes: 8192},
		Stderr: api.Stream{Mode: api.StdioStdout}, PTY: &api.WinSize{Rows: 0, Cols: 1 << 20}})
	if s.Stderr.Mode != api.StdioPTY || *s.PTY != (api.WinSize{Rows: 1, Cols: maxCols}) {
		t.Errorf("%+v %+v", s, s.PTY)
	}
	if k := kept(s); len(k) != 1 || k[api.StreamStdout] != defaultKept || writable(s) != api.StdioPTY {
		t.Errorf("%v", k)
	}
	s = settleStdio(api.Stdio{Stdout: api.Stream{Mode: api.StdioSpool}, Stderr: api.Stream{Mode: api.StdioSpool, MaxBytes: 4096}})
	if k := kept(s); len(k) != 2 || k[api.StreamStdout] != defaultKept || k[api.StreamStderr] != 4096 || writable(s) != "" {
		t.Errorf("%v", k)
	}
	if s.Stdin.Mode != api.StdioNull || s.PTY != nil {
		t.Errorf("%+v", s)
	}
}
