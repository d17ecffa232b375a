package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
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
	once sync.Once
}

func (s *socket) Close() error {
	s.once.Do(func() {
		made, merr := s.made.Stat()
		now, nerr := os.Lstat(s.path)
		if merr == nil && nerr == nil && os.SameFile(made, now) {
			_ = os.Remove(s.path)
		}
		s.made.Close()
	})
	return s.Listener.Close()
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
