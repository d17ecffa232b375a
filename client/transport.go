package client

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"pinfold.dev/internal/fault"
)

// transport sends requests over kept connections, each from the goroutine that
// asks: net/http's own hands every one to two goroutines and back, which costs
// as much as the service's answer. What has a body of unknown length it leaves
// to that one, since an answer may come while such a body is still being sent.
type transport struct {
	dial    func(context.Context) (net.Conn, error)
	streams http.Transport

	mu   sync.Mutex
	idle []*kept // the newest last
}

// kept is a connection with what was read of it ahead.
type kept struct {
	conn *sender
	in   *bufio.Reader
	used time.Time
}

// maxIdle is how many connections are kept: waits hold one each.
const maxIdle = 32

func newTransport(dial func(context.Context) (net.Conn, error)) *transport {
	return &transport{dial: dial, streams: http.Transport{
		DialContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		MaxIdleConnsPerHost: maxIdle, IdleConnTimeout: idle, DisableCompression: true,
	}}
}

// RoundTrip sends one request and reads the head of its answer.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.ContentLength < 0 || (r.ContentLength == 0 && r.Body != nil && r.Body != http.NoBody) {
		return t.streams.RoundTrip(r)
	}
	k, err := t.get(r.Context())
	if err != nil {
		return nil, err
	}
	k.conn.next = cargoOf(r.Context())
	stop := context.AfterFunc(r.Context(), func() { _ = k.conn.Close() })
	resp, err := k.exchange(r)
	if err != nil {
		stop()
		k.conn.Close()
		if r.Context().Err() != nil {
			err = r.Context().Err()
		}
		return nil, err
	}
	resp.Body = &body{ReadCloser: resp.Body, t: t, k: k, stop: stop, again: !resp.Close && !r.Close}
	return resp, nil
}

// exchange sends a request and reads the head of its answer. A service that has
// closed its end before it had the whole request may have answered before that.
func (k *kept) exchange(r *http.Request) (*http.Response, error) {
	out := bufio.NewWriterSize(k.conn, 16<<10)
	err := r.Write(out)
	sent := out.Flush() // also the writer's own error, which net/http wraps in one that hides it
	if errors.Is(sent, syscall.EPIPE) || errors.Is(sent, syscall.ECONNRESET) {
		if resp, rerr := k.head(r); rerr == nil {
			resp.Close = true
			return resp, nil
		}
	}
	if err = cmp.Or(err, sent); err != nil {
		return nil, err
	}
	fault.Point("request.sent")
	return k.head(r)
}

func (k *kept) head(r *http.Request) (*http.Response, error) {
	for {
		resp, err := http.ReadResponse(k.in, r)
		if err != nil || resp.StatusCode >= 200 {
			return resp, err
		}
	}
}

// body is an answer's. Read to its end it gives the connection back; closed
// before it closes that too. One may close it while another reads.
type body struct {
	io.ReadCloser
	t     *transport
	k     *kept
	stop  func() bool
	again bool
	done  atomic.Bool
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF && b.done.CompareAndSwap(false, true) {
		if b.stop() && b.again {
			b.t.put(b.k)
		} else {
			b.k.conn.Close()
		}
	}
	return n, err
}

func (b *body) Close() error {
	if !b.done.CompareAndSwap(false, true) {
		return nil
	}
	b.stop()
	return b.k.conn.Close()
}

// get takes the connection that was used last, if the service has not closed
// it, or makes one.
func (t *transport) get(ctx context.Context) (*kept, error) {
	for {
		k := t.take()
		if k == nil {
			break
		}
		if time.Since(k.used) < idle && k.in.Buffered() == 0 && open(k.conn) {
			return k, nil
		}
		k.conn.Close()
	}
	nc, err := t.dial(ctx)
	if err != nil {
		return nil, err
	}
	s, ok := nc.(*sender)
	if !ok {
		nc.Close()
		return nil, fmt.Errorf("dial: %T is not a connection of ours", nc)
	}
	return &kept{conn: s, in: bufio.NewReader(s)}, nil
}

func (t *transport) take() *kept {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(t.idle)
	if n == 0 {
		return nil
	}
	k := t.idle[n-1]
	t.idle = t.idle[:n-1]
	return k
}

// put keeps a connection, and closes what has not been used for long.
func (t *transport) put(k *kept) {
	k.used, k.conn.next = time.Now(), nil
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.idle) > 0 && (len(t.idle) >= maxIdle || time.Since(t.idle[0].used) >= idle) {
		t.idle[0].conn.Close()
		t.idle = append(t.idle[:0], t.idle[1:]...)
	}
	t.idle = append(t.idle, k)
}

// CloseIdleConnections closes those that are not in use.
func (t *transport) CloseIdleConnections() {
	t.streams.CloseIdleConnections()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, k := range t.idle {
		k.conn.Close()
	}
	t.idle = nil
}

// open tells whether a connection in wait is still one: nothing is to be read
// of it, not even its end.
func open(s *sender) bool {
	c, ok := s.Conn.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	quiet := false
	err = raw.Read(func(fd uintptr) bool {
		var b [1]byte
		_, _, e := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		quiet = errors.Is(e, syscall.EAGAIN)
		return true
	})
	return err == nil && quiet
}
