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
	"time"

	"pinfold.dev/api"
)

// OutputQuery says what to read of a kept stream.
type OutputQuery struct {
	Stream api.StreamName // empty: stdout
	// Offset is that of the first byte; Tail, when it is not nil, begins that
	// many bytes before the end instead.
	Offset int64
	Tail   *int64
	Limit  int64 // bytes at most; 0: no bound
	// Follow goes on with what comes, until the stream ends or, with Drain, that
	// long after the process's end.
	Follow bool
	Drain  *time.Duration
}

func (q OutputQuery) values() url.Values {
	v := url.Values{}
	number := func(name string, n int64) { v.Set(name, strconv.FormatInt(n, 10)) }
	if q.Stream != "" {
		v.Set("stream", string(q.Stream))
	}
	if q.Offset != 0 {
		number("offset", q.Offset)
	}
	if q.Tail != nil {
		number("tail", *q.Tail)
	}
	if q.Limit != 0 {
		number("limit", q.Limit)
	}
	if q.Follow {
		v.Set("follow", "true")
	}
	if q.Drain != nil {
		number("drain_ms", q.Drain.Milliseconds())
	}
	return v
}

// Output is a kept stream as raw bytes. It ends where asked, at the stream's end
// or at a gap: then Next is beyond what was read, and where to go on.
type Output struct {
	Offset  int64 // of the first byte
	Total   int64 // bytes the stream had had when it was opened
	Dropped int64 // of these, the bytes that could not be read any more
	resp    *http.Response
}

// Output opens a kept stream; it is to be closed. The context bounds the reading,
// too.
func (c *Client) Output(ctx context.Context, turn, process string, q OutputQuery) (*Output, error) {
	resp, err := c.send(ctx, outputRequest(turn, process, q, "application/octet-stream"))
	if err != nil {
		return nil, err
	}
	o := &Output{resp: resp}
	for name, to := range map[string]*int64{api.OffsetHeader: &o.Offset, api.TotalHeader: &o.Total, api.DroppedHeader: &o.Dropped} {
		if *to, err = strconv.ParseInt(resp.Header.Get(name), 10, 64); err != nil {
			resp.Body.Close()
			return nil, api.Errorf(api.CodeInternal, "the answer's %s is %q", name, resp.Header.Get(name))
		}
	}
	return o, nil
}

func outputRequest(turn, process string, q OutputQuery, accept string) request {
	return request{method: http.MethodGet, q: q.values(), accept: accept,
		path: []string{"turns", turn, "processes", process, "output"}}
}

// Read reads bytes. io.ErrUnexpectedEOF: the service went before the end.
func (o *Output) Read(p []byte) (int, error) { return o.resp.Body.Read(p) }

// Next is where to go on, once Read has returned io.EOF.
func (o *Output) Next() (int64, error) {
	s := o.resp.Trailer.Get(api.NextOffsetHeader)
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, io.ErrUnexpectedEOF
	}
	return n, nil
}

// Close closes it.
func (o *Output) Close() error { return o.resp.Body.Close() }

// OutputLines is a kept stream with its gaps.
type OutputLines struct {
	body io.Closer
	in   *bufio.Reader
	done bool
}

// OutputLines opens a kept stream; it is to be closed. The context bounds the
// reading, too.
func (c *Client) OutputLines(ctx context.Context, turn, process string, q OutputQuery) (*OutputLines, error) {
	resp, err := c.send(ctx, outputRequest(turn, process, q, api.NDJSON))
	if err != nil {
		return nil, err
	}
	return &OutputLines{body: resp.Body, in: bufio.NewReaderSize(resp.Body, 128<<10)}, nil
}

// Next returns the next line. The last one has Next set; after it comes io.EOF,
// and io.ErrUnexpectedEOF when the answer was cut off.
func (o *OutputLines) Next() (api.OutputLine, error) {
	var l api.OutputLine
	b, err := o.in.ReadBytes('\n')
	switch {
	case errors.Is(err, io.EOF) && o.done && len(b) == 0:
		return l, io.EOF
	case errors.Is(err, io.EOF):
		return l, io.ErrUnexpectedEOF
	case err != nil:
		return l, err
	}
	if err := json.Unmarshal(b, &l); err != nil {
		return l, fmt.Errorf("read output: %w", err)
	}
	o.done = l.Next != nil
	return l, nil
}

// Close closes it.
func (o *OutputLines) Close() error { return o.body.Close() }

// WriteStdin writes all of r to a process's stdin, as fast as the process reads,
// and with closes closes it after that. The error api.ErrStdinClosed tells in
// its details.bytes how many were taken.
func (c *Client) WriteStdin(ctx context.Context, turn, process string, r io.Reader, closes bool) (api.InputAnswer, error) {
	ask := request{method: http.MethodPost, body: r, typ: "application/octet-stream",
		path: []string{"turns", turn, "processes", process, "stdin"}}
	if closes {
		ask.q = url.Values{"close": {"true"}}
	}
	return read[api.InputAnswer](ctx, c, ask)
}
