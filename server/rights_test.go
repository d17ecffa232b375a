package server

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/client"
	"pinfold.dev/internal/sys/systest"
)

// descriptors counts this process's, once the connections of the test are gone.
func descriptors(t testing.TB) int {
	t.Helper()
	e, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(e)
}

// flat waits until no more descriptors are open than before.
func flat(t testing.TB, before int) {
	t.Helper()
	var now int
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if now = descriptors(t); now <= before {
			return
		}
	}
	t.Errorf("%d descriptors are open, %d were before", now, before)
}

func pipe(t testing.TB) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

func passing(n int) api.LaunchRequest {
	return api.LaunchRequest{Argv: []string{"hi"}, Stdio: api.Stdio{Stdout: api.Stream{Mode: api.StdioPass, FD: n}}}
}

func TestDescriptorsArrive(t *testing.T) {
	s := start(t, Config{})
	s.engine.add("one", uint32(os.Getuid()))
	c, ctx := s.client(t), within(t)
	r, w := pipe(t)
	if err := syscall.SetNonblock(int(w.Fd()), true); err != nil { // it must stay as it is
		t.Fatal(err)
	}
	must[api.Host](t)(c.Host(ctx)) // the connection stays
	before := descriptors(t)
	if p := must[api.Process](t)(c.Launch(ctx, "one", passing(1), w, w)); p.Labels["fds"] != "2" {
		t.Errorf("%+v", p)
	}
	w.Close()
	if b, err := io.ReadAll(r); string(b) != "hi 0\nhi 1\n" || err != nil { // EOF: the service kept no copy
		t.Errorf("%q %v", b, err)
	}
	flat(t, before)
	if p := must[api.Process](t)(c.Launch(ctx, "one", api.LaunchRequest{Argv: []string{"hi"}})); p.Labels["fds"] != "0" {
		t.Errorf("on the same connection, without any: %+v", p)
	}
	if _, err := c.Launch(ctx, "one", passing(0), w); !errors.Is(err, api.ErrBadRequest) {
		t.Errorf("a closed file: %v", err)
	}
	many := make([]*os.File, maxFDs+1)
	for i := range many {
		many[i] = r
	}
	if _, err := c.Launch(ctx, "one", passing(0), many...); codeOfError(err) != api.CodeTooLarge {
		t.Errorf("too many files: %v", err)
	}
}

func codeOfError(err error) api.Code {
	var e *api.Error
	errors.As(err, &e)
	return codeOf(e)
}

func TestThousandRequestsWithDescriptors(t *testing.T) {
	s := start(t, Config{})
	s.engine.add("one", uint32(os.Getuid()))
	ctx := within(t)
	c := &client.Client{Socket: s.socket}
	must[api.Host](t)(c.Host(ctx))
	before := descriptors(t)
	_, w := pipe(t)
	null := must[*os.File](t)(os.OpenFile(os.DevNull, os.O_RDWR, 0))
	t.Cleanup(func() { null.Close() })
	before += 3
	var wg sync.WaitGroup
	for i := range 1000 {
		if i%8 == 0 {
			wg.Wait()
		}
		wg.Go(func() {
			switch i % 4 {
			case 0: // taken
				if _, err := c.Launch(ctx, "one", passing(0), null, null, null); err != nil {
					t.Error(err)
				}
			case 1: // refused by the engine
				if _, err := c.Launch(ctx, "one", passing(9), w, null); !errors.Is(err, api.ErrBadRequest) {
					t.Error(err)
				}
			case 2: // refused by the server: no such turn
				if _, err := c.Launch(ctx, "two", passing(0), w); !errors.Is(err, api.ErrNotFound) {
					t.Error(err)
				}
			case 3: // the client gives up at once
				gone, cancel := context.WithTimeout(ctx, time.Duration(i)*time.Microsecond)
				defer cancel()
				_, _ = c.Launch(gone, "one", passing(0), null, w)
			}
		})
	}
	wg.Wait()
	c.Close()
	flat(t, before)
}

// rawConn speaks HTTP by hand, with descriptors.
type rawConn struct {
	*net.UnixConn
	in *bufio.Reader
}

func (s *service) raw(t testing.TB) *rawConn {
	t.Helper()
	c, err := net.Dial("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return &rawConn{c.(*net.UnixConn), bufio.NewReader(c)}
}

func (c *rawConn) send(t testing.TB, text string, files ...*os.File) {
	t.Helper()
	var oob []byte
	if len(files) > 0 {
		var fds []int
		for _, f := range files {
			fds = append(fds, int(f.Fd()))
		}
		oob = syscall.UnixRights(fds...)
	}
	if _, _, err := c.WriteMsgUnix([]byte(text), oob, nil); err != nil {
		t.Fatal(err)
	}
}

// answer reads one answer: its status, and the number of descriptors that the
// launch got.
func (c *rawConn) answer(t testing.TB) (int, string) {
	t.Helper()
	resp, err := http.ReadResponse(c.in, nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var p api.Process
	if err := json.Unmarshal(b, &p); err != nil {
		t.Fatalf("%s: %v", b, err)
	}
	return resp.StatusCode, p.Labels["fds"]
}

func launchText(body string) string {
	return fmt.Sprintf("POST /v1/turns/one/processes HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

// A connection carries many requests; what came with one is never another's.
func TestDescriptorsStayWithTheirRequest(t *testing.T) {
	s := start(t, Config{})
	s.engine.add("one", uint32(os.Getuid()))
	_, w := pipe(t)
	c := s.raw(t)
	plain := launchText(`{"argv":["x"]}`)
	expect := func(step string, status int, fds string) {
		t.Helper()
		if gotStatus, got := c.answer(t); gotStatus != status || got != fds {
			t.Errorf("%s: %d with %q descriptors, want %d with %q", step, gotStatus, got, status, fds)
		}
	}
	c.send(t, plain)
	expect("the first", 201, "0")
	before := descriptors(t)
	for range 50 { // right after an answer, the next request races with the end of the last
		c.send(t, plain, w, w)
		expect("launch with two", 201, "2")
		c.send(t, plain)
		expect("launch with none", 201, "0")
		c.send(t, plain, w)
		expect("launch with one", 201, "1")
		c.send(t, "GET /v1/host HTTP/1.1\r\nHost: x\r\n\r\n", w, w, w)
		expect("a look at the host, with three for nothing", 200, "")
		c.send(t, plain)
		expect("launch after it", 201, "0")
		c.send(t, launchText(`{"argv":7}`), w)
		expect("refused", 400, "")
		c.send(t, plain)
		expect("launch after the refused", 201, "0")
		c.send(t, "DELETE /v1/turns/one HTTP/1.1\r\nHost: x\r\n\r\n", w)
		expect("refused before its body", 405, "")
		c.send(t, plain, w)
		expect("launch after that", 201, "1")
	}
	// They may come late, with the body.
	cut := strings.Index(plain, "\r\n\r\n") + 4
	c.send(t, plain[:cut])
	time.Sleep(20 * time.Millisecond)
	c.send(t, plain[cut:cut+3])
	time.Sleep(20 * time.Millisecond)
	c.send(t, plain[cut+3:], w)
	expect("descriptors with the body's end", 201, "1")
	// A request that is refused while its body is on its way.
	late := strings.Replace(plain, "/turns/one", "/turns/two", 1)
	c.send(t, late[:len(late)-3])
	time.Sleep(20 * time.Millisecond)
	c.send(t, late[len(late)-3:], w)
	expect("no such turn", 404, "")
	c.send(t, plain)
	expect("launch after it", 201, "0")
	flat(t, before)
}

func TestTooManyDescriptors(t *testing.T) {
	s := start(t, Config{})
	s.engine.add("one", uint32(os.Getuid()))
	_, w := pipe(t)
	before := descriptors(t)
	c := s.raw(t)
	files := make([]*os.File, maxFDs+5)
	for i := range files {
		files[i] = w
	}
	c.send(t, launchText(`{"argv":["x"]}`), files...)
	if status, _ := c.answer(t); status != 413 {
		t.Errorf("%d at once: %d", len(files), status)
	}
	text := launchText(`{"argv":["x"]}`)
	for i := range maxFDs + 5 { // byte by byte
		c.send(t, text[i:i+1], w)
	}
	c.send(t, text[maxFDs+5:])
	if status, _ := c.answer(t); status != 413 {
		t.Errorf("%d one by one: %d", maxFDs+5, status)
	}
	c.send(t, text, files[:maxFDs]...)
	if status, n := c.answer(t); status != 201 || n != fmt.Sprint(maxFDs) {
		t.Errorf("%d: %d %s", maxFDs, status, n)
	}
	c.Close()
	flat(t, before)
}

// All of one user's connections together hold a bounded number.
func TestDescriptorsOfAUserAreBounded(t *testing.T) {
	s := start(t, Config{})
	_, w := pipe(t)
	before := descriptors(t)
	files := make([]*os.File, maxFDs)
	for i := range files {
		files[i] = w
	}
	const conns = 20
	for range conns { // half a request each
		c := s.raw(t)
		c.send(t, "GET /v1/host HT", files...)
		defer c.Close()
	}
	held := func() int { return descriptors(t) - before }
	bounded := func() bool { n := held(); return n >= maxFDsParty && n <= maxFDsParty+2*conns }
	systest.Until(t, "the descriptors of half requests", bounded)
	time.Sleep(200 * time.Millisecond)
	if !bounded() {
		t.Errorf("%d descriptors are held", held())
	}
	must[api.Host](t)(s.client(t).Host(within(t)))
}

func TestClientsKilledMidway(t *testing.T) {
	s := start(t, Config{})
	s.engine.add("one", uint32(os.Getuid()))
	before := descriptors(t)
	for range 20 {
		cmd := helper(t, "hang", s.socket, syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL})
		out := must[io.ReadCloser](t)(cmd.StdoutPipe())
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
			t.Fatal(line, err)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
	}
	flat(t, before)
	s.unaccounted(t)
}

// unaccounted waits until no client is accounted for any more.
func (s *service) unaccounted(t testing.TB) {
	t.Helper()
	systest.Until(t, "that clients which are gone are not accounted for", func() bool {
		s.limits.mu.Lock()
		defer s.limits.mu.Unlock()
		return len(s.limits.by) == 0
	})
}
