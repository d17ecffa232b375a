package turns

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"pinfold.dev/api"
	"pinfold.dev/client"
)

// The users of these tests.
const ann, bob = 54321, 54322

// dialAs connects as another user: the kernel takes down whose thread it is that
// connects. The thread is not used again.
func dialAs(socket string, uid int) (net.Conn, error) {
	var c net.Conn
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		for _, call := range []struct {
			trap uintptr
			id   int
		}{{syscall.SYS_SETGROUPS, 0}, {syscall.SYS_SETRESGID, uid}, {syscall.SYS_SETRESUID, uid}} {
			args := [3]uintptr{uintptr(call.id), uintptr(call.id), uintptr(call.id)}
			if call.trap == syscall.SYS_SETGROUPS {
				args = [3]uintptr{}
			}
			if _, _, errno := syscall.RawSyscall(call.trap, args[0], args[1], args[2]); errno != 0 {
				done <- os.NewSyscallError("become another user", errno)
				return
			}
		}
		fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
		if err == nil {
			f := os.NewFile(uintptr(fd), socket)
			defer f.Close()
			if err = syscall.Connect(fd, &syscall.SockaddrUnix{Name: socket}); err == nil {
				c, err = net.FileConn(f)
			}
		}
		done <- err
	}()
	return c, <-done
}

// client is one of a user's.
func (s *service) as(t *testing.T, uid int) *client.Client {
	c := &client.Client{Socket: s.dir + "/sock"}
	if uid != 0 {
		c.Dial = func(_ context.Context, socket string) (net.Conn, error) { return dialAs(socket, uid) }
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// raw asks for a path as it is written, and tells the status and the body.
func raw(t *testing.T, c *client.Client, path, body string) (int, string) {
	t.Helper()
	h := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		if c.Dial != nil {
			return c.Dial(ctx, c.Socket)
		}
		return net.Dial("unix", c.Socket)
	}}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://pinfold", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.URL = &url.URL{Scheme: "http", Host: "pinfold", Opaque: path}
	resp, err := h.Do(req)
	if err != nil {
		t.Fatalf("POST %s: %v", path, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(bytes.TrimSpace(b))
}

// estate is a user's turn and job, each with something that beats.
type estate struct {
	c      *client.Client
	turn   api.Turn
	job    api.Job
	hearts []heart
}

func newEstate(t *testing.T, s *service, uid int, session string) *estate {
	t.Helper()
	f := files(t, "turn", "job")
	e := &estate{c: s.as(t, uid), hearts: []heart{heart(f[0]), heart(f[1])}}
	var err error
	labels := map[string]string{"k": "v"}
	if e.turn, err = e.c.Begin(t.Context(), api.BeginRequest{Session: session, Labels: labels}); err != nil || e.turn.Owner != uint32(uid) {
		t.Fatalf("begin as uid %d: owner %d (%v)", uid, e.turn.Owner, err)
	}
	run.guard.tell("held", e.turn.Cgroup, fmt.Sprint(must(inoOf(e.turn.Cgroup))))
	if _, err = e.c.Launch(t.Context(), e.turn.ID, helper(t, "beat", f[0])); err != nil {
		t.Fatal(err)
	}
	if e.job, err = e.c.StartJob(t.Context(), api.JobRequest{Launch: helper(t, "beat", f[1]), Session: session, Labels: labels}); err != nil {
		t.Fatal(err)
	}
	for _, h := range e.hearts {
		h.beating(t)
	}
	return e
}

func inoOf(path string) (uint64, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	return fi.Sys().(*syscall.Stat_t).Ino, nil
}

// untouched checks that all is as it was.
func (e *estate) untouched(t *testing.T, s *service, what string) {
	t.Helper()
	v, err := s.Turn(t.Context(), e.turn.ID)
	j, jerr := s.Job(t.Context(), e.job.ID)
	if err != nil || jerr != nil || v.State != api.StateOpen || v.Frozen || v.Alive != 1 || v.Epoch != e.turn.Epoch || len(v.Jobs) != 0 ||
		j.State != api.JobRunning || j.Session != e.job.Session || j.Alive != 1 {
		t.Errorf("after %s, of uid %d: turn %s, %d alive, epoch %d, job %s %q (%v, %v)", what, e.turn.Owner, v.State, v.Alive, v.Epoch, j.State, j.Session, err, jerr)
	}
}

// endings of parts and of the whole, by path. TURN, PROC and JOB stand for ids.
func endingPaths() []string {
	return []string{"turns/TURN/abandon", "turns/TURN/finish", "turns/TURN/freeze", "turns/TURN/take", "turns/TURN/touch",
		"turns/TURN/processes/PROC/end", "turns/TURN/processes/PROC/promote", "turns/TURN/processes/PROC/signal", "jobs/JOB/stop", "jobs/JOB/transfer"}
}

// What names nothing, or somebody else's, is refused, and touches nothing: blank
// ids, wildcards, parts of ids, paths, ids of others.
func TestNamesOfNothing(t *testing.T) {
	s := serve(t, grades(t)[0], options{})
	defer s.stopJobs()
	outside := newCanary(t, s)
	all := []*estate{newEstate(t, s, 0, "s"), newEstate(t, s, ann, "s"), newEstate(t, s, bob, "s")}
	hers, his := all[1], all[2]
	body := map[bool]string{false: "{}", true: `{"session":"x"}`}
	refused := func(c *client.Client, who, turn, proc, job string) {
		t.Helper()
		for _, p := range endingPaths() {
			path := "/v1/" + strings.NewReplacer("TURN", turn, "PROC", proc, "JOB", job).Replace(p)
			b := body[strings.HasSuffix(p, "transfer")]
			if strings.HasSuffix(p, "signal") {
				b = `{"signal":"KILL"}`
			}
			touchesTurn, touchesProc := strings.Contains(p, "TURN"), strings.Contains(p, "PROC")
			if touchesTurn && turn == hers.turn.ID && !(touchesProc && proc != "p1") {
				continue // that would be right
			}
			if status, answer := raw(t, c, path, b); status/100 != 4 {
				t.Errorf("%s asks for %s: %d %s", who, path, status, answer)
			}
		}
	}
	nothing := []string{"", "%20", "*", "%25", "%2a", "..", "%2e%2e", ".", "%00", "0", "-", "all", hers.turn.ID[:15], hers.turn.ID + "0",
		strings.ToUpper(hers.turn.ID) + "x", hers.turn.ID + "," + hers.turn.ID, hers.turn.ID + "%2f", hers.turn.ID + ";x", strings.Repeat("a", 65), "0000000000000000"}
	for _, id := range nothing {
		for _, c := range []*client.Client{hers.c, s.Client} {
			refused(c, "somebody", id, "p1", id)
			refused(c, "somebody", id, id, id+"-p1")
		}
	}
	for _, proc := range []string{"", "*", "%25", "..", "p", "p0", "p01", "p2", "P1", "p1,p1", "p1%20", "1", "-1", "p18446744073709551617"} {
		refused(hers.c, "ann", hers.turn.ID, proc, hers.turn.ID+"-"+proc) // which is a turn, and no job
	}
	refused(hers.c, "ann", his.turn.ID, "p1", his.job.ID)
	refused(his.c, "bob", all[0].turn.ID, "p1", all[0].job.ID)
	for _, e := range all {
		e.untouched(t, s, "names of nothing")
	}
	manyOfNothing(t, s, hers, his)
	for _, e := range all {
		e.untouched(t, s, "many of nothing")
		for _, h := range e.hearts {
			h.beating(t)
		}
	}
	outside.lives()
}

// manyOfNothing asks to end many, and names none of them.
func manyOfNothing(t *testing.T, s *service, hers, his *estate) {
	ids := func(n int, more ...string) string {
		for i := range n {
			more = append(more, fmt.Sprintf("%016x", i))
		}
		return string(must(json.Marshal(more)))
	}
	for _, c := range []struct {
		body   string
		status int // as ann; and as root, but for what is another's
	}{
		{`{}`, 400}, {`null`, 400}, {`[]`, 400}, {`{"jobs":true}`, 400}, {`{"turns":[]}`, 400}, {`{"turns":null,"session":""}`, 400},
		{`{"turns":[""]}`, 400}, {`{"turns":["*"]}`, 400}, {`{"turns":["%"]}`, 400}, {`{"turns":["` + hers.turn.ID + `",""]}`, 400},
		{`{"turns":[".."," ","` + hers.turn.ID[:15] + `"]}`, 200}, {`{"turns":[null]}`, 400},
		{`{"session":""}`, 400}, {`{"session":"*"}`, 400}, {`{"session":"%"}`, 200}, {`{"session":" "}`, 200}, {`{"session":".."}`, 200}, {`{"session":"S"}`, 200}, {`{"session":"s*"}`, 200},
		{`{"labels":{}}`, 400}, {`{"labels":{"k":""}}`, 200}, {`{"labels":{"k":"*"}}`, 200}, {`{"labels":{"k":"v","l":""}}`, 200}, {`{"labels":{"":"v"}}`, 200}, {`{"labels":{"*":"*"}}`, 200}, {`{"labels":null}`, 400},
		{`{"owner":null}`, 400}, {`{"owner":-1}`, 400}, {`{"owner":""}`, 400}, {`{"owner":"54321"}`, 400}, {`{"owner":4294967296}`, 400}, {`{"owner":54320}`, 403},
		{`{"session":"s","owner":54321}`, 400}, {`{"session":"s","labels":{"k":"v"}}`, 400}, {`{"sessions":"s"}`, 400}, {`{"session":"s","reason":"finished"}`, 400}, {`{"session":"s","grace_ms":-1}`, 400},
		{`{"turns":` + ids(10000) + `}`, 413}, {`{"turns":` + ids(9999, hers.turn.ID) + `,"jobs":true}`, 413}, {`{"turns":` + ids(1000) + `,"jobs":true}`, 200},
	} {
		for _, who := range []*client.Client{hers.c, s.Client} {
			want := c.status
			if want == 403 && who == s.Client {
				want = 200
			}
			status, answer := raw(t, who, "/v1/abandon", c.body)
			var a api.AbandonManyAnswer
			if status == 200 {
				check(json.Unmarshal([]byte(answer), &a))
			}
			if status != want || len(a.Receipts) > 0 || len(a.Jobs) > 0 {
				t.Errorf("%.100s: %d, not %d: %.200s", c.body, status, want, answer)
			}
		}
	}
	if status, answer := raw(t, hers.c, "/v1/abandon", fmt.Sprintf(`{"owner":%d,"jobs":true}`, bob)); status != 403 {
		t.Errorf("ann ends bob's: %d %s", status, answer)
	}
	a, err := hers.c.AbandonMany(t.Context(), api.AbandonManyRequest{Turns: []string{his.turn.ID}, Jobs: true})
	if err != nil || len(a.Receipts) > 0 || len(a.Refused) != 1 || a.Refused[0].Error.Code != api.CodeNotFound {
		t.Errorf("ann ends bob's: %+v (%v)", a, err)
	}
}

// Of many, exactly those that are named are ended: among a thousand ids, by
// session, by label and by owner, each user's own.
func TestExactlyThose(t *testing.T) {
	s := serve(t, grades(t)[0], options{})
	defer s.stopJobs()
	outside := newCanary(t, s)
	roots := newEstate(t, s, 0, "s")
	hers := []*estate{newEstate(t, s, ann, "s"), newEstate(t, s, ann, "t"), newEstate(t, s, ann, "s%"), newEstate(t, s, ann, "")}
	his := newEstate(t, s, bob, "s")
	only := func(what string, e *estate, jobs bool, a api.AbandonManyAnswer, err error) {
		t.Helper()
		if err != nil || len(a.Receipts) != 1 || a.Receipts[0].Turn != e.turn.ID || !a.Receipts[0].Complete || (len(a.Jobs) == 1) != jobs {
			t.Errorf("%s: %+v (%v)", what, a, err)
		}
		stopped(t, e.hearts[0])
		if jobs {
			stopped(t, e.hearts[1])
		}
		for _, o := range slices.Concat(hers, []*estate{roots, his}) {
			if v, err := s.Turn(t.Context(), o.turn.ID); err != nil || v.State == api.StateOpen {
				o.untouched(t, s, what)
				o.hearts[0].beating(t)
				o.hearts[1].beating(t)
			}
		}
	}
	ids := []string{hers[0].turn.ID, hers[0].turn.ID, his.turn.ID, roots.turn.ID}
	for i := range 1000 - len(ids) {
		ids = append(ids, fmt.Sprintf("%016x", i))
	}
	a, err := hers[0].c.AbandonMany(t.Context(), api.AbandonManyRequest{Turns: ids})
	only("a thousand ids", hers[0], false, a, err)
	if len(a.Refused) != 998 {
		t.Errorf("%d were refused", len(a.Refused))
	}
	a, err = hers[1].c.AbandonMany(t.Context(), api.AbandonManyRequest{Session: "t", Jobs: true})
	only("a session", hers[1], true, a, err)
	a, err = s.AbandonMany(t.Context(), api.AbandonManyRequest{Session: "s%", Jobs: true})
	only("a session that looks like a pattern", hers[2], true, a, err)
	if a, err = hers[0].c.AbandonMany(t.Context(), api.AbandonManyRequest{Session: "s", DryRun: true, Jobs: true}); err != nil || len(a.Plans) != 0 {
		t.Errorf("hers of the session are over: %+v (%v)", a, err)
	}
	owner := uint32(bob)
	if a, err = s.AbandonMany(t.Context(), api.AbandonManyRequest{Owner: &owner, DryRun: true, Jobs: true}); err != nil || len(a.Plans) != 1 || len(a.Plans[0].Targets) != 1 {
		t.Errorf("a dry run: %+v (%v)", a, err)
	}
	his.untouched(t, s, "a dry run")
	a, err = s.AbandonMany(t.Context(), api.AbandonManyRequest{Owner: &owner, Jobs: true})
	only("an owner", his, true, a, err)
	a, err = hers[3].c.AbandonMany(t.Context(), api.AbandonManyRequest{Labels: map[string]string{"k": "v"}})
	only("a label", hers[3], false, a, err)
	outside.lives()
}
