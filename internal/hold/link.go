package hold

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"pinfold.dev/internal/fault"
	"pinfold.dev/internal/wire"
	"pinfold.dev/internal/wire/wirenet"
)

// errBroken tells that the connection to the keeper is gone.
var errBroken = errors.New("the connection to the keeper is gone")

// link is one connection to a keeper: calls out, answers and events in.
type link struct {
	conn    *wire.Conn
	raw     *net.UnixConn             // conn's, for its deadline
	sending chan struct{}             // full while there is a Send
	version int                       // the keeper's, once it was greeted
	event   func(wire.Message, []int) // owns the descriptors
	down    func(*link, error)

	mu      sync.Mutex
	last    uint64
	waiting map[uint64]chan answer
	err     error // set once it is broken
}

type answer struct {
	m   wire.Message
	fds []int
}

func dial(ctx context.Context, path string, event func(wire.Message, []int), down func(*link, error)) (*link, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	raw := c.(*net.UnixConn)
	l := &link{conn: wire.NewConn(wirenet.FromUnixConn(raw)), raw: raw, sending: make(chan struct{}, 1),
		event: event, down: down, waiting: map[uint64]chan answer{}}
	go l.read()
	return l, nil
}

// read hands out answers and events, in order, until the connection breaks.
func (l *link) read() {
	for {
		m, fds, err := l.conn.Recv()
		if err != nil {
			l.fail(err)
			return
		}
		if m.Event != "" || !l.deliver(m, fds) {
			l.event(m, fds) // an answer that nobody waits for any more is news, too
		}
	}
}

func (l *link) deliver(m wire.Message, fds []int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	ch := l.waiting[m.ID]
	if ch == nil {
		return false
	}
	delete(l.waiting, m.ID)
	ch <- answer{m, fds} // has room: one answer a call
	return true
}

func (l *link) fail(err error) {
	l.mu.Lock()
	first := l.err == nil
	if first {
		l.err = err
	}
	for id, ch := range l.waiting {
		delete(l.waiting, id)
		close(ch)
	}
	l.mu.Unlock()
	l.conn.Close()
	if first {
		l.down(l, err)
	}
}

// broken is why the connection is of no use any more; nil: it is.
func (l *link) broken() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// close closes the connection on purpose.
func (l *link) close() {
	l.mu.Lock()
	if l.err == nil {
		l.err = net.ErrClosed
	}
	l.mu.Unlock()
	l.conn.Close()
}

// sendTime bounds a send whose context has no deadline.
const sendTime = 30 * time.Second

// send writes a frame, unless ctx is over before. A keeper that is stopped or
// frozen reads nothing: neither its full socket, nor who waits for that, may
// hold up an ending.
func (l *link) send(ctx context.Context, m wire.Message, fds []int) error {
	select {
	case l.sending <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-l.sending }()
	until, ok := ctx.Deadline()
	if !ok {
		until = time.Now().Add(sendTime)
	}
	if err := l.raw.SetWriteDeadline(until); err != nil {
		return err
	}
	err := l.conn.Send(m, fds)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return context.DeadlineExceeded
	}
	return err
}

// call asks and waits for the answer. One that comes after ctx is over is an event.
// The keeper's refusal is a *refusal.
func (l *link) call(ctx context.Context, m wire.Message, fds []int) (wire.Message, []int, error) {
	ch := make(chan answer, 1)
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return wire.Message{}, nil, errBroken
	}
	l.last++
	m.ID = l.last
	l.waiting[m.ID] = ch
	l.mu.Unlock()
	if err := l.send(ctx, m, fds); err != nil {
		l.forget(m.ID, ch)
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
			return wire.Message{}, nil, err
		}
		if errors.Is(err, wire.ErrTooLarge) {
			return wire.Message{}, nil, &refusal{wire.Error{Kind: wire.ErrProtocol, Message: err.Error()}}
		}
		l.fail(err)
		return wire.Message{}, nil, errBroken
	}
	if fault.Enabled {
		sent(m.Op)
	}
	select {
	case a, ok := <-ch:
		return a.taken(ok)
	case <-ctx.Done():
	}
	l.mu.Lock()
	delete(l.waiting, m.ID)
	l.mu.Unlock()
	select {
	case a, ok := <-ch: // it came at the same time: of a launch, nobody else tells
		return a.taken(ok)
	default: // if it comes, it is news
		return wire.Message{}, nil, ctx.Err()
	}
}

// taken is an answer to whoever has asked; ok: there was one.
func (a answer) taken(ok bool) (wire.Message, []int, error) {
	switch {
	case !ok:
		return wire.Message{}, nil, errBroken
	case a.m.Error != nil:
		closeFDs(a.fds)
		return a.m, nil, &refusal{*a.m.Error}
	}
	return a.m, a.fds, nil
}

// sent marks that a message is on its way to the keeper.
func sent(op wire.Op) {
	switch op {
	case wire.OpHello:
		fault.Point("hello.sent")
	case wire.OpHold:
		fault.Point("hold.sent")
	case wire.OpLaunch:
		fault.Point("launch.sent")
	case wire.OpInput:
		fault.Point("input.sent")
	case wire.OpFence:
		fault.Point("fence.sent")
	case wire.OpCensus:
		fault.Point("census.sent")
	case wire.OpQuit:
		fault.Point("quit.sent")
	}
}

// forget stops waiting for the answer to what was not sent.
func (l *link) forget(id uint64, ch chan answer) {
	l.mu.Lock()
	delete(l.waiting, id)
	l.mu.Unlock()
	select {
	case a := <-ch:
		closeFDs(a.fds)
	default:
	}
}

// refusal is what a keeper answered instead.
type refusal struct{ why wire.Error }

func (r *refusal) Error() string {
	what := syscall.Errno(r.why.Errno).Error()
	if r.why.Errno != 0 && !strings.HasSuffix(r.why.Message, what) {
		return r.why.Message + ": " + what
	}
	return r.why.Message
}

func (l *link) hello(ctx context.Context, h wire.Hello) (*wire.Hello, []int, error) {
	m, fds, err := l.call(ctx, wire.Message{Op: wire.OpHello, Hello: &h}, nil)
	switch {
	case err != nil:
		return nil, nil, err
	case m.Hello == nil || m.Hello.Turn != h.Turn || m.Hello.Nonce != h.Nonce:
		closeFDs(fds)
		return nil, nil, errors.New("what answers is not this turn's keeper")
	}
	return m.Hello, fds, nil
}

// tellHold tells the keeper its cgroup. The keeper may have died since it was
// greeted.
func (x *keeping) tellHold(ctx context.Context) error {
	x.mu.Lock()
	l := x.link
	x.mu.Unlock()
	if l == nil {
		return fmt.Errorf("tell the keeper its cgroup: %w", errBroken)
	}
	h := x.told
	_, _, err := l.call(ctx, wire.Message{Op: wire.OpHold, Hold: &h}, nil)
	if err != nil {
		return fmt.Errorf("tell the keeper its cgroup: %w", err)
	}
	return nil
}

func closeFD(fd int) { _ = syscall.Close(fd) }

func closeFDs(fds []int) {
	for _, fd := range fds {
		closeFD(fd)
	}
}
