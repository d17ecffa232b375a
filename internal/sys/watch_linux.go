package sys

import (
	"context"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// What a Watch waits for: the events of epoll_ctl(2).
const (
	WatchIn  = unix.EPOLLIN
	WatchPri = unix.EPOLLPRI // a cgroup or sysfs file has changed
)

// Watch waits for a descriptor in Go's netpoller, without a thread of its own.
// The descriptor sits in a private epoll instance which is what the netpoller
// watches: so its O_NONBLOCK, which it may share with another process, is not
// touched, and events that the netpoller does not know can be waited for.
type Watch struct {
	f    *os.File
	conn syscall.RawConn
}

// NewWatch watches fd, which must stay open until Close.
func NewWatch(fd int, events uint32) (*Watch, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	err = unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
	if err == nil {
		err = unix.SetNonblock(ep, true)
	}
	if err != nil {
		_ = unix.Close(ep)
		return nil, os.NewSyscallError("epoll_ctl", err)
	}
	f := os.NewFile(uintptr(ep), "watch")
	conn, err := f.SyscallConn()
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return &Watch{f, conn}, nil
}

// Wait waits until an event is there, ctx is done (its error) or timeout is over
// (os.ErrDeadlineExceeded; 0: none). One goroutine at a time.
func (w *Watch) Wait(ctx context.Context, timeout time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var at time.Time
	if timeout > 0 {
		at = time.Now().Add(timeout)
	}
	if err := w.f.SetReadDeadline(at); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = w.f.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	err := w.conn.Read(func(ep uintptr) bool {
		var ev [1]unix.EpollEvent
		n, err := unix.EpollWait(int(ep), ev[:], 0)
		return n > 0 || (err != nil && err != unix.EINTR)
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// Close ends the watch and wakes a Wait with os.ErrClosed.
func (w *Watch) Close() error { return w.f.Close() }
