package server

import (
	"context"
	"io"
	"os"
	"strconv"
	"sync"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/containment"
	"pinfold.dev/pidfd"
)

// stream is a kept stream in memory: bytes from a first offset on, what was
// before is a gap.
type stream struct {
	mu     sync.Mutex
	first  int64
	text   []byte
	closed bool
	exit   *api.Status
	more   chan struct{}
	open   int           // readers
	most   int           // bytes that were asked for at once
	late   time.Duration // with its grade, at the end
}

func newStream() *stream { return &stream{more: make(chan struct{})} }

func (s *stream) write(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = append(s.text, b...)
	close(s.more)
	s.more = make(chan struct{})
}

func (s *stream) change(f func()) {
	s.mu.Lock()
	f()
	s.mu.Unlock()
	s.write(nil)
}

func (s *stream) total() int64 { return s.first + int64(len(s.text)) }

func (s *stream) Status() (api.StreamStatus, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return api.StreamStatus{BytesTotal: s.total(), BytesDropped: s.first, EOF: s.closed}, s.closed, nil
}

func (s *stream) Tail(n int64) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(s.first, s.total()-n), nil
}

func (s *stream) ReadAt(p []byte, off int64) (int, int64, *api.Gap, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.most = max(s.most, len(p))
	switch {
	case off < s.first:
		return 0, s.first, &api.Gap{From: off, To: s.first, Reason: "overwritten"}, nil
	case off >= s.total() && s.closed:
		return 0, off, nil, io.EOF
	case off >= s.total():
		return 0, off, nil, nil
	}
	n := copy(p, s.text[off-s.first:])
	return n, off + int64(n), nil, nil
}

func (s *stream) Wait(ctx context.Context, total int64) error {
	_, err := s.Await(ctx, total, -1)
	return err
}

func (s *stream) Await(ctx context.Context, total int64, drain time.Duration) (bool, error) {
	for {
		s.mu.Lock()
		some, over, more := s.total() > total, s.closed || drain >= 0 && s.exit != nil, s.more
		s.mu.Unlock()
		if some || over {
			return over && !some, nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

func (s *stream) Exit() *api.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.exit
}

func (s *stream) Grade() api.Grade {
	time.Sleep(s.late)
	return api.GradeScope
}

func (s *stream) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
	return nil
}

func (m *memory) Output(ctx context.Context, turn, proc string, name api.StreamName) (containment.Reading, error) {
	if _, err := m.Process(ctx, turn, proc); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.streams[name]
	if s == nil {
		return nil, api.Errorf(api.CodeNotFound, "%s is not kept", name)
	}
	s.mu.Lock()
	s.open++
	s.mu.Unlock()
	return s, nil
}

func (m *memory) Drain(ctx context.Context, turn, proc string, d time.Duration) (api.Process, error) {
	p, err := m.Process(ctx, turn, proc)
	p.Labels = map[string]string{"drained": d.String()}
	return p, err
}

// Input hands bytes to whoever reads m.stdin.
func (m *memory) Input(ctx context.Context, turn, proc string, epoch int64, data []byte, eof bool) (api.Grade, error) {
	if _, err := m.Process(ctx, turn, proc); err != nil {
		return "", err
	}
	m.mu.Lock()
	stdin := m.stdin
	m.mu.Unlock()
	if stdin == nil {
		return "", api.Errorf(api.CodeStdinClosed, "nobody reads")
	}
	m.writers.Add(1)
	defer m.writers.Add(-1)
	if len(data) > 0 {
		select {
		case stdin <- string(data):
		case <-ctx.Done():
			return "", api.Errorf(api.CodeTimeout, "not read")
		}
	}
	if eof {
		close(stdin)
	}
	return api.GradeScope, nil
}

func (m *memory) Resize(ctx context.Context, turn, proc string, req api.ResizeRequest) (api.ResizeAnswer, error) {
	_, err := m.Process(ctx, turn, proc)
	return api.ResizeAnswer{Process: proc, Rows: req.Rows, Cols: req.Cols, Grade: api.GradeScope}, err
}

func (m *memory) Acknowledge(ctx context.Context, turn, proc string) (api.Process, error) {
	p, err := m.Process(ctx, turn, proc)
	p.Acknowledged = true
	return p, err
}

func (m *memory) Join(ctx context.Context, id string, c containment.Caller, req api.JoinRequest, peer *os.File) (api.Process, error) {
	return api.Process{ID: "p9", Turn: id, PID: c.PID, Argv: req.Argv, InPlace: true, Grade: api.GradeScope}, nil
}

// Adopt tells whether what came along is a pidfd.
func (m *memory) Adopt(ctx context.Context, id string, c containment.Caller, req api.AdoptRequest, fd *os.File) (api.Process, error) {
	what := "none"
	if fd != nil {
		what = "other"
		if h, err := pidfd.FromStranger(int(fd.Fd())); err == nil {
			what = strconv.Itoa(h.PID())
			h.Close()
		}
	}
	return api.Process{ID: "p9", Turn: id, PID: req.Process.PID, Grade: api.GradeScope, Labels: map[string]string{"pidfd": what}}, nil
}

// openStdin makes somebody read it.
func (m *memory) openStdin() <-chan string {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stdin = make(chan string)
	return m.stdin
}
