package server

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/client"
	"pinfold.dev/containment"
)

// happened is what an engine tells: events 1 to last, each long enough that a
// reader who does not read is noticed.
type happened struct {
	mu      sync.Mutex
	last    int64
	changed chan struct{}
	asked   []containment.EventQuery
	acked   map[string]int64
	err     error
}

func (h *happened) add(n int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last += n
	close(h.changed)
	h.changed = make(chan struct{})
}

func (h *happened) Events(_ context.Context, q containment.EventQuery) (out []api.Event, next int64, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil {
		return nil, q.After, h.err
	}
	h.asked = append(h.asked, q)
	if q.After < 0 {
		return nil, h.last, nil
	}
	next = q.After
	for next < h.last && len(out) < q.Limit {
		next++
		out = append(out, api.Event{Seq: next, Kind: api.EventExit, Turn: "one", Message: strings.Repeat("x", 500)})
	}
	return out, next, nil
}

func (h *happened) WaitEvents(ctx context.Context, seq int64) error {
	for {
		h.mu.Lock()
		last, changed := h.last, h.changed
		h.mu.Unlock()
		if last > seq {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (h *happened) Acknowledged(_ context.Context, _ uint32, consumer string) (int64, error) {
	return h.acked[consumer], nil
}

func (h *happened) AckEvents(_ context.Context, owner uint32, req api.AckRequest) (api.AckAnswer, error) {
	return api.AckAnswer{Consumer: req.Consumer, Seq: req.Seq + int64(owner), Repeated: true, Grade: api.GradeScope}, nil
}

func telling(t *testing.T, cfg Config, n int64) (*service, *happened) {
	s := start(t, cfg)
	h := &happened{changed: make(chan struct{}), last: n, acked: map[string]int64{"c": 4}}
	s.engine.Happenings = h
	return s, h
}

func allEvents(t *testing.T, c *client.Client, q client.EventQuery) (seqs []int64, rest client.EventQuery) {
	t.Helper()
	es, err := c.Events(within(t), q)
	if err != nil {
		t.Fatal(err)
	}
	defer es.Close()
	for {
		e, err := es.Next()
		if errors.Is(err, io.EOF) {
			return seqs, es.Rest()
		} else if err != nil {
			t.Fatal(err)
		}
		seqs = append(seqs, e.Seq)
	}
}

func TestEventsAreAsked(t *testing.T) {
	s, h := telling(t, Config{}, 6)
	c := s.client(t)
	for _, tt := range []struct {
		q    client.EventQuery
		want []int64
		next int64
	}{
		{client.EventQuery{}, []int64{1, 2, 3, 4, 5, 6}, 6},
		{client.EventQuery{After: 4}, []int64{5, 6}, 6},
		{client.EventQuery{After: 1, Limit: 2}, []int64{2, 3}, 3},
		{client.EventQuery{Consumer: "c"}, []int64{5, 6}, 6},
		{client.EventQuery{Consumer: "new"}, []int64{1, 2, 3, 4, 5, 6}, 6},
		{client.EventQuery{After: -1}, nil, 6},
	} {
		if got, rest := allEvents(t, c, tt.q); !slices.Equal(got, tt.want) || rest.After != tt.next || rest.Consumer != "" {
			t.Errorf("%+v: %v, rest %+v", tt.q, got, rest)
		}
	}
	h.asked = nil
	allEvents(t, c, client.EventQuery{Turn: "t", Session: "s", Kinds: []api.EventKind{api.EventExit, api.EventEnded}})
	q := h.asked[0]
	if q.Turn != "t" || q.Session != "s" || len(q.Kinds) != 2 || os.Getuid() != 0 && (q.Owner == nil || int(*q.Owner) != os.Getuid()) {
		t.Errorf("%+v", q)
	}
	for _, query := range []string{"after=-2", "after=x", "after=1&consumer=c", "turn=", "session=", "consumer=", "kinds=", "kinds=exit,", "kinds=nope",
		"limit=-1", "follow=yes", "all=true"} {
		if code, b := s.ask(t, http.MethodGet, "/v1/events?"+query, ""); code != http.StatusBadRequest || asError(t, b).Code != api.CodeBadRequest {
			t.Errorf("%s: %d %s", query, code, b)
		}
	}
	if a, err := c.AckEvents(within(t), "c", 5); err != nil || !a.Repeated || a.Seq != 5+int64(os.Getuid()) {
		t.Errorf("%+v %v", a, err)
	}
	h.mu.Lock()
	h.err = errors.New("the disk is gone")
	h.mu.Unlock()
	es, err := c.Events(within(t), client.EventQuery{After: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer es.Close()
	var e *api.Error
	if _, err := es.Next(); !errors.As(err, &e) || e.Code != api.CodeInternal || es.Rest().After != 3 {
		t.Errorf("%v, rest %+v", err, es.Rest())
	}
}

func TestEventsAreFollowed(t *testing.T) {
	s, h := telling(t, Config{}, 2)
	es, err := s.client(t).Events(within(t), client.EventQuery{After: -1, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer es.Close()
	if es.Rest().After != 2 {
		t.Errorf("begins after %d", es.Rest().After)
	}
	for seq := int64(3); seq < 6; seq++ {
		h.add(1)
		if e, err := es.Next(); err != nil || e.Seq != seq {
			t.Fatalf("%+v %v", e, err)
		}
	}
	go s.stop()
	if e, err := es.Next(); !errors.Is(err, io.EOF) || es.Rest().After != 5 {
		t.Errorf("the service stops: %+v %v, rest %+v", e, err, es.Rest())
	}
}

// cutEvents counts events, and goes on where it was cut off: on a busy machine every
// reader may be one that does not read.
func cutEvents(t *testing.T, c *client.Client, q client.EventQuery) (n int) {
	t.Helper()
	for ctx := within(t); ; {
		es, err := c.Events(ctx, q)
		if errors.Is(err, api.ErrUnavailable) { // cut off before its first line
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		for err == nil {
			if _, err = es.Next(); err == nil {
				n++
			}
		}
		es.Close()
		if errors.Is(err, io.EOF) {
			return n
		}
		if q = es.Rest(); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatal(err)
		}
	}
}

// A reader that does not read is cut off, and others are not delayed by it.
func TestStuckReaderIsCutOff(t *testing.T) {
	s, h := telling(t, Config{WriteTimeout: 100 * time.Millisecond}, 0)
	stuck, line := s.raw(t), ""
	for end := time.Now().Add(time.Minute); line == ""; { // an answer that is late is cut off, too
		stuck.Close()
		stuck = s.raw(t)
		stuck.send(t, "GET /v1/events?follow=true HTTP/1.1\r\nHost: x\r\n\r\n")
		line, _ = bufio.NewReaderSize(stuck.UnixConn, 16).ReadString('\n')
		if time.Now().After(end) {
			t.Fatal("no answer")
		}
	}
	if !strings.Contains(line, "200") {
		t.Fatal(line)
	}
	const many = 20_000 // 10 MB, more than any socket takes
	h.add(many)
	c := s.client(t)
	if got := cutEvents(t, c, client.EventQuery{}); got != many {
		t.Errorf("another reader got %d", got)
	}
	c.Close()
	s.unaccounted(t) // it is cut off
	_ = stuck.SetReadDeadline(time.Now().Add(time.Minute))
	b, err := io.ReadAll(stuck)
	if err != nil || strings.Contains(string(b), `"next"`) || len(b) > 5<<20 {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}
