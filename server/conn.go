package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys"
)

// conn is an accepted connection: it knows its peer, and collects descriptors
// that come in with what it reads.
type conn struct {
	*net.UnixConn
	peer   Peer
	share  *share
	rights rights
	grade  func() api.Grade
	header time.Duration  // for the rest of a request that has begun
	oob    [256 + 64]byte // room for one control message of maxFDs descriptors
	once   sync.Once

	watched atomic.Pointer[watch]     // over the request that is being answered
	ours    atomic.Bool               // what is written is our answer to a request
	deaf    atomic.Bool               // net/http would not hear that the client goes
	idle    atomic.Bool               // it awaits the next request, up to the end of its header
	until   atomic.Pointer[time.Time] // when that has to be there
}

type connKey struct{}

// connOf is the connection that a request came on.
func connOf(ctx context.Context) (*conn, bool) {
	c, ok := ctx.Value(connKey{}).(*conn)
	return c, ok
}

func newConn(u *net.UnixConn, p Peer, s *share, grade func() api.Grade, header time.Duration) *conn {
	return &conn{UnixConn: u, peer: p, share: s, rights: rights{share: s}, grade: grade, header: header}
}

// Read is recvmsg(2). The standard library asks for close-on-exec, and the
// kernel closes what does not fit into oob (MSG_CTRUNC).
func (c *conn) Read(b []byte) (int, error) {
	n, oobn, flags, _, err := c.ReadMsgUnix(b, c.oob[:])
	if oobn > 0 || flags&syscall.MSG_CTRUNC != 0 {
		fds, perr := sys.ParseRights(c.oob[:oobn])
		c.rights.add(fds, perr != nil || flags&syscall.MSG_CTRUNC != 0)
		if until := c.until.Load(); until != nil && c.idle.Load() {
			_ = c.SetReadDeadline(*until)
		}
	}
	if len(b) == 1 && n == 1 { // net/http's own look-out, which ends here
		c.deaf.Store(true)
		c.lookOut()
	}
	if errors.Is(err, io.EOF) {
		err = io.EOF // as io.Reader has it: else net/http takes a body that was cut off for a whole one
	}
	return max(n, 0), err // it says -1 with an error
}

// between tells whether no request is under way: the one before is answered.
func (c *conn) between(requests bool) {
	c.idle.Store(requests)
	c.deaf.Store(false) // also after a header that was read by single bytes
	if requests {
		c.ours.Store(false)
		c.rights.answered()
	}
}

// SetReadDeadline gives a request that has begun with descriptors the time of a
// header, where net/http has that of an idle connection until four bytes are
// there: one of them may be the client's own end, which then nobody sees closed.
// No time that is running gets longer by that.
func (c *conn) SetReadDeadline(t time.Time) error {
	if c.idle.Load() {
		if soon := time.Now().Add(c.header); t.After(soon) && c.rights.waiting() {
			t = soon
		}
		until := t
		c.until.Store(&until)
	}
	return c.UnixConn.SetReadDeadline(t)
}

// Write marks where an answer begins, see rights. What net/http answers by
// itself to bytes that it cannot parse is plain text; it becomes an answer
// like all others. An answer of ours is never looked at for that: a process's
// output may begin like one of net/http's.
func (c *conn) Write(b []byte) (int, error) {
	c.rights.mark()
	if c.ours.Load() {
		return c.UnixConn.Write(b)
	}
	if own, ok := plainRefusal(b, c.grade()); ok {
		if _, err := c.UnixConn.Write(own); err != nil {
			return 0, err
		}
		return len(b), nil
	}
	return c.UnixConn.Write(b)
}

// process is a handle on the process that connected.
func (c *conn) process() (*os.File, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	var numbered error
	if cerr := raw.Control(func(s uintptr) {
		if fd, err = sys.PeerPidfd(int(s)); errors.Is(err, syscall.ENOPROTOOPT) {
			if n, nerr := byNumber(int(s)); nerr == nil {
				fd, err = n, nil
			} else {
				numbered = nerr
			}
		}
	}); cerr != nil {
		return nil, cerr
	}
	switch {
	case errors.Is(err, syscall.ENOPROTOOPT):
		return nil, api.Errorf(api.CodeUnsupported, "this kernel does not tell which process connected, and its number proves nothing: %v", numbered).
			WithRemedy("joining, and being watched as a turn's client, need that, or Linux 6.5 (SO_PEERPIDFD); launch through the API, or bind the turn to a connection").With("feature", "SO_PEERPIDFD")
	case err != nil:
		return nil, api.Errorf(api.CodePeerUnverifiable, "open a handle on the process that connected: %v", err).
			WithRemedy("ask from a process that stays alive")
	}
	return os.NewFile(uintptr(fd), "peer"), nil
}

// gone tells whether the peer has closed its end. It looks by itself: while a
// request's body is not read to its end, nobody else does.
func (c *conn) gone() bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	hup := false
	err = raw.Control(func(fd uintptr) { hup = sys.HungUp(int(fd)) })
	return hup || err != nil
}

// Close closes the connection and what it still has.
func (c *conn) Close() error {
	err := c.UnixConn.Close()
	c.once.Do(func() {
		c.rights.close()
		c.share.disconnect()
	})
	return err
}

// plainRefusal is net/http's own refusal (server.go, errorHeaders) as JSON.
func plainRefusal(b []byte, g api.Grade) ([]byte, bool) {
	const plain = "\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"
	const proto = "HTTP/1.1 "
	head, text, ok := bytes.Cut(b, []byte(plain))
	status, isStatus := bytes.CutPrefix(head, []byte(proto))
	if !ok || !isStatus || bytes.Contains(status, []byte("\r\n")) {
		return nil, false
	}
	code := api.CodeBadRequest
	if bytes.HasPrefix(status, []byte("431")) {
		code = api.CodeTooLarge
	}
	e := api.Errorf(code, "this is not a request that the service reads: %s", text)
	return rawAnswer(string(status), e, g), true
}

// rawAnswer is a whole answer, for where there is no http.ResponseWriter.
func rawAnswer(status string, e *api.Error, g api.Grade) []byte {
	e.Grade = g
	body := encode(e)
	return fmt.Appendf(nil, "HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%s: %s\r\nConnection: close\r\n\r\n%s",
		status, len(body), api.GradeHeader, g, body)
}

// listener accepts connections, finds out who made them and keeps each
// party's share.
type listener struct {
	net.Listener
	limits *limits
	admin  *uint32
	grade  func() api.Grade
	header time.Duration
	inTurn func(cgroup string) (string, bool)
	below  func(fd, pid int) (string, error)
	blind  error
	log    *slog.Logger
}

// Accept returns the next connection that may stay. One that may not is no
// error of the listener's.
func (l *listener) Accept() (net.Conn, error) {
	for {
		nc, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c, err := l.admit(nc)
		if err == nil {
			return c, nil
		}
		l.log.Debug("connection refused", "error", err)
		nc.Close()
	}
}

func (l *listener) admit(nc net.Conn) (c *conn, err error) {
	defer func() {
		if p := recover(); p != nil {
			l.log.Error("panic while accepting", "panic", p, "stack", string(debug.Stack()))
			c, err = nil, errors.New("accept connection: panic")
		}
	}()
	u, ok := nc.(*net.UnixConn)
	if !ok {
		return nil, fmt.Errorf("accept connection: %T is not a unix socket's", nc)
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return nil, err
	}
	var p Peer
	cerr := raw.Control(func(fd uintptr) {
		if p, err = peerOf(int(fd), l.admin); err != nil {
			return
		}
		if p.Known {
			p.InTurn, _ = l.inTurn(p.Cgroup)
		}
		p.inside(int(fd), l.below, l.blind)
	})
	if cerr != nil {
		return nil, cerr
	}
	if err != nil {
		return nil, fmt.Errorf("find out who connected: %w", err)
	}
	s := l.limits.connect(partyOf(p))
	if s == nil {
		e := api.Errorf(api.CodeUnavailable, "too many connections are open: of uid %d (at most %d) or of all users (at most %d)", p.UID, partyOf(p).conns(), maxConnsAll).
			WithRemedy("close some, or use them again: one carries many requests").With("refused", "connection")
		_, _ = u.Write(rawAnswer("503 Service Unavailable", e, l.grade())) // into an empty buffer: it does not wait
		return nil, e
	}
	return newConn(u, p, s, l.grade, l.header), nil
}
