package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
)

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pf")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// listen answers each connection with f.
func listen(t *testing.T, f func(net.Conn)) string {
	t.Helper()
	path := filepath.Join(shortDir(t), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); f(c) }()
		}
	}()
	return path
}

func TestUnreachableSaysWhyAndWhatToDo(t *testing.T) {
	dir := shortDir(t)
	stale := filepath.Join(dir, "stale")
	l, err := net.Listen("unix", stale)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ path, what, remedy string }{
		{filepath.Join(dir, "none"), "no such socket", "pinfold serve"},
		{stale, "nobody listens", "systemctl start"},
		{file, "nobody listens", "systemctl start"}, // Linux says refused
		{filepath.Join(dir, strings.Repeat("x", 200)), "too long", "107"},
	} {
		_, err := (&Client{Socket: c.path}).Host(within(t))
		var e *api.Error
		if !errors.As(err, &e) || !errors.Is(err, api.ErrUnavailable) || !strings.Contains(e.Message, c.what) || !strings.Contains(e.Remedy, c.remedy) {
			t.Errorf("%s: %+v", c.path, err)
		} else if e.Details["socket"] != c.path {
			t.Errorf("%s: details %v", c.path, e.Details)
		}
	}
	denied := unreachable("s", &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.EACCES)})
	if !strings.Contains(denied.Message, "permission denied") || denied.Remedy == "" {
		t.Errorf("%+v", denied)
	}
}

func TestContextsErrorIsReturned(t *testing.T) {
	path := listen(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	ctx, cancel := context.WithTimeout(within(t), 30*time.Millisecond)
	defer cancel()
	if _, err := (&Client{Socket: path}).WaitTurn(ctx, "one"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	ctx, stop := context.WithCancel(within(t))
	stop()
	if _, err := (&Client{Socket: path}).Host(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// late is a context that is done some time after its deadline, as on a busy machine.
type late struct {
	context.Context
	at time.Time
}

func (l late) Deadline() (time.Time, bool) { return l.at, true }

// Who dials goes by the deadline: that it was seen there first is no trouble of the
// way to the service.
func TestDialersDeadlineIsTheContexts(t *testing.T) {
	slow, cancel := context.WithTimeout(within(t), 50*time.Millisecond)
	defer cancel()
	ctx := late{slow, time.Now()}
	if _, err := (&Client{Socket: listen(t, func(net.Conn) {})}).WaitTurn(ctx, "one"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}

// A connection that is lost is told, and the request is not sent again.
func TestLostConnectionIsTold(t *testing.T) {
	seen := make(chan string, 9)
	path := listen(t, func(c net.Conn) {
		b := make([]byte, 4096)
		n, _ := c.Read(b)
		seen <- string(b[:n])
	})
	_, err := (&Client{Socket: path}).Abandon(within(t), "one", api.AbandonRequest{})
	var e *api.Error
	if !errors.As(err, &e) || e.Code != api.CodeUnavailable || !strings.Contains(e.Message, "lost before it answered") || e.Remedy == "" {
		t.Errorf("%+v", err)
	}
	if len(seen) != 1 {
		t.Errorf("asked %d times", len(seen))
	}
}

func TestAnswersThatAreNone(t *testing.T) {
	for _, c := range []struct {
		answer string
		code   api.Code
	}{
		{"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 2\r\n\r\nno", api.CodeInternal},
		{"HTTP/1.1 418 Teapot\r\nContent-Length: 2\r\n\r\n{}", api.CodeBadRequest},
		{"HTTP/1.1 307 Moved\r\nLocation: http://elsewhere/\r\nContent-Length: 0\r\n\r\n", api.CodeBadRequest},
		{"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n[1,]", api.CodeInternal},
		{"SSH-2.0-x\r\n", api.CodeUnavailable},
		{"HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n{", api.CodeUnavailable},
	} {
		path := listen(t, func(conn net.Conn) {
			_, _ = conn.Read(make([]byte, 4096))
			fmt.Fprint(conn, c.answer)
		})
		_, err := (&Client{Socket: path}).Host(within(t))
		var e *api.Error
		if !errors.As(err, &e) || e.Code != c.code {
			t.Errorf("%q: %v", c.answer, err)
		}
	}
}

func TestIDsAndTextAreChecked(t *testing.T) {
	c, ctx := &Client{Socket: "/nonexistent"}, within(t)
	for _, id := range []string{"", ".", ".."} {
		if _, err := c.Abandon(ctx, id, api.AbandonRequest{}); !errors.Is(err, api.ErrBadRequest) {
			t.Errorf("id %q: %v", id, err)
		}
	}
	for where, req := range map[string]api.LaunchRequest{
		"User":            {User: "\xff"},
		"Labels[\"k\"]":   {Labels: map[string]string{"k": "\xff"}},
		"a key of Labels": {Labels: map[string]string{"\xff": ""}},
	} {
		if _, err := c.Launch(ctx, "one", req); !errors.Is(err, api.ErrBadRequest) || !strings.HasPrefix(err.Error(), where+" is not UTF-8") {
			t.Errorf("%s: %v", where, err)
		}
	}
}

// The path of a request says what was asked, whatever an id holds.
func TestIDsAreEscaped(t *testing.T) {
	got := make(chan string, 1)
	path := listen(t, func(c net.Conn) {
		b := make([]byte, 4096)
		n, _ := c.Read(b)
		line, _, _ := strings.Cut(string(b[:n]), "\r\n")
		got <- line
	})
	_, _ = (&Client{Socket: path}).Turn(within(t), "a/../b?x=1#y\x00")
	if line := <-got; line != "GET /v1/turns/a%2F..%2Fb%3Fx=1%23y%00 HTTP/1.1" {
		t.Error(line)
	}
}

// The first that is there: the user's own, the system's, a container's.
func TestSocketIsFoundWhereItIs(t *testing.T) {
	dir := shortDir(t)
	system, third := filepath.Join(dir, "system"), filepath.Join(dir, "third")
	find := func() string {
		return findSocket(filepath.Join(dir, "user"), system, []string{filepath.Join(dir, "none"), third})
	}
	if p := find(); p != system {
		t.Errorf("none is there: %s", p)
	}
	for _, path := range []string{third, system, filepath.Join(dir, "user", "pinfold", "pinfold.sock")} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if p := find(); p != path {
			t.Errorf("%s, want %s", p, path)
		}
	}
}

// A directory in /tmp that others may write, or have made, names no service.
func TestSocketOfOthersIsNotUsed(t *testing.T) {
	dir := shortDir(t)
	for mode, want := range map[os.FileMode]bool{0o700: true, 0o755: true, 0o775: false, 0o777: false} {
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		if closed(dir, os.Getuid()) != want {
			t.Errorf("mode %o: want %v", mode, want)
		}
	}
	_ = os.Chmod(dir, 0o700)
	link := dir + ".link"
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(link)
	if closed(dir, os.Getuid()+1) || closed(link, os.Getuid()) {
		t.Error("another's, or a link, is used")
	}
}

func TestSocketIsFound(t *testing.T) {
	dir := shortDir(t)
	t.Setenv("PINFOLD_SOCKET", "")
	t.Setenv("XDG_RUNTIME_DIR", dir)
	var c Client
	if p := c.socketPath(); p != "/run/pinfold/pinfold.sock" {
		t.Error(p)
	}
	own := filepath.Join(dir, "pinfold", "pinfold.sock")
	if err := os.MkdirAll(filepath.Dir(own), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(own, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if p := c.socketPath(); p != own {
		t.Error(p)
	}
	t.Setenv("PINFOLD_SOCKET", "/env")
	if p := c.socketPath(); p != "/env" {
		t.Error(p)
	}
	c.Socket = "/field"
	if p := c.socketPath(); p != "/field" {
		t.Error(p)
	}
}

func TestDialIsASeam(t *testing.T) {
	var asked string
	c := &Client{Socket: "/x", Dial: func(_ context.Context, socket string) (net.Conn, error) {
		asked = socket
		ours, theirs := net.Pipe()
		go func() {
			defer theirs.Close()
			_, _ = theirs.Read(make([]byte, 4096))
			resp := http.Response{StatusCode: 200, ProtoMajor: 1, ProtoMinor: 1, Body: io.NopCloser(strings.NewReader(`{"version":"7"}`)), ContentLength: 15}
			_ = resp.Write(theirs)
		}()
		return ours, nil
	}}
	h, err := c.Host(within(t))
	if err != nil || h.Version != "7" || asked != "/x" {
		t.Errorf("%+v %v %q", h, err, asked)
	}
	if _, err := c.Launch(within(t), "one", api.LaunchRequest{}, os.Stdin); !errors.Is(err, api.ErrBadRequest) {
		t.Errorf("files over a pipe: %v", err)
	}
}

// An answer may be closed by another goroutine than the one that reads it, also
// just as it ends.
func TestAnswersAreClosedWhileTheyAreRead(t *testing.T) {
	path := listen(t, func(c net.Conn) {
		for in := bufio.NewReader(c); ; {
			if _, err := http.ReadRequest(in); err != nil {
				return
			}
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 16\r\n\r\n{\"turn\":\"t\"}\n")
			time.Sleep(time.Millisecond)
			_, _ = io.WriteString(c, "{}\n")
		}
	})
	c := &Client{Socket: path}
	defer c.Close()
	for range 20 {
		h, err := c.Hold(within(t), "t", 0)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = io.Copy(io.Discard, h.in)
		}()
		time.Sleep(time.Millisecond)
		h.Close()
		<-done
	}
}
