package client

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime"
	"syscall"

	"pinfold.dev/api"
)

// maxFiles is what the service takes with one request.
const maxFiles = 64

// cargo is the files that go with a request's first byte.
type cargo struct {
	files []*os.File
	fds   []int
}

func newCargo(files []*os.File) (*cargo, error) {
	if len(files) > maxFiles {
		return nil, api.Errorf(api.CodeTooLarge, "pass files: %d, a request carries at most %d", len(files), maxFiles)
	}
	c := &cargo{files: files}
	for i, f := range files {
		fd, err := number(f)
		if err != nil {
			return nil, api.Errorf(api.CodeBadRequest, "pass file %d: %v", i, err)
		}
		c.fds = append(c.fds, fd)
	}
	return c, nil
}

type cargoKey struct{}

// along makes a request under ctx take the cargo.
func (c *cargo) along(ctx context.Context) context.Context {
	return context.WithValue(ctx, cargoKey{}, c)
}

func cargoOf(ctx context.Context) *cargo {
	c, _ := ctx.Value(cargoKey{}).(*cargo)
	return c
}

// number is a file's descriptor. One that Go itself has made non-blocking, as
// os.Pipe does, blocks from now on, as with os/exec: few programs can do with
// streams that do not.
func number(f *os.File) (int, error) {
	fd := int(f.Fd())
	if fd < 0 {
		return -1, os.ErrClosed
	}
	return fd, nil
}

// sender is a connection that sends cargo with its next write.
type sender struct {
	net.Conn
	next *cargo
}

func (s *sender) Write(b []byte) (int, error) {
	c := s.next
	if c == nil || len(c.fds) == 0 || len(b) == 0 {
		return s.Conn.Write(b)
	}
	u, ok := s.Conn.(*net.UnixConn)
	if !ok {
		return 0, api.Errorf(api.CodeBadRequest, "pass files: the connection is a %T, not a unix socket's", s.Conn)
	}
	n, _, err := u.WriteMsgUnix(b, syscall.UnixRights(c.fds...), nil)
	runtime.KeepAlive(c.files)
	if err != nil {
		return max(n, 0), fmt.Errorf("pass files: %w", err)
	}
	s.next = nil
	if n == len(b) {
		return n, nil
	}
	m, err := s.Conn.Write(b[n:])
	return n + m, err
}
