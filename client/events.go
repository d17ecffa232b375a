package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"pinfold.dev/api"
)

// EventQuery says which events to read. A zero field does not narrow it.
type EventQuery struct {
	After    int64  // a number that was read; -1: what happens from now on
	Consumer string // begin after what it has acknowledged; not with After
	Turn     string
	Session  string
	Kinds    []api.EventKind
	Limit    int64 // events at most; 0: no bound
	Follow   bool  // go on with what comes
}

func (q EventQuery) values() url.Values {
	v := url.Values{}
	set := func(name, value string) {
		if value != "" && value != "0" {
			v.Set(name, value)
		}
	}
	set("after", strconv.FormatInt(q.After, 10))
	set("limit", strconv.FormatInt(q.Limit, 10))
	set("consumer", q.Consumer)
	set("turn", q.Turn)
	set("session", q.Session)
	var kinds []string
	for _, k := range q.Kinds {
		kinds = append(kinds, string(k))
	}
	set("kinds", strings.Join(kinds, ","))
	if q.Follow {
		v.Set("follow", "true")
	}
	return v
}

// Events is an answer that is being read.
type Events struct {
	q    EventQuery // for the rest
	body io.Closer
	in   *bufio.Reader
	done bool
}

// Events opens what happened; it is to be closed. The context bounds the reading,
// too.
func (c *Client) Events(ctx context.Context, q EventQuery) (*Events, error) {
	if q.After < 0 && q.Follow { // so that it can be gone on with, even when nothing comes
		now, err := c.now(ctx, q)
		if err != nil {
			return nil, err
		}
		q.After = now
	}
	resp, err := c.send(ctx, request{method: http.MethodGet, q: q.values(), accept: api.NDJSON, path: []string{"events"}})
	if err != nil {
		return nil, err
	}
	return &Events{q: q, body: resp.Body, in: bufio.NewReaderSize(resp.Body, 64<<10)}, nil
}

// now is the number of the newest event.
func (c *Client) now(ctx context.Context, q EventQuery) (int64, error) {
	q.Follow = false
	e, err := c.Events(ctx, q)
	if err != nil {
		return 0, err
	}
	defer e.Close()
	if _, err := e.Next(); !errors.Is(err, io.EOF) {
		return 0, api.Errorf(api.CodeUnavailable, "ask for the newest event: %v", err)
	}
	return e.q.After, nil
}

// Next returns the next event. After the last comes io.EOF, and
// io.ErrUnexpectedEOF when the answer was cut off; see Rest.
func (e *Events) Next() (api.Event, error) {
	for {
		b, err := e.in.ReadBytes('\n')
		switch {
		case errors.Is(err, io.EOF) && e.done && len(b) == 0:
			return api.Event{}, io.EOF
		case errors.Is(err, io.EOF):
			return api.Event{}, io.ErrUnexpectedEOF
		case err != nil:
			return api.Event{}, err
		}
		var l api.EventLine
		if err := json.Unmarshal(b, &l); err != nil {
			return api.Event{}, fmt.Errorf("read events: %w", err)
		}
		if l.Next != nil {
			e.seen(*l.Next)
			e.done = true
		}
		switch {
		case l.Error != nil:
			return api.Event{}, l.Error
		case l.Event != nil:
			e.seen(l.Event.Seq)
			return *l.Event, nil
		}
	}
}

func (e *Events) seen(seq int64) { e.q.After, e.q.Consumer = seq, "" }

// Rest is the query for what comes after what was read.
func (e *Events) Rest() EventQuery { return e.q }

// Close closes it.
func (e *Events) Close() error { return e.body.Close() }

// AckEvents says that a consumer has dealt with every event up to a number. When
// several say so, one answer is not Repeated.
func (c *Client) AckEvents(ctx context.Context, consumer string, seq int64) (api.AckAnswer, error) {
	return post[api.AckAnswer](ctx, c, api.AckRequest{Consumer: consumer, Seq: seq}, nil, nil, "events", "ack")
}
