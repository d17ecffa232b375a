package server

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Who connects while nobody of ours listens is answered by who takes the kept
// socket, and nothing but that very socket is taken.
func TestKeptSocket(t *testing.T) {
	path := filepath.Join(shortDir(t), "s")
	first, err := Listen(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	fd, name, err := Keep(first)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	waits, err := net.Dial("unix", path)
	if err != nil {
		t.Fatalf("between two services: %v", err)
	}
	defer waits.Close()
	if _, err := Listen(path, 0o600); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("another service: %v", err)
	}
	second, err := Kept(os.NewFile(uintptr(fd), "kept"), path, name)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		c, err := second.Accept()
		if err == nil {
			_, err = c.Write([]byte("hello"))
			c.Close()
		}
		done <- err
	}()
	_ = waits.SetReadDeadline(time.Now().Add(time.Minute))
	b := make([]byte, 5)
	if n, err := waits.Read(b); err != nil || string(b[:n]) != "hello" {
		t.Errorf("who had waited read %q, %v", b[:n], err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	again, name2, err := Keep(second)
	if err != nil || name2 != name {
		t.Errorf("kept once more: %q, before %q, %v", name2, name, err)
	}
	for what, x := range map[string]struct{ path, name string }{"another path": {path + "x", name}, "another file": {path, "1-1"}} {
		f := os.NewFile(uintptr(again), "kept")
		if again, _, err = Keep(second); err != nil {
			t.Fatal(err)
		}
		if l, err := Kept(f, x.path, x.name); err == nil {
			l.Close()
			t.Errorf("%s is taken", what)
		}
	}
	os.NewFile(uintptr(again), "kept").Close()
	Drop(second)
	if err := second.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is there still: %v", err)
	}
}
