package server

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys/systest"
)

// within is a deadline for what should take no time.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestEveryRouteThroughTheClient(t *testing.T) {
	s := start(t, Config{})
	c, ctx := s.client(t), within(t)
	turn := must[api.Turn](t)(c.Begin(ctx, api.BeginRequest{Label: "one", Session: "S"}))
	if turn.Label != "one" || int(turn.Owner) != os.Getuid() || turn.Grade != api.GradeScope {
		t.Errorf("begin: %+v", turn)
	}
	if l := must[api.TurnList](t)(c.Turns(ctx, false, "S")); len(l.Turns) != 1 || l.Grade != api.GradeCgroup {
		t.Errorf("turns of S: %+v", l)
	}
	if l := must[api.TurnList](t)(c.Turns(ctx, false, "other")); l.Turns == nil || len(l.Turns) != 0 {
		t.Errorf("turns of another session: %+v", l)
	}
	if p := must[api.Process](t)(c.Launch(ctx, turn.ID, api.LaunchRequest{Argv: []string{"a", "ü\n\x01"}})); p.Argv[1] != "ü\n\x01" {
		t.Errorf("launch: %+v", p)
	}
	if l := must[api.ProcessList](t)(c.Processes(ctx, turn.ID)); len(l.Processes) != 2 || l.Grade != api.GradeScope {
		t.Errorf("processes: %+v", l)
	}
	must[api.Process](t)(c.Process(ctx, turn.ID, "p2"))
	must[api.Turn](t)(c.Turn(ctx, turn.ID))
	must[api.Tree](t)(c.Tree(ctx, turn.ID))
	must[api.Host](t)(c.Host(ctx))
	if a := must[api.SignalAnswer](t)(c.Signal(ctx, turn.ID, "p2", api.SignalRequest{Signal: "TERM"})); a.Verdict != api.VerdictOwned {
		t.Errorf("signal: %+v", a)
	}
	if _, err := c.Receipt(ctx, turn.ID); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("receipt of a live turn: %v", err)
	}
	if r := must[api.Receipt](t)(c.Abandon(ctx, turn.ID, api.AbandonRequest{})); !r.Complete {
		t.Errorf("receipt: %+v", r)
	}
	must[api.Receipt](t)(c.Receipt(ctx, turn.ID))
	must[api.Turn](t)(c.WaitTurn(ctx, turn.ID))
	must[api.Process](t)(c.WaitProcess(ctx, turn.ID, "p2"))
	if l := must[api.ReceiptList](t)(c.Receipts(ctx, 1)); len(l.Receipts) != 1 {
		t.Errorf("receipts: %+v", l)
	}
	if l := must[api.TurnList](t)(c.Turns(ctx, false, "")); len(l.Turns) != 0 {
		t.Errorf("live turns after the end: %+v", l)
	}
	if l := must[api.TurnList](t)(c.TurnsIn(ctx, api.StateAbandoned)); len(l.Turns) != 1 {
		t.Errorf("abandoned turns: %+v", l)
	}
	if l := must[api.TurnList](t)(c.Turns(ctx, true, "")); len(l.Turns) != 1 {
		t.Errorf("all turns: %+v", l)
	}
	other := must[api.Turn](t)(c.Begin(ctx, api.BeginRequest{}))
	must[api.Receipt](t)(c.Finish(ctx, other.ID, api.FinishRequest{}))
	if doc := must[json.RawMessage](t)(c.OpenAPI(ctx)); !strings.Contains(string(doc), `"openapi": "3.1.0"`) {
		t.Errorf("openapi: %.100s", doc)
	}
}

func TestWaiters(t *testing.T) {
	s := start(t, Config{})
	s.engine.add("one", uint32(os.Getuid()))
	c, ctx := s.client(t), within(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if p, err := c.WaitProcess(ctx, "one", "p1"); err != nil || p.Status.Code != 7 {
				t.Errorf("wait for process: %+v %v", p, err)
			}
		})
		wg.Go(func() {
			if v, err := c.WaitTurn(ctx, "one"); err != nil || v.State != api.StateFinished {
				t.Errorf("wait for turn: %+v %v", v, err)
			}
		})
	}
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if _, err := c.WaitProcess(short, "one", "p1"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a wait that its context ends: %v", err)
	}
	status, body := s.ask(t, "GET", "/v1/turns/one/processes/p1/wait?timeout_ms=30", "")
	if e := asError(t, body); status != 408 || e.Code != api.CodeTimeout || e.Grade != api.GradeScope {
		t.Errorf("a wait that times out: %d %s", status, body)
	}
	s.engine.change("one", func(t *api.Turn) { t.Processes[0].Status = api.Status{State: api.ProcessExited, Code: 7} })
	s.engine.change("one", func(t *api.Turn) { t.State = api.StateFinished })
	wg.Wait()
}

func TestAbandonWithoutWaiting(t *testing.T) {
	s := start(t, Config{})
	s.engine.slow = time.Hour
	s.engine.add("one", uint32(os.Getuid()))
	c, ctx := s.client(t), within(t)
	if _, err := c.AbandonNow(ctx, "one", api.AbandonRequest{Epoch: 9}); !errors.Is(err, api.ErrStaleEpoch) {
		t.Errorf("stale epoch: %v", err)
	}
	if v := must[api.Turn](t)(c.AbandonNow(ctx, "one", api.AbandonRequest{})); v.State != api.StateEnding {
		t.Errorf("at once: %+v", v)
	}
	s.engine.change("one", func(t *api.Turn) { t.State = api.StateAbandoned })
	if v := must[api.Turn](t)(c.WaitTurn(ctx, "one")); v.State != api.StateAbandoned {
		t.Errorf("later: %+v", v)
	}
	s.engine.add("two", uint32(os.Getuid()))
	if status, body := s.ask(t, "POST", "/v1/turns/two/abandon?wait=false", ""); status != 202 {
		t.Errorf("status %d %s", status, body)
	}
	s.engine.change("two", func(t *api.Turn) { t.State = api.StateAbandoned })
}

func TestStoppingLeavesTurnsAndTellsWaiters(t *testing.T) {
	s := start(t, Config{})
	s.engine.add("one", uint32(os.Getuid()))
	c, ctx := s.client(t), within(t)
	answers := make(chan error, 1)
	go func() { _, err := c.WaitTurn(ctx, "one"); answers <- err }()
	systest.Until(t, "a waiter", func() bool { return s.engine.waiters.Load() == 1 })
	if err := s.stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	if err := <-answers; !errors.Is(err, api.ErrUnavailable) || !strings.Contains(err.Error(), "turns go on") {
		t.Errorf("waiter was told: %v", err)
	}
	if v, _ := s.engine.get("one"); v.State != api.StateOpen {
		t.Errorf("the turn is %s", v.State)
	}
	if _, err := os.Stat(s.socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
	_, err := c.Host(ctx)
	var e *api.Error
	if !errors.As(err, &e) || e.Code != api.CodeUnavailable || !strings.Contains(e.Remedy, "pinfold serve") {
		t.Errorf("after the end: %v", err)
	}
}

func TestPanicIsAnAnswer(t *testing.T) {
	s := start(t, Config{})
	s.engine.panics.Store(true)
	status, body := s.ask(t, "GET", "/v1/host", "")
	if e := asError(t, body); status != 500 || e.Code != api.CodeInternal || e.Grade != api.GradeCgroup {
		t.Errorf("%d %s", status, body)
	}
	s.engine.panics.Store(false)
	must[api.Host](t)(s.client(t).Host(within(t)))
}

func TestCurl(t *testing.T) {
	systest.Program(t, "curl")
	s := start(t, Config{})
	curl := func(args ...string) string {
		out, err := exec.Command("curl", append([]string{"-sS", "--fail-with-body", "--unix-socket", s.socket}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("curl %q: %v\n%s", args, err, out)
		}
		return string(out)
	}
	var turn api.Turn
	if err := json.Unmarshal([]byte(curl("--json", `{"label":"by hand"}`, "http://pinfold/v1/turns")), &turn); err != nil || turn.Label != "by hand" {
		t.Fatal(turn, err)
	}
	at := "http://pinfold/v1/turns/" + turn.ID
	if out := curl("--json", `{"argv":["true"]}`, at+"/processes"); !strings.Contains(out, `"argv":["true"]`) {
		t.Error(out)
	}
	if out := curl("-i", at); !strings.Contains(out, "Pinfold-Grade: scope\r\n") {
		t.Error(out)
	}
	if out := curl("-X", "POST", at+"/abandon"); !strings.Contains(out, `"complete":true`) {
		t.Error(out)
	}
	out, err := exec.Command("curl", "-sS", "--unix-socket", s.socket, "-d", "{}", at+"/abandon").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--json") {
		t.Errorf("without a content type: %s %v", out, err)
	}
}

// ask sends one request by hand. It checks what every answer has.
func (s *service) ask(t testing.TB, method, path, body string) (int, []byte) {
	t.Helper()
	tr := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return net.Dial("unix", s.socket)
	}}
	r, err := http.NewRequestWithContext(within(t), method, "http://pinfold", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.URL.Opaque = path // as it is
	if before, query, ok := strings.Cut(path, "?"); ok {
		r.URL.Opaque, r.URL.RawQuery = before, query
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	resp, err := tr.RoundTrip(r)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	var v struct {
		Grade api.Grade `json:"grade"`
	}
	if err := json.Unmarshal(b, &v); err != nil || v.Grade == "" && path != "/v1/openapi.json" || resp.Header.Get(api.GradeHeader) == "" {
		t.Errorf("%s %s: no grade: %v %s %s", method, path, resp.Header, b, err)
	}
	return resp.StatusCode, b
}

func asError(t testing.TB, b []byte) api.Error {
	t.Helper()
	var e api.Error
	if err := json.Unmarshal(b, &e); err != nil || e.Code == "" || e.Message == "" {
		t.Fatalf("%s is not an error: %v", b, err)
	}
	return e
}
