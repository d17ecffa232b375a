package server

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/client"
)

// keeping is a service whose turn "one" has a process that keeps stdout.
func keeping(t *testing.T) (*service, *stream) {
	s := start(t, Config{})
	s.engine.add("one", 0)
	out := newStream()
	s.engine.mu.Lock()
	defer s.engine.mu.Unlock()
	s.engine.streams = map[api.StreamName]*stream{api.StreamStdout: out}
	return s, out
}

func readAll(t *testing.T, c *client.Client, q client.OutputQuery) (text string, o *client.Output, next int64) {
	t.Helper()
	o, err := c.Output(t.Context(), "one", "p1", q)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	b, err := io.ReadAll(o)
	if err != nil {
		t.Fatal(err)
	}
	if next, err = o.Next(); err != nil {
		t.Fatal(err)
	}
	return string(b), o, next
}

func number(n int64) *int64 { return &n }

func TestRawOutput(t *testing.T) {
	s, out := keeping(t)
	c := s.client(t)
	out.first = 100
	out.write([]byte("0123456789"))
	for _, tt := range []struct {
		q            client.OutputQuery
		text         string
		offset, next int64
	}{
		{client.OutputQuery{}, "0123456789", 100, 110},
		{client.OutputQuery{Offset: 50}, "0123456789", 100, 110}, // in a gap
		{client.OutputQuery{Offset: 104}, "456789", 104, 110},
		{client.OutputQuery{Offset: 104, Limit: 3}, "456", 104, 107},
		{client.OutputQuery{Tail: number(2)}, "89", 108, 110},
		{client.OutputQuery{Tail: number(0)}, "", 110, 110},
		{client.OutputQuery{Tail: number(4000)}, "0123456789", 100, 110},
		{client.OutputQuery{Offset: 200}, "", 200, 200}, // not written yet
	} {
		text, o, next := readAll(t, c, tt.q)
		if text != tt.text || o.Offset != tt.offset || next != tt.next || o.Total != 110 || o.Dropped != 100 {
			t.Errorf("%+v: %q from %d, next %d, total %d, dropped %d", tt.q, text, o.Offset, next, o.Total, o.Dropped)
		}
	}
}

// A gap that opens while a raw answer is under way ends it; lines go on.
func TestGapOnTheWay(t *testing.T) {
	s, out := keeping(t)
	c := s.client(t)
	out.write([]byte("early"))
	o, err := c.Output(t.Context(), "one", "p1", client.OutputQuery{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	l, err := c.OutputLines(t.Context(), "one", "p1", client.OutputQuery{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := io.ReadFull(o, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	if line, err := l.Next(); err != nil || string(line.Data) != "early" || *line.Offset != 0 {
		t.Fatalf("%+v (%v)", line, err)
	}
	out.change(func() { out.first, out.text, out.closed = 50, []byte("late"), true })
	rest, err := io.ReadAll(o)
	if next, nerr := o.Next(); err != nil || nerr != nil || len(rest) != 0 || next != 50 {
		t.Errorf("raw: %q, next %d (%v, %v)", rest, next, err, nerr)
	}
	line, err := l.Next()
	if err != nil || line.Gap == nil || *line.Gap != (api.Gap{From: 5, To: 50, Reason: "overwritten"}) {
		t.Errorf("gap: %+v (%v)", line, err)
	}
	if line, err = l.Next(); err != nil || string(line.Data) != "late" || *line.Offset != 50 {
		t.Errorf("after it: %+v (%v)", line, err)
	}
	if line, err = l.Next(); err != nil || line.Next == nil || *line.Next != 54 || !line.EOF || line.Grade != api.GradeScope {
		t.Errorf("last: %+v (%v)", line, err)
	}
	if _, err := l.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("after the last: %v", err)
	}
}

// Where nothing is kept any more, each write is no line of its own. The first is
// told at once.
func TestGapThatGoesOn(t *testing.T) {
	s, out := keeping(t)
	l, err := s.client(t).OutputLines(within(t), "one", "p1", client.OutputQuery{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	out.change(func() { out.first++ })
	if line, err := l.Next(); err != nil || line.Gap == nil || line.Gap.To != 1 {
		t.Fatalf("%+v (%v)", line, err)
	}
	began := time.Now()
	go func() {
		for range 299 {
			out.change(func() { out.first++ })
			time.Sleep(time.Millisecond)
		}
		out.change(func() { out.closed = true })
	}()
	lines, missed := 0, int64(1)
	for {
		line, err := l.Next()
		if err != nil {
			t.Fatal(err)
		}
		if line.Gap == nil {
			break
		}
		lines++
		if line.Gap.From != missed {
			t.Errorf("%+v after %d", *line.Gap, missed)
		}
		missed = line.Gap.To
	}
	if most := int(time.Since(began)/gapPause) + 2; missed != 300 || lines > most {
		t.Errorf("%d lines, at most %d; they tell of %d bytes", lines, most, missed)
	}
}

// Readers that do not read hold up nobody, and cost one piece of output.
func TestStuckReader(t *testing.T) {
	s, out := keeping(t)
	stuck, err := net.Dial("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(stuck, "GET /v1/turns/one/processes/p1/output?follow=true HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	awaitReaders(t, out, 1)
	want := bytes.Repeat([]byte("sixteen letters\n"), 1<<16) // 1 MiB, more than a socket takes
	o, err := s.client(t).Output(t.Context(), "one", "p1", client.OutputQuery{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	out.write(want)
	out.change(func() { out.closed = true })
	got, err := io.ReadAll(o)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, want %d (%v)", len(got), len(want), err)
	}
	out.mu.Lock()
	if out.most > chunk || out.open == 0 {
		t.Errorf("%d bytes at once, %d readers", out.most, out.open)
	}
	out.mu.Unlock()
	stuck.Close() // it has gone, which is noticed
	awaitReaders(t, out, 0)
}

func awaitReaders(t *testing.T, out *stream, n int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		out.mu.Lock()
		open := out.open
		out.mu.Unlock()
		if open == n {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d readers, want %d", open, n)
		}
	}
}

func TestReaderThatVanishes(t *testing.T) {
	s, out := keeping(t)
	ctx, cancel := context.WithCancel(t.Context())
	o, err := s.client(t).Output(ctx, "one", "p1", client.OutputQuery{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	awaitReaders(t, out, 1)
	cancel() // nothing is ever written
	awaitReaders(t, out, 0)
}

// Its last line comes, also from a service that is late with it.
func TestFollowEndsWithTheService(t *testing.T) {
	t.Parallel()
	s, out := keeping(t)
	out.late = lastWrite + 200*time.Millisecond
	out.write([]byte("some"))
	l, err := s.client(t).OutputLines(t.Context(), "one", "p1", client.OutputQuery{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := l.Next(); err != nil {
		t.Fatal(err)
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	if line, err := l.Next(); err != nil || line.Next == nil || *line.Next != 4 || line.EOF {
		t.Errorf("%+v (%v)", line, err)
	}
}

func TestFollowDrains(t *testing.T) {
	s, out := keeping(t)
	drain := time.Second
	out.write([]byte("some"))
	out.change(func() { out.exit = &api.Status{State: api.ProcessExited, Code: 3} })
	l, err := s.client(t).OutputLines(t.Context(), "one", "p1", client.OutputQuery{Follow: true, Drain: &drain})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if line, err := l.Next(); err != nil || string(line.Data) != "some" {
		t.Fatalf("%+v (%v)", line, err)
	}
	if line, err := l.Next(); err != nil || line.EOF || line.Exit == nil || line.Exit.Code != 3 {
		t.Errorf("%+v (%v)", line, err)
	}
}

func TestBadOutputRequests(t *testing.T) {
	s, _ := keeping(t)
	for _, q := range []string{"offset=-1", "offset=x", "offset=1&tail=1", "tail=-1", "limit=-2", "follow=maybe", "drain_ms=5",
		"stream=stdin2&x=1", "offset=99999999999999999999"} {
		if code := raw(t, s, "GET", "/v1/turns/one/processes/p1/output?"+q, ""); code != 400 {
			t.Errorf("%s: %d", q, code)
		}
	}
	if code := raw(t, s, "GET", "/v1/turns/one/processes/p1/output?stream=stderr", ""); code != 404 {
		t.Errorf("not kept: %d", code)
	}
}

// raw asks and returns the status.
func raw(t *testing.T, s *service, method, path, body string) int {
	t.Helper()
	conn, err := net.Dial("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, method+" "+path+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"+body); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(conn)
	if err != nil || len(b) < 12 {
		t.Fatalf("%q (%v)", b, err)
	}
	return int(b[9]-'0')*100 + int(b[10]-'0')*10 + int(b[11]-'0')
}

// counter counts what was taken from it.
type counter struct {
	r io.Reader
	n chan int
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if n > 0 {
		c.n <- n
	}
	return n, err
}

func TestStdinGoesAsFastAsItIsRead(t *testing.T) {
	s, _ := keeping(t)
	stdin := s.engine.openStdin()
	want := strings.Repeat("sixteen letters\n", 1<<19) // 8 MiB
	taken := make(chan int, 1<<20)
	done := make(chan error, 1)
	var a api.InputAnswer
	go func() {
		var err error
		a, err = s.client(t).WriteStdin(t.Context(), "one", "p1", &counter{strings.NewReader(want), taken}, true)
		done <- err
	}()
	for sum, quiet := 0, false; !quiet; { // until the client is held back
		select {
		case n := <-taken:
			if sum += n; sum > 4<<20 {
				t.Fatalf("%d bytes were taken, and none was read", sum)
			}
		case <-time.After(500 * time.Millisecond):
			quiet = true
		}
	}
	var got strings.Builder
	for piece := range stdin {
		got.WriteString(piece)
	}
	if err := <-done; err != nil || a.Bytes != int64(len(want)) || !a.Closed || got.String() != want {
		t.Errorf("%+v (%v), %d bytes came", a, err, got.Len())
	}
}

func TestStdinThatNobodyReads(t *testing.T) {
	s, _ := keeping(t)
	_, err := s.client(t).WriteStdin(t.Context(), "one", "p1", strings.NewReader("x"), false)
	var e *api.Error
	if !errors.As(err, &e) || e.Code != api.CodeStdinClosed || e.Details["bytes"] != "0" {
		t.Errorf("%+v", err)
	}
}

// A client that goes while its process does not read leaves nothing behind.
func TestWriterThatVanishes(t *testing.T) {
	s, _ := keeping(t)
	s.engine.openStdin()
	conn, err := net.Dial("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.WriteString(conn, "POST /v1/turns/one/processes/p1/stdin HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nsome")
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); s.engine.writers.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("nobody writes")
		}
	}
	conn.Close()
	for end := time.Now().Add(time.Minute); s.engine.writers.Load() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the writer is still waited for")
		}
	}
}

// What was cut off is no end: a process that reads to its end must not take half
// of it for the whole.
func TestInputThatIsCutOff(t *testing.T) {
	for _, c := range []struct{ name, head, body string }{
		{"with a length", "Content-Length: 100000", "half"},
		{"in chunks", "Transfer-Encoding: chunked", "4\r\nhalf\r\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, _ := keeping(t)
			stdin := s.engine.openStdin()
			conn := s.raw(t)
			conn.send(t, "POST /v1/turns/one/processes/p1/stdin?close=true HTTP/1.1\r\nHost: x\r\n"+c.head+"\r\n\r\n"+c.body)
			if got := <-stdin; got != "half" {
				t.Errorf("%q came", got)
			}
			for s.engine.writers.Load() > 0 {
				time.Sleep(time.Millisecond)
			}
			conn.Close()
			select {
			case got, open := <-stdin:
				t.Errorf("then %q came, open %t", got, open)
			case <-time.After(300 * time.Millisecond):
			}
		})
	}
}

// A line that came in two pieces is one: another writer's is not in between.
func TestInputOfOneRequestIsTogether(t *testing.T) {
	s, _ := keeping(t)
	stdin := s.engine.openStdin()
	const ask = "POST /v1/turns/one/processes/p1/stdin HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\n\r\n"
	a, b := s.raw(t), s.raw(t)
	a.send(t, ask+"one")
	b.send(t, ask+"other\n")
	if got := <-stdin; got != "other\n" {
		t.Errorf("%q came", got)
	}
	a.send(t, "...")
	if got := <-stdin; got != "one..." {
		t.Errorf("then %q", got)
	}
	c := s.raw(t)
	c.send(t, ask+"cut")
	c.Close()
	select {
	case got := <-stdin:
		t.Errorf("%q came of what was cut off", got)
	case <-time.After(300 * time.Millisecond):
	}
}

func TestStreamsOfProcesses(t *testing.T) {
	s, _ := keeping(t)
	c := s.client(t)
	if a, err := c.Resize(t.Context(), "one", "p1", api.ResizeRequest{Rows: 5, Cols: 6}); err != nil || a.Rows != 5 || a.Cols != 6 {
		t.Errorf("resize: %+v (%v)", a, err)
	}
	if p, err := c.Acknowledge(t.Context(), "one", "p1"); err != nil || !p.Acknowledged {
		t.Errorf("ack: %+v (%v)", p, err)
	}
	if p, err := c.Join(t.Context(), "one", api.JoinRequest{Argv: []string{"x"}}); err != nil || !p.InPlace || p.PID == 0 {
		t.Errorf("join: %+v (%v)", p, err)
	}
	if code := raw(t, s, "POST", "/v1/turns/one/processes/p1/ack", ""); code != 200 {
		t.Errorf("ack with nothing: %d", code)
	}
}

// What a process writes is its output, also where it looks like a refusal of
// net/http's: the beginning of an answer is the service's to say.
func TestOutputThatLooksLikeARefusal(t *testing.T) {
	s, out := keeping(t)
	const like = "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\nfoo"
	text := strings.Repeat("x", 4096-len("10000\r\n")) + like // net/http writes 4 KiB, then the rest of a chunk at once
	text += strings.Repeat("y", 2*chunk-len(text))
	out.change(func() { out.text, out.closed = []byte(text), true })
	got, _, next := readAll(t, s.client(t), client.OutputQuery{})
	if got != text || next != int64(len(text)) {
		t.Errorf("%d bytes of %d, the same: %v; next %d", len(got), len(text), got == text, next)
	}
	c := s.raw(t) // and net/http's own becomes one of ours, also after another answer
	for _, ask := range []struct {
		text   string
		status int
	}{{"GET /v1/host HTTP/1.1\r\nHost: x\r\n\r\n", 200}, {"GET /v1/host HTTP/1.1\r\n\r\n", 400}} {
		c.send(t, ask.text)
		if status, _ := c.answer(t); status != ask.status { // and it is JSON
			t.Error(status)
		}
	}
}

// An answer that comes before all of a large request was sent is told, not that
// the connection was lost.
func TestEarlyAnswerToALargeRequest(t *testing.T) {
	s := start(t, Config{})
	s.engine.add("one", 0)
	c := s.client(t)
	large := strings.Repeat("x", 2*maxBody)
	if _, err := c.WriteStdin(t.Context(), "one", "p1", strings.NewReader(large), true); !errors.Is(err, api.ErrStdinClosed) {
		t.Errorf("stdin: %v", err)
	}
	if _, err := c.Begin(t.Context(), api.BeginRequest{Label: large}); codeOfError(err) != api.CodeTooLarge {
		t.Errorf("begin: %v", err)
	}
	if _, err := c.Host(t.Context()); err != nil {
		t.Error(err)
	}
}
