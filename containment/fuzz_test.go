package containment

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"pinfold.dev/api"
)

// FuzzLaunch: whatever a request says, it is refused with a code, or it is one
// that a keeper can be asked for, by somebody who may.
func FuzzLaunch(f *testing.F) {
	for _, s := range []string{
		`{"argv":["a"]}`,
		`{"argv_b64":["/w=="],"env_b64":["QT3/"],"env_add":["B=2","C"],"cwd":"/x","cwd_policy":"nearest"}`,
		`{"argv":["a"],"umask":"077","nice":-5,"oom_score_adj":-1000,"no_new_privs":true,"rlimits":{"nofile":{"soft":-1,"hard":-1}}}`,
		`{"argv":["a"],"user":"5","group":"6","groups":["7"],"pass_fds":[{"fd":0,"number":3},{"fd":1,"number":4}]}`,
		`{"argv":["a"],"stdio":{"stdin":{"mode":"pty"},"stdout":{"mode":"pty","max_bytes":4096},"stderr":{"mode":"stdout"},"pty":{"rows":-1,"cols":99999}}}`,
		`{"argv":["a"],"stdio":{"stdin":{"mode":"data","data":"aGk="},"stdout":{"mode":"spool"},"stderr":{"mode":"pass","fd":1}}}`,
		`{"argv":["a"],"deadline_ms":5,"idempotency_key":"k","stop_signal":"9","min_grade":"scope","labels":{"a":"b"}}`,
	} {
		f.Add([]byte(s), uint32(0))
		f.Add([]byte(s), uint32(1000))
	}
	m, _, _ := manager(0)
	m.cfg.Own = Own{HardLimits: map[int]uint64{7: 1024}}
	f.Fuzz(func(t *testing.T, b []byte, uid uint32) {
		var req api.LaunchRequest
		if json.Unmarshal(b, &req) != nil {
			return
		}
		const fds = 2
		l, mt, err := m.settle(Caller{UID: uid}, req, fds)
		if err != nil {
			var e *api.Error
			if !errors.As(err, &e) || e.Code == "" || e.Code == api.CodeInternal {
				t.Fatalf("%v", err)
			}
			return
		}
		checkSettled(t, l, uid, fds)
		mt.begin(0, 0, req.DeadlineMS)
		text, err := mt.encode()
		if err != nil {
			t.Fatal(err)
		}
		if back := decodeMeta(text); back.Stop != mt.Stop || back.Key != mt.Key || back.Deadline != mt.Deadline || len(back.Kept) != len(mt.Kept) {
			t.Errorf("%+v came back as %+v", mt, back)
		}
	})
}

func checkSettled(t *testing.T, l Launch, uid uint32, fds int) {
	words := append(append([]string{l.Cwd}, l.Argv...), l.Env...)
	for _, w := range words {
		if strings.IndexByte(w, 0) >= 0 {
			t.Errorf("NUL in %q", w)
		}
	}
	if len(l.Argv) == 0 || l.Argv[0] == "" || l.Cwd[0] != '/' {
		t.Errorf("argv %q, cwd %q", l.Argv, l.Cwd)
	}
	for _, n := range streams(&l.Stdio) {
		s := n.s
		keeps := s.Mode == api.StdioSpool || s.Mode == api.StdioPTY
		if !takes(n.name, s.Mode) || s.Mode == "" || (s.Mode == api.StdioPass && (s.FD < 0 || s.FD >= fds)) ||
			keeps != (s.MaxBytes >= leastKept && s.MaxBytes <= mostKept) {
			t.Errorf("%s: %+v", n.name, *s)
		}
	}
	if p := l.Stdio.PTY; hasTerminal(l.Stdio) != (p != nil) || (p != nil && *p != clamp(*p)) {
		t.Errorf("terminal %+v", p)
	}
	for _, e := range l.Extra {
		if e.FD < 0 || e.FD >= fds || e.Number < firstFD || e.Number > lastFD {
			t.Errorf("%+v", e)
		}
	}
	if uid == 0 {
		return
	}
	if l.User == nil || l.User.UID != uid {
		t.Errorf("uid %d launches as %+v", uid, l.User)
	}
	if (l.Nice != nil && *l.Nice < 0) || (l.OOMScoreAdj != nil && *l.OOMScoreAdj < 0) {
		t.Errorf("more than root gives: %+v", l)
	}
	for _, r := range l.Rlimits {
		if r.Soft > r.Hard || (r.Resource == 7 && r.Hard > 1024) {
			t.Errorf("%+v", r)
		}
	}
}
