package client

import (
	"fmt"
	"net"
	"os"
	"reflect"
	"runtime"
	"strconv"
	"syscall"
	"unicode/utf8"

	"pinfold.dev/api"
)

// maxFiles is what the service takes with one request.
const maxFiles = 64

// sender is a connection whose first write carries files along.
type sender struct {
	*net.UnixConn
	files []*os.File // nil once they are sent
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
	return &sender{UnixConn: u, files: files}, nil
}

func (s *sender) Write(b []byte) (int, error) {
	if s.files == nil || len(b) == 0 {
		return s.UnixConn.Write(b)
	}
	defer runtime.KeepAlive(s.files)
	var fds []int
	for i, f := range s.files {
		fd, err := number(f)
		if err != nil {
			return 0, api.Errorf(api.CodeBadRequest, "pass file %d: %v", i, err)
		}
		fds = append(fds, fd)
	}
	n, _, err := s.WriteMsgUnix(b, syscall.UnixRights(fds...), nil)
	if err != nil {
		return n, err
	}
	s.files = nil
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

// notUTF8 finds a string in v that is not UTF-8, and says where.
func notUTF8(v any) (where string, bad bool) { return badText(reflect.ValueOf(v), "") }

func badText(v reflect.Value, at string) (string, bool) {
	switch v.Kind() {
	case reflect.String:
		return at, !utf8.ValidString(v.String())
	case reflect.Slice:
		for i := range v.Len() {
			if w, bad := badText(v.Index(i), at+"["+strconv.Itoa(i)+"]"); bad {
				return w, true
			}
		}
	case reflect.Map:
		for _, k := range v.MapKeys() {
			if _, bad := badText(k, ""); bad {
				return fmt.Sprintf("a key of %s", at), true
			}
			if w, bad := badText(v.MapIndex(k), at+"["+strconv.Quote(k.String())+"]"); bad {
				return w, true
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if w, bad := badText(v.Field(i), at+"."+v.Type().Field(i).Name); bad {
				return w, true
			}
		}
	case reflect.Pointer:
		if !v.IsNil() {
			return badText(v.Elem(), at)
		}
	}
	return "", false
}
