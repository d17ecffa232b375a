package server

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

func TestListenModeIsThereFromTheStart(t *testing.T) {
	old := syscall.Umask(0o027)
	defer syscall.Umask(old)
	for _, mode := range []os.FileMode{0o600, 0o660, 0o666} {
		path := filepath.Join(shortDir(t), "s")
		l, err := Listen(path, mode)
		if err != nil {
			t.Fatal(err)
		}
		fi, err := os.Lstat(path)
		if err != nil || fi.Mode().Perm() != mode {
			t.Errorf("mode %v, want %v: %v", fi.Mode(), mode, err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the socket stayed: %v", err)
		}
	}
	if now := syscall.Umask(0o027); now != 0o027 {
		t.Errorf("the process's umask became %#o", now)
	}
}

func TestListenReplacesOnlyWhatIsDeadAndOurs(t *testing.T) {
	dir := shortDir(t)
	path := filepath.Join(dir, "s")
	l, err := Listen(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path, 0o600); err == nil || !strings.Contains(err.Error(), "already in use by a running service") {
		t.Errorf("a live socket: %v", err)
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatalf("the live service lost its socket: %v", err)
	}
	c.Close()
	l.(*socket).Listener.Close() // as a crash does: the socket stays
	again, err := Listen(path, 0o600)
	if err != nil {
		t.Fatalf("a stale socket: %v", err)
	}
	defer again.Close()
	if err := l.Close(); err == nil {
		t.Log("the dead listener closed twice")
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("closing the old listener removed the new one's socket: %v", err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{file, link, dir} {
		if _, err := Listen(p, 0o600); err == nil || !strings.Contains(err.Error(), "something else than a socket") {
			t.Errorf("%s: %v", p, err)
		}
	}
	if b, _ := os.ReadFile(file); string(b) != "precious" {
		t.Errorf("the file now holds %q", b)
	}
}

func TestListenSparesAnotherUsersSocket(t *testing.T) {
	needRoot(t)
	path := filepath.Join(shortDir(t), "s")
	l, err := Listen(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	l.(*socket).Listener.Close()
	if err := os.Lchown(path, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path, 0o600); err == nil || !strings.Contains(err.Error(), "another user's") {
		t.Errorf("%v", err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("it is gone: %v", err)
	}
}

func TestListenPathTooLong(t *testing.T) {
	path := filepath.Join(shortDir(t), strings.Repeat("x", 108))
	if _, err := Listen(path, 0o600); err == nil || !strings.Contains(err.Error(), "1 to 107") {
		t.Errorf("%v", err)
	}
	if _, err := Listen(filepath.Join(shortDir(t), "no", "s"), 0o600); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
}

// Services that start at once over a stale socket: one gets it, and keeps it.
func TestListenAtOnce(t *testing.T) {
	path := filepath.Join(shortDir(t), "s")
	for range 20 {
		var won atomic.Int32
		var wg sync.WaitGroup
		var l net.Listener
		for range 8 {
			wg.Go(func() {
				if got, err := Listen(path, 0o600); err == nil {
					won.Add(1)
					l = got
				}
			})
		}
		wg.Wait()
		if won.Load() != 1 {
			t.Fatalf("%d services listen", won.Load())
		}
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		l.(*socket).Listener.Close()
	}
}
