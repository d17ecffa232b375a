package spool

import (
	"encoding/binary"
	"os"
	"strconv"
	"sync"
	"syscall"
)

// Watcher wakes readers that wait. One inotify instance, of which a user has
// 128 (fs.inotify.max_user_instances), and one goroutine serve them all. A file
// is watched only while somebody waits, and for one event, so that a busy
// writer costs nothing.
type Watcher struct {
	f    *os.File
	conn syscall.RawConn
	done chan struct{}

	mu     sync.Mutex
	bells  bells
	closed bool
}

// NewWatcher makes a watcher, which is to be closed.
func NewWatcher() (*Watcher, error) {
	fd, err := syscall.InotifyInit1(syscall.IN_CLOEXEC | syscall.IN_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	w := &Watcher{f: os.NewFile(uintptr(fd), "inotify"), done: make(chan struct{}), bells: make(bells)}
	if w.conn, err = w.f.SyscallConn(); err != nil {
		_ = w.f.Close()
		return nil, err
	}
	go w.listen()
	return w, nil
}

// Open is Open with a Wait that is woken. Readers outlive the watcher: their
// Wait polls then.
func (w *Watcher) Open(path string) (*Reader, error) { return open(path, w) }

// Close ends the watcher and its goroutine.
func (w *Watcher) Close() error {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	err := w.f.Close()
	<-w.done
	return err
}

// arm returns a bell for the next write to f, or nil when it cannot be watched.
func (w *Watcher) arm(f *os.File) *bell {
	if w == nil {
		return nil
	}
	file, err := f.SyscallConn()
	if err != nil {
		return nil
	}
	b := &bell{w: w, wd: -1, ch: make(chan struct{})}
	w.mu.Lock() // listen must not see the event before the bell is there
	defer w.mu.Unlock()
	if w.closed {
		return nil
	}
	_ = file.Control(func(fd uintptr) {
		path := "/proc/self/fd/" + strconv.Itoa(int(fd)) // this very file, also when it was removed
		_ = w.conn.Control(func(in uintptr) {
			b.wd, _ = syscall.InotifyAddWatch(int(in), path, syscall.IN_MODIFY|syscall.IN_ONESHOT)
		})
	})
	if b.wd < 0 {
		return nil
	}
	w.bells[b.wd] = append(w.bells[b.wd], b)
	return b
}

// disarm forgets a bell, rung or not.
func (b *bell) disarm() {
	if b == nil {
		return
	}
	b.w.mu.Lock()
	defer b.w.mu.Unlock()
	if b.w.bells.remove(b) && !b.w.closed {
		_ = b.w.conn.Control(func(in uintptr) { _, _ = syscall.InotifyRmWatch(int(in), uint32(b.wd)) })
	}
}

// listen rings until the watcher is closed.
func (w *Watcher) listen() {
	defer close(w.done)
	buf := make([]byte, 4096)
	for {
		n, err := w.f.Read(buf)
		w.mu.Lock()
		if err != nil {
			w.closed = true
			w.ringAll()
			w.mu.Unlock()
			return
		}
		w.dispatch(buf[:n])
		w.mu.Unlock()
	}
}

// dispatch reads inotify events: watch descriptor, mask, cookie and length of a
// name, 4 bytes each, and the name.
func (w *Watcher) dispatch(b []byte) {
	for len(b) >= syscall.SizeofInotifyEvent {
		wd, mask := int32(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint32(b[4:])
		if mask&syscall.IN_Q_OVERFLOW != 0 {
			w.ringAll()
		}
		w.bells.ring(int(wd))
		b = b[min(len(b), syscall.SizeofInotifyEvent+int(binary.NativeEndian.Uint32(b[12:]))):]
	}
}

func (w *Watcher) ringAll() {
	for wd := range w.bells {
		w.bells.ring(wd)
	}
}
