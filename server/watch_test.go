package server

import (
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
)

// A client that has sent more than its request, its own end of the connection
// among it, and then dies, is seen gone while its request still waits.
func TestDeadClientsThatSentMore(t *testing.T) {
	s := start(t, Config{})
	s.engine.add("one", uint32(os.Getuid()))
	s.engine.streams = map[api.StreamName]*stream{api.StreamStdout: newStream()}
	s.engine.openStdin() // nobody reads it
	get := func(path string) string { return "GET /v1/turns/one" + path + " HTTP/1.1\r\nHost: x\r\n\r\n" }
	in := "POST /v1/turns/one/processes/p1/stdin HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"
	before := descriptors(t)
	for name, text := range map[string]string{
		"wait": get("/wait"), "wait for a process": get("/processes/p1/wait"), "follow": get("/processes/p1/output?follow=true"),
		"launch and wait": strings.Replace(launchText(`{"argv":["x"]}`), "/processes", "/processes?wait=true", 1),
		"stdin":           in, "stdin in half a chunk": strings.Replace(in, "Content-Length: 100", "Transfer-Encoding: chunked", 1) + "5",
	} {
		t.Run(name, func(t *testing.T) {
			c := s.raw(t)
			own, err := c.File() // another descriptor of the same end
			if err != nil {
				t.Fatal(err)
			}
			c.send(t, text)
			time.Sleep(20 * time.Millisecond) // it is being answered
			c.send(t, "G", own)
			own.Close()
			c.Close()
			time.Sleep(20 * time.Millisecond)
			flat(t, before)
		})
	}
	s.unaccounted(t)
}

// Net/http looks out for more than a request before it hands that over: the byte
// that ends its look-out may be read before anybody else looks.
func TestMoreThanARequestBeforeItIsWatched(t *testing.T) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "end")
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		ends[i] = c.(*net.UnixConn)
	}
	var l limits
	c := newConn(ends[0], Peer{}, l.connect(party{}), func() api.Grade { return api.GradeToken }, time.Minute)
	defer c.Close()
	if _, err := ends[1].Write([]byte("G")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	ctx, w := c.watch(t.Context())
	defer w.end()
	ends[1].Close()
	select {
	case <-ctx.Done():
	case <-time.After(time.Minute):
		t.Error("the client was not seen to be gone")
	}
}

// asked is a connection whose first request is answered. A busy machine may take
// longer for that than a header may: then it is another one.
func (s *service) asked(t *testing.T) *rawConn {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; {
		c := s.raw(t)
		_, err := c.Write([]byte("GET /v1/host HTTP/1.1\r\nHost: x\r\n\r\n"))
		if err == nil {
			_, err = c.in.Peek(1)
		}
		if err == nil {
			c.answer(t)
			return c
		}
		c.Close()
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// A client that dies with its own end of the connection in a request that has
// only begun keeps that connection no longer than a header may take, and not as
// long as an idle one may stay.
func TestDeadClientsThatHadBegunTheNextRequest(t *testing.T) {
	const header, idle = time.Second, time.Hour
	s := start(t, Config{HeaderTimeout: header, IdleTimeout: idle})
	s.engine.add("one", uint32(os.Getuid()))
	before := descriptors(t)
	for name, begin := range map[string]func(c *rawConn, own *os.File){
		"after the answer": func(c *rawConn, own *os.File) {
			time.Sleep(20 * time.Millisecond) // the connection is idle
			c.send(t, "G", own)
		},
		"with the answer": func(c *rawConn, own *os.File) {
			for range 200 { // some come between an answer and its end
				c.send(t, "GET /v1/host HTTP/1.1\r\nHost: x\r\n\r\n")
				c.answer(t)
			}
			c.send(t, "GET /v1/host HTTP/1.1\r\nHost: x\r\n\r\n")
			c.send(t, "G", own)
		},
	} {
		t.Run(name, func(t *testing.T) {
			var open []*rawConn
			for range 50 {
				c := s.asked(t)
				own, err := c.File() // another descriptor of the same end
				if err != nil {
					t.Fatal(err)
				}
				begin(c, own)
				own.Close()
				open = append(open, c)
			}
			for _, c := range open {
				c.Close()
			}
			flat(t, before)
		})
	}
	s.unaccounted(t)
}

// Descriptors do not give a header more time, whether they are kept or not.
func TestDescriptorsBuyNoTime(t *testing.T) {
	s := start(t, Config{HeaderTimeout: time.Second})
	_, w := pipe(t)
	for name, n := range map[string]int{"one": 1, "too many": maxFDs + 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := s.asked(t)
			c.send(t, "GET /v1/host HTTP/1.1\r\nHost: ")
			rights := syscall.UnixRights(slices.Repeat([]int{int(w.Fd())}, n)...)
			for sent := 0; ; sent++ {
				if _, _, err := c.WriteMsgUnix([]byte("x"), rights, nil); err != nil {
					break
				}
				if sent == 200 {
					t.Fatal("it has time for as long as descriptors come")
				}
				time.Sleep(50 * time.Millisecond)
			}
		})
	}
}

// A header that is read by single bytes is not taken for what follows a request:
// descriptors that come late with the body are the request's.
func TestLongHeaderAndALateBody(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	s.engine.add("one", uint32(os.Getuid()))
	_, w := pipe(t)
	c := s.raw(t)
	text := launchText(`{"argv":["x"]}`)
	at := strings.Index(text, "\r\n\r\n") + 2
	c.send(t, text[:at]+"X: "+strings.Repeat("x", 4092)) // of the reader's 4096 bytes one is left
	time.Sleep(50 * time.Millisecond)
	c.send(t, "x")
	time.Sleep(50 * time.Millisecond)
	c.send(t, "\r\n\r\n{", w)
	time.Sleep(goneEvery + 200*time.Millisecond)
	c.send(t, text[at+3:], w)
	if status, fds := c.answer(t); status != 201 || fds != "2" {
		t.Errorf("%d with %s descriptors", status, fds)
	}
}

// A body that does not come has its time once, not once more for the rest.
func TestLateBodyHasItsTimeOnce(t *testing.T) {
	const most = 5 * time.Second
	over := 2 * most
	for try := 0; over >= 2*most && try < 3; try++ { // a busy machine may take as long, once
		over = lateBody(t, most)
	}
	if over >= 2*most {
		t.Errorf("closed after %v", over)
	}
}

// lateBody is how long a connection lives whose request's body never comes whole.
func lateBody(t *testing.T, most time.Duration) time.Duration {
	t.Helper()
	s := start(t, Config{BodyTimeout: most})
	s.engine.add("one", uint32(os.Getuid()))
	before := descriptors(t)
	c := s.raw(t)
	own, err := c.File() // nobody sees it close
	if err != nil {
		t.Fatal(err)
	}
	text := launchText(`{"argv":["x"]}`)
	begun := time.Now()
	c.send(t, text[:len(text)-1], own)
	own.Close()
	if status, _ := c.answer(t); status != 408 {
		t.Error(status)
	}
	if _, err := c.in.ReadByte(); err != io.EOF {
		t.Error(err)
	}
	over := time.Since(begun)
	c.Close()
	flat(t, before)
	return over
}
