package server

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys/systest"
)

// asker speaks to the server on one connection, as long as that lasts.
type asker struct {
	s *service
	c *rawConn
}

// ask sends one request as it is; the answer is one that a client can read.
func (a *asker) ask(t *testing.T, text []byte) (int, []byte) {
	t.Helper()
	if a.c == nil {
		c, err := net.Dial("unix", a.s.socket)
		if err != nil {
			t.Fatal(err)
		}
		a.c = &rawConn{c.(*net.UnixConn), bufio.NewReader(c)}
	}
	_ = a.c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := a.c.Write(text); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	resp, err := http.ReadResponse(a.c.in, nil)
	if err != nil {
		t.Fatalf("%q: no answer: %v", text, err)
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%q: half an answer: %v", text, err)
	}
	if resp.Close {
		a.c.Close()
		a.c = nil
	}
	if resp.StatusCode == http.StatusInternalServerError || resp.Header.Get(api.GradeHeader) == "" {
		t.Fatalf("%q: %s %v %s", text, resp.Status, resp.Header, b)
	}
	if resp.StatusCode >= 400 {
		var e api.Error
		if json.Unmarshal(b, &e) != nil || e.Code == "" || e.Message == "" || len(b) > 4000 {
			t.Fatalf("%q: refused with %q", text, b)
		}
	}
	return resp.StatusCode, b
}

// bodies are the paths that take a JSON body, and what each decodes it as.
func bodies() []struct {
	path string
	as   func() any
} {
	return []struct {
		path string
		as   func() any
	}{
		{"/v1/turns/one/processes", func() any { return new(api.LaunchRequest) }},
		{"/v1/turns/one/processes/p1/resize", func() any { return new(api.ResizeRequest) }},
		{"/v1/turns/one/processes/p1/signal", func() any { return new(api.SignalRequest) }},
		{"/v1/turns/one/processes/p1/ack", func() any { return new(struct{}) }},
		{"/v1/turns/one/join", func() any { return new(api.JoinRequest) }},
		{"/v1/turns", func() any { return new(api.BeginRequest) }},
		{"/v1/turns/one/adopt", func() any { return new(api.AdoptRequest) }},
	}
}

// FuzzBody: what is taken is what encoding/json reads in it too; the rest is
// refused, on a connection that goes on.
func FuzzBody(f *testing.F) {
	for i, seed := range []string{
		`{"argv":["a","\u0000"],"env":[],"env_add":["A=b","C"],"cwd":"/","umask":"077","nice":-20,"rlimits":{"nofile":{"soft":-1,"hard":9223372036854775807}}}`,
		`{"argv_b64":["/w=="],"stdio":{"stdin":{"mode":"data","data":"aGk="},"stdout":{"mode":"spool","max_bytes":4096},"stderr":{"mode":"stdout"},"pty":{"rows":-1,"cols":1e3}}}`,
		`{"argv":["a"],"stdio":{"stdin":{"mode":"pass","fd":-1},"stdout":{"mode":"pass","fd":2147483648}},"pass_fds":[{"fd":0,"number":3},{"fd":0,"number":-3}]}`,
		`{"argv":["a"],"stdio":null,"labels":{"":""},"deadline_ms":-9223372036854775808}`, `{"argv":["a"],"stdio":{"stdin":{"mod":"null"}}}`,
		`{"rows":24,"cols":80}`, `{"rows":-9223372036854775808,"cols":9223372036854775807,"epoch":1}`, `{"rows":1e99}`, `{"rows":99999999999999999999}`,
		`{"process":{"pid":-1,"start_ticks":18446744073709551615,"pidfs_ino":0},"tree":true}`, `{"process":{"pid":99999999999,"boot":"\u0000"},"ancestor":1}`,
		`{"signal":"TERM"}`, `{}`, `{"argv":["x"],"finish_turn":true}`, `{"label":"x","output_max":-1}`, `[]`, "{\"argv\":[\"\xff\"]}", ``, ` `, `{"a`, `{}{}`,
	} {
		f.Add(uint8(i), []byte(seed))
		f.Add(uint8(1), []byte(seed))
	}
	a := asker{s: start(f, Config{})}
	a.s.engine.add("one", uint32(os.Getuid()))
	f.Fuzz(func(t *testing.T, n uint8, body []byte) {
		b := bodies()[int(n)%len(bodies())]
		status, _ := a.ask(t, fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", b.path, len(body), body))
		d := json.NewDecoder(bytes.NewReader(body))
		d.DisallowUnknownFields()
		err := d.Decode(b.as())
		_, after := d.Token()
		fine := len(body) == 0 || utf8.Valid(body) && err == nil && after == io.EOF
		if launches := strings.HasSuffix(b.path, "/processes"); fine != (status < 300) && !(launches && fine) { // the engine refuses some
			t.Fatalf("%s: %d for %q (%v)", b.path, status, body, err)
		}
	})
}

// FuzzQuery: parameters are taken in their range, or refused; what is read is
// where it was asked for.
func FuzzQuery(f *testing.F) {
	for i, seed := range []string{
		"offset=0", "offset=-1", "offset=9223372036854775807", "offset=4611686018427387904", "offset=1e3", "offset=+5", "offset=0x10", "offset=", "offset=5&offset=6",
		"tail=3", "tail=-3", "tail=9223372036854775808", "offset=1&tail=1", "limit=-1", "limit=0", "limit=2&offset=3", "follow=true", "follow=yes", "stream=stderr",
		"stream=%00", "drain_ms=1", "drain_ms=-1&follow=true", "timeout_ms=0", "timeout_ms=-5", "%zz", "a=b", "&&", ";", "offset=%31",
	} {
		for _, lines := range []bool{false, true} {
			f.Add(uint8(i), seed, lines)
		}
	}
	a := asker{s: start(f, Config{})}
	a.s.engine.add("one", uint32(os.Getuid()))
	const text = "0123456789"
	out := newStream()
	out.write([]byte(text))
	out.change(func() { out.closed = true })
	a.s.engine.streams = map[api.StreamName]*stream{api.StreamStdout: out}
	paths := []string{"/processes/p1/output", "/processes/p1/output", "/processes/p1", "/receipt", "/tree"}
	f.Fuzz(func(t *testing.T, n uint8, query string, lines bool) {
		path := "/v1/turns/one" + paths[int(n)%len(paths)]
		req := "GET " + path + "?" + query + " HTTP/1.1\r\nHost: x\r\n"
		if lines {
			req += "Accept: " + api.NDJSON + "\r\n"
		}
		if r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader([]byte(req + "\r\n")))); err != nil || r.URL.Path != path || r.URL.RawQuery != query {
			return // another request than was meant
		}
		status, body := a.ask(t, []byte(req+"\r\n"))
		q, err := url.ParseQuery(query)
		switch {
		case status >= 300:
		case err != nil:
			t.Fatalf("%q is taken", query)
		case int(n)%len(paths) < 2 && !lines && !bytes.Contains([]byte(text), body):
			t.Fatalf("%q: %q", query, body)
		case int(n)%len(paths) >= 2 && len(q) > 0:
			t.Fatalf("%q is taken by %s", query, path)
		}
		systest.Until(t, "that it is closed, after its answer", func() bool {
			out.mu.Lock()
			defer out.mu.Unlock()
			return out.open == 0
		})
	})
}
