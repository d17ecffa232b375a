package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"pinfold.dev/internal/sys"
)

// maxPath is what sun_path holds besides its final NUL, see unix(7).
const maxPath = 107

// Listen makes a unix socket at path, with mode from its first moment on. A
// socket that a dead service left is replaced: only if connecting to it is
// refused, and it is ours. An empty lock file, path with .lock, keeps two
// services that start at once from replacing each other's. Closing the
// listener removes the socket, unless it is no longer the one made here.
func Listen(path string, mode os.FileMode) (net.Listener, error) {
	if len(path) == 0 || len(path) > maxPath {
		return nil, fmt.Errorf("listen on %q: the path has %d bytes, a socket's has 1 to %d", path, len(path), maxPath)
	}
	lock, err := sys.LockFile(path + ".lock")
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	defer lock.Close()
	if err := clearStale(path); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	var l net.Listener
	mask := int(^mode.Perm() & 0o777)
	if err := sys.WithUmask(mask, func() (err error) { l, err = net.Listen("unix", path); return }); err != nil {
		return nil, err // net.OpError names operation and path
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	fd, err := sys.Openat(sys.AtFDCWD, path, sys.OPath|sys.ONofollow)
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return &socket{Listener: l, path: path, made: os.NewFile(uintptr(fd), path)}, nil
}

// socket is a listener that removes its own socket only. It holds the file
// open (O_PATH): inode numbers are used again as soon as nobody does.
type socket struct {
	net.Listener
	path string
	made *os.File
	kept atomic.Bool // somebody else goes on to listen
	once sync.Once
}

// Keep returns a duplicate descriptor of a listener that Listen made, for somebody
// who goes on to listen, and the name of its socket, by which Kept knows it again.
// Until Drop is called, closing the listener then leaves the socket where it is.
func Keep(l net.Listener) (fd int, name string, err error) {
	s, ok := l.(*socket)
	if !ok {
		return -1, "", fmt.Errorf("keep the socket: %T is none of Listen's", l)
	}
	u, ok := s.Listener.(*net.UnixListener)
	if !ok {
		return -1, "", fmt.Errorf("keep the socket: %T is no unix socket", s.Listener)
	}
	made, err := s.made.Stat()
	if err != nil {
		return -1, "", fmt.Errorf("keep the socket: %w", err)
	}
	raw, err := u.SyscallConn() // not File, whose Fd makes the listener itself block
	if err == nil {
		err = errors.Join(raw.Control(func(own uintptr) { fd, err = sys.Dup(int(own)) }), err)
	}
	if err != nil {
		return -1, "", fmt.Errorf("keep the socket: %w", err)
	}
	s.kept.Store(true)
	return fd, fileName(made), nil
}

// Drop undoes Keep: closing removes the socket.
func Drop(l net.Listener) {
	if s, ok := l.(*socket); ok {
		s.kept.Store(false)
	}
}

// Kept makes a listener of a descriptor that Keep has returned, which it owns
// from then on, also after an error. The socket at path must be the one it
// listens on, by the name that Keep has returned.
func Kept(f *os.File, path, name string) (net.Listener, error) {
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("take the kept socket: %w", err)
	}
	if a, ok := l.Addr().(*net.UnixAddr); !ok || a.Net != "unix" || a.Name != path {
		l.Close()
		return nil, fmt.Errorf("take the kept socket: it is at %s, not at %s", l.Addr(), path)
	}
	fd, err := sys.Openat(sys.AtFDCWD, path, sys.OPath|sys.ONofollow)
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("take the kept socket: %w", err)
	}
	made := os.NewFile(uintptr(fd), path)
	if fi, err := made.Stat(); err != nil || fi.Mode().Type() != os.ModeSocket || fileName(fi) != name {
		made.Close()
		l.Close()
		return nil, fmt.Errorf("take the kept socket: what is at %s now is another", path)
	}
	s := &socket{Listener: l, path: path, made: made}
	s.kept.Store(true)
	return s, nil
}

// fileName tells one file from others: nobody gets its number while the socket
// is kept open.
func fileName(fi os.FileInfo) string {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	return fmt.Sprintf("%d-%d", st.Dev, st.Ino)
}

func (s *socket) Close() error {
	s.once.Do(func() {
		made, merr := s.made.Stat()
		now, nerr := os.Lstat(s.path)
		if merr == nil && nerr == nil && os.SameFile(made, now) && !s.kept.Load() {
			_ = os.Remove(s.path)
		}
		s.made.Close()
	})
	return s.Listener.Close()
}

// There tells whether the socket of a listener that Listen or Kept made is still at
// its path. Of other listeners only that something is there is known.
func There(l net.Listener) bool {
	s, ok := l.(*socket)
	if !ok {
		_, err := os.Lstat(l.Addr().String())
		return err == nil
	}
	made, merr := s.made.Stat()
	now, nerr := os.Lstat(s.path)
	return merr == nil && nerr == nil && os.SameFile(made, now)
}

// clearStale makes room at path, or says why there is none.
func clearStale(path string) error {
	fi, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if fi.Mode().Type() != os.ModeSocket {
		return errors.New("something else than a socket is there")
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); !ok || int(st.Uid) != os.Geteuid() {
		return errors.New("the socket there is another user's")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		c.Close()
		return errors.New("already in use by a running service")
	case errors.Is(err, syscall.EAGAIN):
		return errors.New("already in use by a running service, which is too busy to answer")
	case !errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("find out whether the socket there is in use: %w", err)
	}
	return os.Remove(path)
}
