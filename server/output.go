package server

import (
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/containment"
)

// streamer is an answer that writes itself, piece by piece.
type streamer interface{ stream(c *call) }

// outputAnswer is what GET …/output answers with: raw bytes, or lines.
type outputAnswer struct {
	in     containment.Reading
	off    int64
	most   int64 // bytes at most; -1: no bound
	follow bool
	drain  time.Duration
	lines  bool
	start  api.StreamStatus
	bufs   *sync.Pool
}

// output opens the stream and finds where to begin. What comes after that is
// told within the answer.
func output(ctx context.Context, c *call) (*outputAnswer, error) {
	a := &outputAnswer{bufs: &c.s.bufs, lines: wantsLines(c.r.Header.Values("Accept"))}
	name := api.StreamStdout
	if c.query.Has("stream") {
		name = api.StreamName(c.query.Get("stream"))
	}
	if err := a.parameters(c); err != nil {
		return nil, err
	}
	in, err := c.s.cfg.Engine.Output(ctx, c.turn, c.proc, name)
	if err != nil {
		return nil, err
	}
	a.in = in
	if a.start, _, err = in.Status(); err == nil && c.query.Has("tail") {
		var n int64
		if n, err = c.number("tail", 0, 1<<62); err == nil {
			a.off, err = in.Tail(n)
		}
	}
	if err == nil && !a.lines {
		err = a.skipGap()
	}
	if err != nil {
		in.Close()
		return nil, asAPI(err, api.CodeInternal, "read output")
	}
	return a, nil
}

func (a *outputAnswer) parameters(c *call) (err error) {
	if c.query.Has("offset") && c.query.Has("tail") {
		return api.Errorf(api.CodeBadRequest, "offset and tail are both given").WithRemedy("give one of them")
	}
	if a.off, err = c.number("offset", 0, 1<<62); err != nil {
		return err
	}
	if a.most, err = c.number("limit", -1, 1<<62); err != nil {
		return err
	}
	if a.follow, err = c.flag("follow", false); err != nil {
		return err
	}
	if a.drain, err = c.drain(); err == nil && a.drain >= 0 && !a.follow {
		err = api.Errorf(api.CodeBadRequest, "drain_ms is given, but not follow")
	}
	return err
}

// wantsLines tells whether an Accept header names NDJSON.
func wantsLines(accept []string) bool {
	return slices.ContainsFunc(strings.Split(strings.Join(accept, ","), ","), func(s string) bool {
		t, _, err := mime.ParseMediaType(s)
		return err == nil && t == api.NDJSON
	})
}

// skipGap moves the beginning out of a gap: a raw answer cannot tell of one but
// in its header.
func (a *outputAnswer) skipGap() error {
	for {
		_, next, gap, err := a.in.ReadAt(make([]byte, 1), a.off)
		if gap == nil || err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return err
		}
		a.off = next
	}
}

// chunk bounds what is read and written at once: what a reader costs, however
// slow it is.
const chunk = 64 << 10

// lastWrite is how long a reader has for the end of an answer when the service
// stops.
const lastWrite = time.Second

func (a *outputAnswer) stream(c *call) {
	defer a.in.Close()
	ctx, cancel := context.WithCancelCause(c.r.Context())
	defer cancel(nil)
	rc := http.NewResponseController(c.w)
	defer context.AfterFunc(c.s.stopping, func() {
		cancel(errStopping)
		_ = rc.SetWriteDeadline(time.Now().Add(lastWrite)) // also of one that does not read
	})()
	h := c.w.Header()
	h.Set(api.GradeHeader, string(a.in.Grade()))
	h.Set(api.TotalHeader, strconv.FormatInt(a.start.BytesTotal, 10))
	h.Set(api.DroppedHeader, strconv.FormatInt(a.start.BytesDropped, 10))
	h.Set(api.OffsetHeader, strconv.FormatInt(a.off, 10))
	var to sink = &rawSink{w: c.w}
	if a.lines {
		h.Set("Content-Type", api.NDJSON)
		to = &lineSink{w: c.w}
	} else {
		h.Set("Content-Type", "application/octet-stream")
		h.Set("Trailer", api.NextOffsetHeader)
	}
	_ = rc.SetWriteDeadline(time.Time{}) // a reader may be as slow as it likes
	c.w.WriteHeader(http.StatusOK)
	if rc.Flush() != nil {
		return
	}
	end, err := a.copy(ctx, to, rc.Flush)
	if errors.Is(err, errReader) {
		return // it has gone, there is nobody to tell
	}
	end.Grade = a.in.Grade()
	if err != nil && ctx.Err() == nil {
		c.s.cfg.Log.Warn("read output", "turn", c.turn, "process", c.proc, "error", err)
		end.Error = asAPI(err, api.CodeInternal, "read output")
	}
	if c.s.stopping.Err() != nil { // that has its time of its own: we may be late
		_ = rc.SetWriteDeadline(time.Now().Add(lastWrite))
	}
	if to.end(end) == nil {
		h.Set(api.NextOffsetHeader, strconv.FormatInt(a.off, 10))
	}
}

// errReader tells that the reader's end is gone.
var errReader = errors.New("the reader is gone")

// copy hands on what there is, and with follow what comes, until the end, the
// limit, or a gap that the sink cannot tell of. It returns the last line.
func (a *outputAnswer) copy(ctx context.Context, to sink, flush func() error) (api.OutputLine, error) {
	last := a.start.BytesTotal // without follow, no further
	over := false              // nothing more is written
	missed, paused := int64(-1), false
	for ctx.Err() == nil && a.most != 0 {
		most := int64(chunk)
		if a.most > 0 {
			most = min(a.most, most)
		}
		if !a.follow {
			if most = min(most, last-a.off); most <= 0 {
				break
			}
		}
		n, gap, err := a.piece(to, flush, most)
		switch {
		case errors.Is(err, io.EOF):
			return a.last(), nil
		case errors.Is(err, errReader):
			return api.OutputLine{}, err
		case err != nil:
			return a.last(), err
		case gap != nil && a.follow && a.off == missed && !paused:
			paused = true // it goes on: what comes meanwhile is told with it
			pause(ctx, gapPause)
		case gap != nil:
			gap.From = a.off
			missed, paused = gap.To, false
			goOn, err := to.gap(*gap)
			if err != nil || goOn && flush() != nil {
				return api.OutputLine{}, errReader
			}
			a.off = gap.To
			if !goOn {
				return a.last(), nil
			}
		case n > 0:
			if a.most > 0 {
				a.most -= n
			}
		case over || !a.follow:
			return a.last(), nil
		default:
			if over, err = a.in.Await(ctx, a.off, a.drain); err != nil {
				return a.last(), err
			}
		}
	}
	return a.last(), nil
}

// gapPause is how long a gap that follows on another grows before it is told:
// where nothing is kept any more, each write would be one.
const gapPause = 100 * time.Millisecond

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// piece hands on what there is at the offset, with a buffer that it gives back:
// one who waits for output has none.
func (a *outputAnswer) piece(to sink, flush func() error, most int64) (int64, *api.Gap, error) {
	buf, _ := a.bufs.Get().(*[chunk]byte)
	if buf == nil {
		buf = new([chunk]byte)
	}
	defer a.bufs.Put(buf)
	n, next, gap, err := a.in.ReadAt(buf[:most], a.off)
	if n == 0 || err != nil || gap != nil {
		return 0, gap, err
	}
	if to.data(a.off, buf[:n]) != nil || flush() != nil {
		return 0, nil, errReader
	}
	a.off = next
	return int64(n), nil, nil
}

// last is the line after all others.
func (a *outputAnswer) last() api.OutputLine {
	line := api.OutputLine{Next: &a.off, Exit: a.in.Exit()}
	if st, _, err := a.in.Status(); err == nil {
		line.EOF = st.EOF && a.off >= st.BytesTotal
	}
	return line
}

// sink takes output in one of its forms.
type sink interface {
	data(off int64, b []byte) error
	gap(api.Gap) (goOn bool, err error)
	end(api.OutputLine) error
}

// rawSink writes bytes as they are; a gap ends it.
type rawSink struct{ w io.Writer }

func (s *rawSink) data(_ int64, b []byte) error {
	_, err := s.w.Write(b)
	return err
}

func (s *rawSink) gap(api.Gap) (bool, error) { return false, nil }
func (s *rawSink) end(api.OutputLine) error  { return nil }

// lineSink writes a JSON value a line.
type lineSink struct{ w io.Writer }

func (s *lineSink) line(l api.OutputLine) error {
	_, err := s.w.Write(encode(l))
	return err
}

func (s *lineSink) data(off int64, b []byte) error {
	return s.line(api.OutputLine{Offset: &off, Data: b})
}

func (s *lineSink) gap(g api.Gap) (bool, error) { return true, s.line(api.OutputLine{Gap: &g}) }
func (s *lineSink) end(l api.OutputLine) error  { return s.line(l) }
