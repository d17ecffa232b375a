package containment

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"pinfold.dev/api"
)

func (memUsers) Group(name string) (uint32, error) {
	n, err := strconv.ParseUint(name, 10, 32)
	if err != nil {
		return 0, errors.New("no such group")
	}
	return uint32(n), nil
}

func (x *memHold) Input(ctx context.Context, process string, data []byte, eof bool) error {
	x.mu.Lock()
	reader := x.reader
	x.mu.Unlock()
	if reader == nil {
		return api.ErrStdinClosed
	}
	reader <- string(data)
	return nil
}

func (x *memHold) SignalGroup(ctx context.Context, process string, sig syscall.Signal) (api.Verdict, error) {
	return x.Signal(ctx, process, sig)
}

func (x *memHold) Resize(ctx context.Context, process string, size api.WinSize) error { return nil }

func (x *memHold) EndProcess(ctx context.Context, process string, stop syscall.Signal, grace, bound time.Duration) error {
	x.mu.Lock()
	x.ended = append(x.ended, process)
	sig := int(stop)
	if !x.termEnds {
		sig = 9
	}
	x.mu.Unlock()
	if sig == 9 {
		time.Sleep(grace)
	}
	x.mu.Lock()
	_, live := x.live[process]
	_, job := x.jobs[process]
	live = live || job
	delete(x.live, process)
	delete(x.jobs, process)
	x.mu.Unlock()
	if live {
		x.hooks.Exit(Exit{Process: process, At: time.Now(), Status: api.Status{State: api.ProcessSignaled, SignalNumber: sig}})
	}
	return nil
}

func (x *memHold) Join(ctx context.Context, process string, peer *os.File, where func(string) error, before func(Started) error) error {
	if err := where(x.joinFrom); err != nil {
		return err
	}
	if err := before(Started{Process: process, PID: 77, Identity: api.Identity{PID: 77, Ino: 770}, Placement: "join"}); err != nil {
		return err
	}
	if x.joinErr != nil {
		return x.joinErr
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.live[process] = 77
	return nil
}

func (x *memHold) Rejoin(process string, was api.Identity) (api.Verdict, error) {
	if x.slow.rejoin != nil {
		return x.slow.rejoin()
	}
	return api.VerdictGone, nil
}

// memOutputs keeps output in memory, by turn, process and stream.
type memOutputs struct {
	mu    sync.Mutex
	of    map[string]map[string]*memOutput // turn, then process.stream
	ended map[string]time.Time
	fail  error // of opening one
}

func (m *memOutputs) Dir(turn string) string { return "/out/" + turn }

func (m *memOutputs) add(turn, process string, s api.StreamName, text string) *memOutput {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.of == nil {
		m.of, m.ended = map[string]map[string]*memOutput{}, map[string]time.Time{}
	}
	if m.of[turn] == nil {
		m.of[turn] = map[string]*memOutput{}
	}
	o := &memOutput{text: text, more: make(chan struct{})}
	m.of[turn][process+"."+string(s)] = o
	return o
}

func (m *memOutputs) Open(turn, process string, s api.StreamName) (Output, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return nil, m.fail
	}
	if o := m.of[turn][process+"."+string(s)]; o != nil {
		return o, nil
	}
	return nil, fs.ErrNotExist
}

func (m *memOutputs) Remove(turn, process string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name := range m.of[turn] {
		if process == "" || name == process+".stdout" || name == process+".stderr" {
			delete(m.of[turn], name)
		}
	}
	if process == "" {
		delete(m.of, turn)
	}
	return nil
}

func (m *memOutputs) Ended(turn string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ended[turn] = time.Now()
	return nil
}

func (m *memOutputs) List() (out []Kept, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for turn, files := range m.of {
		k := Kept{Turn: turn, At: m.ended[turn]}
		for _, o := range files {
			k.Bytes += int64(len(o.text))
		}
		out = append(out, k)
	}
	return out, nil
}

func (m *memOutputs) Sizes(turn string) (map[string]int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string]int64{}
	for name, o := range m.of[turn] {
		out[name[:len(name)-len(".stdout")]] += int64(len(o.text))
	}
	return out, nil
}

type memOutput struct {
	mu     sync.Mutex
	text   string
	closed bool
	more   chan struct{} // closed and replaced at every change
}

func (o *memOutput) write(text string, closed bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text, o.closed = o.text+text, closed
	close(o.more)
	o.more = make(chan struct{})
}

func (o *memOutput) Status() (api.StreamStatus, bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return api.StreamStatus{BytesTotal: int64(len(o.text)), EOF: o.closed, MaxBytes: 1 << 20}, o.closed, nil
}

func (o *memOutput) Tail(n int64) (int64, error) { return max(0, int64(len(o.text))-n), nil }

func (o *memOutput) ReadAt(p []byte, off int64) (int, int64, *api.Gap, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if off >= int64(len(o.text)) {
		if o.closed {
			return 0, off, nil, io.EOF
		}
		return 0, off, nil, nil
	}
	n := copy(p, o.text[off:])
	return n, off + int64(n), nil, nil
}

func (o *memOutput) Wait(ctx context.Context, total int64) error {
	for {
		o.mu.Lock()
		ok, more := int64(len(o.text)) > total || o.closed, o.more
		o.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (o *memOutput) Close() error { return nil }

func (*memHold) Reached() error { return nil }

// Processes are the launches, for a service that has found the hold again.
func (x *memHold) Processes() (out []Recovered) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.found {
		return nil
	}
	for i, id := range x.launched {
		out = append(out, Recovered{Started: Started{Process: id, PID: 1000 + i}, Argv: []string{"x"}, Meta: x.metas[id]})
	}
	return out
}
