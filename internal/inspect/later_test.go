//go:build linux

package inspect

import (
	"path/filepath"
	"syscall"
	"testing"

	"pinfold.dev/internal/sys"
	"pinfold.dev/internal/sys/systest"
)

// Members go on while they are looked at: what one accepts then, what one has that was
// born since, and what is over before anybody was seen to have it is of nobody outside.
func TestMeanwhile(t *testing.T) {
	_, err := sys.UnixSockets()
	systest.Lacking(t, "unix_diag in the kernel", err)
	dir := t.TempDir()
	add := func(ps ...*systest.Proc) *Sockets {
		s := NewSockets()
		for _, p := range ps {
			if err := s.Add(t.Context(), handle(t, p.PID())); err != nil {
				t.Fatal(err)
			}
		}
		return s
	}
	told := func(what string, s *Sockets, served, servers int) {
		t.Helper()
		if a, err := s.Look(t.Context()); len(a.Served) != served || len(a.Servers) != servers || err != nil {
			t.Errorf("%s: %+v (%v), not %d and %d", what, a, err, served, servers)
		}
	}
	at := filepath.Join(dir, "s")
	listener := mustStart(t, "listen", "unix", at)
	listener.Line(t)
	signal := func(sig syscall.Signal) {
		if err := handle(t, listener.PID()).Signal(sig); err != nil {
			t.Fatal(err)
		}
	}
	signal(syscall.SIGSTOP)
	client := mustStart(t, "dial", "unix", at)
	systest.Until(t, "the client's socket", func() (has bool) {
		_ = eachSocket(t.Context(), client.PID(), func(uint32, string) { has = true })
		return has
	})
	late := add(listener, client)
	signal(syscall.SIGCONT)
	client.Line(t)
	told("accepted since", late, 0, 0)

	told("of the client alone", add(client), 1, 0)
	born := add(client)
	born.Late = func() []int { return []int{listener.PID()} }
	told("by one born since", born, 0, 0)
	born = add(listener)
	told("of the listener alone", add(listener), 0, 1)
	born.Late = func() []int { return []int{client.PID()} }
	told("of one born since", born, 0, 0)

	over, server := add(client), add(listener)
	over.scan()
	server.scan()
	if len(over.wanted) != 1 || len(server.wanted) != 1 {
		t.Fatalf("%+v, %+v", over.wanted, server.wanted)
	}
	client.End()
	listener.End()
	for _, s := range []*Sockets{over, server} {
		if err := s.find(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.settle()
		if len(s.served()) > 0 || len(s.servers()) > 0 {
			t.Errorf("over since: %+v, %+v", s.served(), s.servers())
		}
	}
}
