package client

import (
	"net"
	"os"
	"runtime"
	"syscall"

	"pinfold.dev/api"
)

// maxFiles is what the service takes with one request.
const maxFiles = 64

// sender is a connection whose first write carries files along.
type sender struct {
	*net.UnixConn
	files []*os.File
	fds   []int // nil once they are sent
}

func newSender(nc net.Conn, files []*os.File) (net.Conn, error) {
	u, ok := nc.(*net.UnixConn)
	switch {
	case !ok:
		nc.Close()
		return nil, api.Errorf(api.CodeBadRequest, "pass files: the connection is a %T, not a unix socket's", nc)
	case len(files) > maxFiles:
		nc.Close()
		return nil, api.Errorf(api.CodeTooLarge, "pass files: %d, a request carries at most %d", len(files), maxFiles)
	}
	s := &sender{UnixConn: u, files: files}
	for i, f := range files {
		fd, err := number(f)
		if err != nil {
			nc.Close()
			return nil, api.Errorf(api.CodeBadRequest, "pass file %d: %v", i, err)
		}
		s.fds = append(s.fds, fd)
	}
	return s, nil
}

func (s *sender) Write(b []byte) (int, error) {
	if s.fds == nil || len(b) == 0 {
		return s.UnixConn.Write(b)
	}
	n, _, err := s.WriteMsgUnix(b, syscall.UnixRights(s.fds...), nil)
	runtime.KeepAlive(s.files)
	if err != nil {
		return n, err
	}
	s.fds = nil
	if n == len(b) {
		return n, nil
	}
	m, err := s.UnixConn.Write(b[n:])
	return n + m, err
}

// number is a file's descriptor; unlike File.Fd it leaves the file's mode alone.
func number(f *os.File) (int, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	err = raw.Control(func(n uintptr) { fd = int(n) })
	return fd, err
}
