package ownfile

import (
	"bytes"
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// things are what may be at a name.
func things(t *testing.T) map[string]func(path string) error {
	return map[string]func(path string) error{
		"fifo": func(p string) error { return syscall.Mkfifo(p, 0o600) },
		"socket": func(p string) error {
			l, err := net.Listen("unix", p)
			if err == nil {
				l.(*net.UnixListener).SetUnlinkOnClose(false)
				err = l.Close()
			}
			return err
		},
		"directory":     func(p string) error { return os.MkdirAll(p+"/in", 0o700) },
		"link":          func(p string) error { return os.Symlink("/etc/hostname", p) },
		"dangling link": func(p string) error { return os.Symlink(p+".nowhere", p) },
		"link to fifo": func(p string) error {
			return errors.Join(syscall.Mkfifo(p+".fifo", 0o600), os.Symlink(p+".fifo", p))
		},
		"others may write": func(p string) error { return errors.Join(os.WriteFile(p, []byte("x"), 0o600), os.Chmod(p, 0o602)) },
		"device": func(p string) error {
			if os.Geteuid() != 0 {
				return os.Symlink("/dev/tty", p)
			}
			return syscall.Mknod(p, syscall.S_IFCHR|0o600, 5<<8) // /dev/tty
		},
		"another's": func(p string) error {
			if os.Geteuid() != 0 {
				return os.Symlink("/etc/passwd", p)
			}
			return errors.Join(os.WriteFile(p, []byte("x"), 0o600), os.Chown(p, 65534, 65534))
		},
	}
}

// soon fails a test that waits.
func soon(t *testing.T, what string, f func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-time.After(2 * time.Minute):
		t.Fatalf("%s waits", what)
		return nil
	}
}

// Whatever is at a name, nothing waits, nothing is read or written through it,
// and it is replaced, or refused as what it is.
func TestStrangeThings(t *testing.T) {
	for name, put := range things(t) {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "f")
			if err := put(path); err != nil {
				t.Fatal(err)
			}
			if err := soon(t, "Read", func() error { _, err := Read(path, 10); return err }); !errors.Is(err, ErrStrange) {
				t.Errorf("read: %v", err)
			}
			for _, flag := range []int{os.O_WRONLY, os.O_RDWR, os.O_RDWR | os.O_CREATE, os.O_WRONLY | os.O_APPEND | os.O_CREATE | os.O_TRUNC} {
				if err := soon(t, "OpenTo", func() error { _, err := OpenTo(path, flag); return err }); !errors.Is(err, ErrStrange) {
					t.Errorf("open with %#x: %v", flag, err)
				}
			}
			err := soon(t, "Replace", func() error { return Replace(path, []byte("new"), true) })
			if name == "directory" {
				if !errors.Is(err, ErrStrange) {
					t.Errorf("replaced: %v", err)
				}
				return
			}
			if b, rerr := Read(path, 10); err != nil || rerr != nil || string(b) != "new" {
				t.Errorf("%q (%v, %v)", b, err, rerr)
			}
			if b, _ := os.ReadFile("/etc/hostname"); bytes.Equal(b, []byte("new")) {
				t.Error("it was written through the link")
			}
		})
		t.Run(name+" at the new one's place", func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "f")
			if err := errors.Join(os.WriteFile(path, []byte("old"), 0o600), put(path+".new")); err != nil {
				t.Fatal(err)
			}
			want := "new"
			if err := soon(t, "Replace", func() error { return Replace(path, []byte("new"), false) }); name == "directory" {
				if want = "old"; !errors.Is(err, ErrStrange) {
					t.Errorf("replaced: %v", err)
				}
			} else if err != nil {
				t.Error(err)
			}
			if b, err := Read(path, 10); err != nil || string(b) != want {
				t.Errorf("%q (%v)", b, err)
			}
		})
	}
}

func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if _, err := Read(path, 1); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if err := Replace(path, []byte("12345"), false); err != nil {
		t.Fatal(err)
	}
	if b, err := Read(path, 5); err != nil || string(b) != "12345" {
		t.Errorf("%q %v", b, err)
	}
	if _, err := Read(path, 4); !errors.Is(err, ErrStrange) {
		t.Error(err)
	}
	f, err := OpenTo(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if b, err := Read(path, 4); err != nil || len(b) != 0 {
		t.Errorf("%q %v", b, err)
	}
}
