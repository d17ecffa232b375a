package server

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"runtime/metrics"
	"strings"
	"testing"
	"time"

	"pinfold.dev/api"
)

func TestRefusedRequests(t *testing.T) {
	s := start(t, Config{})
	s.engine.add("one", uint32(os.Getuid()))
	big := `{"label":"` + strings.Repeat("x", maxBody) + `"}`
	for _, c := range []struct {
		name, method, path, body string
		status                   int
		says                     string
	}{
		{"unknown field", "POST", "/v1/turns", `{"lable":"x"}`, 400, `"lable"`},
		{"unknown field below", "POST", "/v1/turns", `{"limits":{"mem":1}}`, 400, `"mem"`},
		{"field twice", "POST", "/v1/turns", `{"label":"x","Label":"y"}`, 400, `"Label" is there twice`},
		{"wrong type", "POST", "/v1/turns", `{"limits":{"pids":"many"}}`, 400, "limits.pids"},
		{"not an object", "POST", "/v1/turns", `[]`, 400, ""},
		{"trailing data", "POST", "/v1/turns", `{}{}`, 400, "follows"},
		{"trailing bracket", "POST", "/v1/turns", `{}]`, 400, "follows"},
		{"cut short", "POST", "/v1/turns", `{"label":`, 400, "ends too early"},
		{"another type", "POST", "/v1/turns", `{"label": {}}`, 400, `must be string, not object`},
		{"not UTF-8", "POST", "/v1/turns", "{\"label\":\"\xff\"}", 400, "UTF-8"},
		{"too large", "POST", "/v1/turns", big, 413, "larger"},
		{"deep", "POST", "/v1/turns", strings.Repeat(`{"limits":`, 20000), 400, ""},
		{"GET with a body", "GET", "/v1/host", "{}", 400, "no body"},
		{"blank session", "GET", "/v1/turns?session=", "", 400, "session is blank"}, // would mean everything
		{"blank state", "GET", "/v1/turns?state=", "", 400, "state is blank"},
		{"blank session of jobs", "GET", "/v1/jobs?session=", "", 400, "session is blank"},
		{"blank turn of jobs", "GET", "/v1/jobs?turn=", "", 400, "turn is blank"},
		{"blank directory of jobs", "GET", "/v1/jobs?cwd=", "", 400, "cwd is blank"},
		{"unknown parameter", "GET", "/v1/turns?stat=open", "", 400, `"stat"`},
		{"parameter twice", "GET", "/v1/turns?all=true&all=false", "", 400, "2 times"},
		{"bad flag", "GET", "/v1/turns?all=1", "", 400, "true or false"},
		{"bad state", "GET", "/v1/turns?state=dead", "", 400, `"dead"`},
		{"bad query", "GET", "/v1/turns?%zz", "", 400, ""},
		{"bad limit", "GET", "/v1/receipts?limit=-1", "", 400, "limit"},
		{"bad timeout", "GET", "/v1/turns/one/wait?timeout_ms=99999999999999", "", 400, "timeout_ms"},
		{"bad wait", "POST", "/v1/turns/one/abandon?wait=no", "", 400, "wait"},
		{"blank turn", "POST", "/v1/turns//abandon", "", 400, "blank"},
		{"blank process", "GET", "/v1/turns/one/processes/", "", 400, "blank"},
		{"NUL", "GET", "/v1/turns/a%00b", "", 400, "not a turn id"},
		{"dots", "POST", "/v1/turns/../abandon", "", 400, "not a turn id"},
		{"dots below", "POST", "/v1/turns/one/processes/%2e%2e/signal", `{"signal":"KILL"}`, 400, "not a process id"},
		{"long id", "GET", "/v1/turns/" + strings.Repeat("a", 5000), "", 400, "5000 bytes"},
		{"no such path", "GET", "/v2/turns", "", 404, "no such path"},
		{"wrong method", "PATCH", "/v1/turns/one", "", 405, ""},
		{"unknown turn", "GET", "/v1/turns/two", "", 404, `"two"`},
		{"unknown process", "GET", "/v1/turns/one/processes/p9", "", 404, `"p9"`},
	} {
		status, body := s.ask(t, c.method, c.path, c.body)
		e := asError(t, body)
		if status != c.status || !strings.Contains(e.Message, c.says) {
			t.Errorf("%s: %d %s", c.name, status, body)
		}
		if len(body) > 2000 {
			t.Errorf("%s: quotes %d bytes back", c.name, len(body))
		}
	}
	if v, _ := s.engine.get("one"); v.State != api.StateOpen {
		t.Errorf("one of these ended the turn: %s", v.State)
	}
}

// Bytes that are no request get an answer like all others, or none.
func TestGarbage(t *testing.T) {
	patient, head, body := start(t, Config{}), start(t, Config{HeaderTimeout: time.Second}), start(t, Config{BodyTimeout: time.Second})
	post := "POST /v1/turns HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
	for _, c := range []struct {
		name, text string
		status     int
	}{
		{"not HTTP", "hello\r\n\r\n", 400},
		{"no host", "GET /v1/host HTTP/1.1\r\n\r\n", 400},
		{"another version", "GET /v1/host HTTP/3.0\r\nHost: x\r\n\r\n", 505},
		{"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 404},
		{"huge header", "GET /v1/host HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 40<<10), 431},
		{"many headers", "GET /v1/host HTTP/1.1\r\nHost: x\r\n" + strings.Repeat("A: b\r\n", 10<<10), 431},
		{"NUL in header", "GET /v1/host HTTP/1.1\r\nHost: x\r\nX: \x00\r\n\r\n", 400},
		{"space in path", "GET /v1/turns/a b HTTP/1.1\r\nHost: x\r\n\r\n", 400},
		{"bad chunks", post + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
		{"huge chunk", post + "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{}\r\n", 408},
		{"unknown coding", post + "Transfer-Encoding: gzip\r\n\r\n", 501},
		{"two lengths", post + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400},
		{"negative length", post + "Content-Length: -2\r\n\r\n{}", 400},
		{"body that never comes", post + "Content-Length: 9\r\n\r\n{", 408},
		{"body of a refused request that never comes", "POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{", 404},
		{"header that never ends", "GET /v1/host HTTP/1.1\r\nHost:", 0},
		{"nothing", "", 0},
		{"upgrade", "GET /v1/host HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n", 200},
		{"expectation", post + "Expect: 100-continue\r\nContent-Length: 0\r\n\r\n", 201},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := patient // a busy machine takes its time, too: only where something never comes is there little
			switch {
			case c.status == 0:
				s = head
			case c.status == 408, strings.HasSuffix(c.name, "never comes"):
				s = body
			}
			conn := s.raw(t)
			_, _ = conn.Write([]byte(c.text)) // it may be refused half-way
			resp, err := http.ReadResponse(conn.in, nil)
			if err != nil {
				if c.status != 0 {
					t.Errorf("no answer: %v", err)
				}
				return
			}
			b, err := io.ReadAll(resp.Body)
			if resp.StatusCode != c.status || err != nil {
				t.Errorf("%s %s %v", resp.Status, b, err)
			}
			if resp.Header.Get(api.GradeHeader) != "cgroup" && resp.Header.Get(api.GradeHeader) != "scope" {
				t.Errorf("no grade: %v %s", resp.Header, b)
			}
			if resp.StatusCode >= 400 && asError(t, b).Grade == "" {
				t.Errorf("no grade: %s", b)
			}
		})
	}
}

// One user's hundreds of silent connections leave room for others.
func TestConnectionsOfAUserAreBounded(t *testing.T) {
	s := start(t, Config{})
	var open []net.Conn
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	for range maxConnsUser {
		c := s.raw(t)
		c.send(t, "G")
		open = append(open, c)
	}
	c := s.raw(t)
	resp, err := http.ReadResponse(c.in, nil)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(resp.Body)
	if e := asError(t, b); resp.StatusCode != 503 || e.Code != api.CodeUnavailable || e.Remedy == "" || e.Details["refused"] == "" || e.Grade != api.GradeCgroup {
		t.Errorf("%s %s", resp.Status, b)
	}
	if _, err := s.client(t).Host(within(t)); !errors.Is(err, api.ErrUnavailable) {
		t.Errorf("the client: %v", err)
	}
	if os.Getuid() == 0 {
		s.engine.add("mine", nobody)
		if got := runRules(t, s, sysProcNobody()); got[0] != "host ok" {
			t.Errorf("another user: %q", got)
		}
	}
	open[0].Close()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, err := s.client(t).Host(within(t)); err == nil {
			break
		} else if time.Now().After(end) {
			t.Fatalf("after one was closed: %v", err)
		}
	}
}

func TestSharesAreByTurnAndTotal(t *testing.T) {
	var l limits
	gateway, agent := party{1000, ""}, party{1000, "t"}
	var held []*share
	for range maxConnsTurn {
		held = append(held, l.connect(agent))
	}
	if held[maxConnsTurn-1] == nil || l.connect(agent) != nil {
		t.Error("a turn's connections are not bounded")
	}
	if s := l.connect(gateway); s == nil {
		t.Error("the turn shut out its gateway")
	} else {
		s.disconnect()
	}
	for i := range maxConnsAll - maxConnsTurn {
		held = append(held, l.connect(party{uint32(2000 + i), ""}))
	}
	if held[maxConnsAll-1] == nil || l.connect(gateway) != nil {
		t.Error("the total is not bounded")
	}
	if s := l.connect(party{}); s == nil {
		t.Error("root was shut out")
	} else {
		s.disconnect()
	}
	for _, s := range held {
		s.disconnect()
	}
	if l.total != 0 || len(l.by) != 0 {
		t.Errorf("left over: %d, %v", l.total, l.by)
	}
}

// Clients that ask for long lists and do not read them hold a bounded amount of
// memory for a bounded time, and hold up nobody but themselves.
func TestSlowReaders(t *testing.T) {
	s := start(t, Config{WriteTimeout: 300 * time.Millisecond})
	label := strings.Repeat("x", 1<<20)
	for i := range 4 {
		id := fmt.Sprint("t", i)
		s.engine.add(id, uint32(os.Getuid()))
		s.engine.change(id, func(t *api.Turn) { t.Label = label })
	}
	const readers = 100
	for range readers {
		c := s.raw(t)
		c.send(t, "GET /v1/turns HTTP/1.1\r\nHost: x\r\n\r\n")
	}
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}} // as the collection saw it: garbage may have come since
	for range 6 {
		time.Sleep(50 * time.Millisecond)
		runtime.GC()
		metrics.Read(live)
		if now, most := live[0].Value.Uint64(), uint64(maxHeavy*12+40)<<20; now > most {
			t.Errorf("%d readers hold %d MiB", readers, now>>20)
		}
	}
	_, err := s.client(t).Host(within(t))                                                                   // small answers go on
	for end := time.Now().Add(time.Minute); errors.Is(err, api.ErrUnavailable) && time.Now().Before(end); { // a busy machine makes slow readers of us, too
		_, err = s.client(t).Host(within(t))
	}
	if err != nil {
		t.Error(err)
	}
	v, err := s.client(t).Turn(within(t), "t1")
	for end := time.Now().Add(time.Minute); errors.Is(err, api.ErrUnavailable) && time.Now().Before(end); {
		v, err = s.client(t).Turn(within(t), "t1")
	}
	if err != nil || len(v.Label) != len(label) { // in its time
		t.Error(err)
	}
}

func FuzzRequest(f *testing.F) {
	for _, seed := range []string{
		"GET /v1/host HTTP/1.1\r\nHost: x\r\n\r\n", launchText(`{"argv":["x"],"stdio":{"stdin":{"mode":"pass","fd":-1}}}`),
		"POST /v1/turns HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
		"GET /v1/turns/%00/wait?timeout_ms=1 HTTP/1.1\r\nHost: x\r\n\r\n", "\x00",
	} {
		f.Add([]byte(seed))
	}
	s := start(f, Config{HeaderTimeout: time.Second, BodyTimeout: time.Second, WriteTimeout: time.Second})
	s.engine.add("one", uint32(os.Getuid()))
	f.Fuzz(func(t *testing.T, b []byte) {
		if bytes.Contains(b, []byte("/wait")) && !bytes.Contains(b, []byte("timeout_ms=1 ")) {
			return
		}
		c := s.raw(t)
		defer c.Close()
		_, _ = c.Write(b)
		_ = c.CloseWrite()
		for {
			resp, err := http.ReadResponse(c.in, nil)
			if err != nil {
				break // no more answers
			}
			if resp.StatusCode >= 200 && resp.Header.Get(api.GradeHeader) == "" && resp.StatusCode != http.StatusExpectationFailed {
				t.Fatalf("%q: %v", b, resp)
			}
			if resp.StatusCode == http.StatusInternalServerError {
				t.Fatalf("%q: internal", b)
			}
			if _, err := io.Copy(io.Discard, resp.Body); err != nil {
				break
			}
		}
	})
}
