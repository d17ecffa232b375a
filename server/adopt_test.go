package server

import (
	"errors"
	"os"
	"strconv"
	"testing"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys"
)

// A pidfd that comes along is handed on; whatever else comes is told from one, and
// nothing of it is left.
func TestAdoptHandsThePidfdOn(t *testing.T) {
	s := start(t, Config{})
	s.engine.add("one", uint32(os.Getuid()))
	c, ctx := s.client(t), within(t)
	fd, err := sys.PidfdOpen(os.Getppid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	handle := os.NewFile(uintptr(fd), "pidfd")
	defer handle.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	dir, err := os.Open("/proc/self")
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	for what, f := range map[string]*os.File{strconv.Itoa(os.Getppid()): handle, "other": r, "none": nil} {
		p, err := c.Adopt(ctx, "one", api.AdoptRequest{}, f)
		if err != nil || p.Labels["pidfd"] != what {
			t.Errorf("%s: %+v (%v)", what, p, err)
		}
	}
	if p, err := c.Adopt(ctx, "one", api.AdoptRequest{}, dir); err != nil || p.Labels["pidfd"] != "other" {
		t.Errorf("a directory of /proc: %+v (%v)", p, err)
	}
	status, body := s.ask(t, "POST", "/v1/turns/one/adopt", `{"process":{"pid":7},"pid":7}`)
	if status != 400 {
		t.Errorf("an unknown field: %d %s", status, body)
	}
	s.engine.add("theirs", uint32(os.Getuid())+1)
	if os.Getuid() != 0 {
		if _, err := c.Adopt(ctx, "theirs", api.AdoptRequest{}, nil); !errors.Is(err, api.ErrNotFound) {
			t.Errorf("another's turn: %v", err)
		}
	}
}

// What runs inside a turn adopts nobody, into that turn neither.
func TestAdoptFromInside(t *testing.T) {
	inside := Peer{UID: 1000, Known: true, InTurn: "a"}
	for _, r := range routes() {
		if r.path == "/v1/turns/{turn}/adopt" {
			for _, id := range []string{"a", "b"} {
				if err := decide(inside, r.does, target{id: id, owner: 1000, found: true}); !errors.Is(err, api.ErrForbidden) {
					t.Errorf("into %s: %v", id, err)
				}
			}
			return
		}
	}
	t.Error("there is no such route")
}
