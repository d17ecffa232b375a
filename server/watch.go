package server

import (
	"context"
	"errors"
	"sync"
	"time"
)

// goneEvery is how often a client is looked after of whose going nobody else
// would hear.
const goneEvery = time.Second

var errGone = errors.New("the client is gone")

// watch is over one request. Net/http reads one byte ahead while a request is
// answered, to hear that its client has gone; when that byte comes it hears no
// more, and while a body is on its way it does not listen. Then a watch looks
// by itself. It also closes descriptors that come so late: one may be the
// client's own end, which would never be seen closed.
type watch struct {
	conn   *conn
	cancel context.CancelCauseFunc

	mu    sync.Mutex
	timer *time.Timer
	over  bool
}

// watch begins one; the context ends when the client is seen gone.
func (c *conn) watch(ctx context.Context) (context.Context, *watch) {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &watch{conn: c, cancel: cancel}
	c.watched.Store(w)
	c.lookOut() // net/http may be deaf before it calls us
	return ctx, w
}

// lookOut has the request's watch look, once, where net/http does not.
func (c *conn) lookOut() {
	if w := c.watched.Load(); w != nil && c.deaf.CompareAndSwap(true, false) {
		w.start()
	}
}

// start has it look from now on.
func (w *watch) start() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.over && w.timer == nil {
		w.timer = time.AfterFunc(goneEvery, w.look)
	}
}

func (w *watch) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return
	}
	fds, _ := w.conn.rights.take()
	w.conn.rights.drop(fds)
	if w.conn.gone() {
		w.cancel(errGone)
		return
	}
	w.timer.Reset(goneEvery)
}

// stop is called before the client can have seen the whole answer: what comes
// from then on is the next request's, and nobody looks at it any more.
func (w *watch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	if w.timer != nil {
		w.timer.Stop()
	}
	w.conn.watched.CompareAndSwap(w, nil)
}

// end frees what it has.
func (w *watch) end() {
	w.stop()
	w.cancel(nil)
}
