package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"pinfold.dev/containment"
	"pinfold.dev/internal/hold"
	"pinfold.dev/internal/ownfile"
	"pinfold.dev/internal/store"
	"pinfold.dev/server"
)

// dirLock is the service's hold on its runtime directory: two services on one
// would both believe its turns theirs. Where the directory is made anew, so is the
// lock.
type dirLock struct {
	runtime, state string
	held           []*os.File // the last is that of today
}

// hold makes the directories, with the socket's way in for those who may connect,
// and locks the runtime directory, unless it is locked.
func (l *dirLock) hold() error {
	mode := os.FileMode(0o755)
	if os.Geteuid() != 0 {
		mode = 0o700
	}
	if err := os.MkdirAll(l.runtime, mode); err != nil {
		return fmt.Errorf("make the runtime directory: %w", err)
	}
	if err := os.MkdirAll(l.state, 0o700); err != nil {
		return fmt.Errorf("make the state directory: %w", err)
	}
	if err := closed(l.runtime); err != nil {
		return err
	}
	path := filepath.Join(l.runtime, hold.LockFile)
	if l.is(path) {
		return nil
	}
	f, err := ownfile.OpenTo(path, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return fmt.Errorf("lock the runtime directory: %w", err)
	}
	if err := lockSoon(f); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return fmt.Errorf("%s is in use by a running service; stop it, or give this one another --runtime-dir"+
				" (what a service that was killed had just started may hold its lock for a moment: then try again)", l.runtime)
		}
		return fmt.Errorf("lock the runtime directory: %w", &fs.PathError{Op: "flock", Path: path, Err: err})
	}
	l.held = append(l.held, f)
	return nil
}

// is tells whether what is at a path is locked.
func (l *dirLock) is(path string) bool {
	there, err := os.Lstat(path)
	if err != nil || len(l.held) == 0 {
		return false
	}
	own, err := l.held[len(l.held)-1].Stat()
	return err == nil && os.SameFile(own, there)
}

func (l *dirLock) release() {
	for _, f := range l.held {
		f.Close()
	}
}

// closed refuses a directory in which others may write: who names another mark
// there, or has the records away, has turns ended that are nobody's strays.
func closed(dir string) error {
	fi, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("look at the runtime directory: %w", err)
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok && st.Uid != 0 && int(st.Uid) != os.Geteuid() || fi.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("use %s: others may write the runtime directory (%s)", dir, fi.Mode())
	}
	return nil
}

// lockWait is how long a lock may be held by what a killed service was just
// starting: a child has its descriptors, the socket's too, until it executes.
const lockWait = 2 * time.Second

// lockSoon takes an exclusive lock; EWOULDBLOCK: another service has it.
func lockSoon(f *os.File) error {
	for end := time.Now().Add(lockWait); ; time.Sleep(10 * time.Millisecond) {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) || time.Now().After(end) {
			return err
		}
	}
}

// tender looks after what the running service needs on disk, and what the next one
// will: its runtime directory, the records of live turns, its socket.
type tender struct {
	o    serveOptions
	host *hold.Host
	st   *store.Store
	lock *dirLock
	m    *containment.Manager

	mu      sync.Mutex
	server  *server.Server // nil: it does not serve
	stopped bool           // it is not to serve any more
	socket  net.Listener   // that of today
	said    string         // the last error, which is logged once
}

// tend looks, and mends what can be mended.
func (t *tender) tend() (well bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	found, err := t.host.Tend(t.lock.hold)
	for _, f := range found {
		t.o.Log.Error("the runtime directory is not what it was", "what", f)
	}
	t.st.Away(err)
	t.st.Tend()
	if err == nil {
		_, err = t.m.Mend()
	}
	if err == nil {
		err = t.listenAgain()
	}
	said := ""
	if err != nil {
		said = err.Error()
	}
	if err != nil && said != t.said {
		t.o.Log.Error("look after the runtime directory", "error", err)
	}
	t.said = said
	return err == nil
}

// listenAgain makes the service's socket again, which was removed. Whoever is
// connected stays so.
func (t *tender) listenAgain() error {
	if t.server == nil {
		return nil
	}
	if server.There(t.socket) {
		return nil
	}
	if t.o.handed.unit != nil {
		return fmt.Errorf("the socket %s, which systemd has made, was removed: systemctl restart pinfold.socket", t.o.Socket)
	}
	l, err := server.Listen(t.o.Socket, socketMode())
	if err != nil {
		return err
	}
	t.o.keepSocket(l)
	t.socket = l
	t.o.Log.Error("the service's socket was removed; it is made anew", "socket", t.o.Socket)
	go func() {
		if err := t.server.Also(l); err != nil {
			t.o.Log.Error("answer on the socket that was made anew", "error", err)
		}
	}()
	return nil
}

// stopping has the socket go as the service stops: it was not removed by others.
func (t *tender) stopping() {
	t.mu.Lock()
	t.server, t.stopped = nil, true
	t.mu.Unlock()
}

// guard tends whenever something goes that it looks after.
func (t *tender) guard(ctx context.Context, s *server.Server, l net.Listener) {
	t.mu.Lock()
	if t.socket = l; !t.stopped {
		t.server = s
	}
	t.mu.Unlock()
	if err := t.host.Guard(ctx, filepath.Base(t.o.Socket), t.m.Live, t.tend); err != nil && ctx.Err() == nil {
		t.o.Log.Warn("nobody tells when the runtime directory is removed; it is looked at with `pinfold doctor --records` only", "error", err)
	}
	t.mu.Lock()
	t.server = nil
	t.mu.Unlock()
}
