//go:build linux

package inspect

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pinfold.dev/internal/sys"
	"pinfold.dev/internal/sys/systest"
	"pinfold.dev/pidfd"
)

// A member's socket is told when a process outside is connected to it, and not
// when only a member is, or nobody.
func TestServers(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct{ network, listen, idle, dial string }{
		{"unix", filepath.Join(dir, "s.sock"), filepath.Join(dir, "idle.sock"), ""},
		{"unix", fmt.Sprintf("@pinfold-test-%d", os.Getpid()), fmt.Sprintf("@pinfold-test-%d.idle", os.Getpid()), ""},
		{"tcp4", "127.0.0.1:0", "127.0.0.1:0", ""},
		{"tcp", "[::]:0", "[::]:0", "127.0.0.1:%d"},
		{"tcp6", "[::1]:0", "[::1]:0", ""},
	} {
		t.Run(c.network+" "+c.listen, func(t *testing.T) {
			l := mustStart(t, "listen", c.network, c.listen)
			at := l.Line(t)
			to := at
			if c.dial != "" {
				to = fmt.Sprintf(c.dial, netip.MustParseAddrPort(at).Port())
			}
			kind := strings.TrimRight(c.network, "46")
			idle := mustStart(t, "listen", c.network, c.idle)
			idle.Line(t)
			mate := mustStart(t, "dial", kind, to)
			mate.Line(t)
			members := []*pidfd.Handle{handle(t, l.PID()), handle(t, idle.PID()), handle(t, mate.PID())}
			if kind == "unix" {
				_, err := sys.UnixSockets()
				systest.Lacking(t, "unix_diag in the kernel", err)
			}
			if got, notes, err := servers(t.Context(), members...); len(got) > 0 || len(notes) > 0 || err != nil {
				t.Errorf("with nobody outside: %+v, %v, %v", got, notes, err)
			}
			out := mustStart(t, "dial", kind, to)
			out.Line(t)
			got, notes, err := servers(t.Context(), members...)
			want := Server{PID: l.PID(), Socket: kind + ":" + at, Clients: []Client{{PID: out.PID()}}}
			if err != nil || len(notes) > 0 || len(got) != 1 || !reflect.DeepEqual(got[0], want) {
				t.Errorf("%+v, not %+v (%v, %v)", got, want, notes, err)
			}
			over, cancel := context.WithCancel(t.Context())
			cancel()
			if _, _, err := servers(over, members...); err == nil {
				t.Error("it looked on without time")
			}
			out.End()
			systest.Until(t, "the end of the connection of one that went", func() bool { // a FIN takes its time
				got, _, err := servers(t.Context(), members...)
				return len(got) == 0 && err == nil
			})
		})
	}
}

func sockets(ctx context.Context, members ...*pidfd.Handle) (Around, error) {
	l := NewSockets()
	for _, h := range members {
		if err := l.Add(ctx, h); err != nil {
			return Around{}, err
		}
	}
	return l.Look(ctx)
}

func servers(ctx context.Context, members ...*pidfd.Handle) ([]Server, []string, error) {
	a, err := sockets(ctx, members...)
	return a.Servers, a.Notes, err
}

func mustStart(t *testing.T, name string, args ...string) *systest.Proc {
	t.Helper()
	return systest.Start(t, suite.Command(t, name, args...))
}

func TestParseTCP(t *testing.T) {
	b := []byte(`  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0 0 10 0
   1: 0000000000000000FFFF00000100007F:1F90 0000000000000000FFFF00000100007F:C350 01 0:0 0:0 0 0 0 12 1
   2: bad
   3: 0100007F 00000000:0000 0A 0:0 0:0 0 0 0 1 1
`)
	want := []tcpSocket{
		{netip.MustParseAddrPort("127.0.0.1:8080"), netip.MustParseAddrPort("0.0.0.0:0"), tcpListen, 4711},
		{netip.MustParseAddrPort("127.0.0.1:8080"), netip.MustParseAddrPort("127.0.0.1:50000"), tcpEstablished, 12},
	}
	if got := parseTCP(b); !slices.Equal(got, want) {
		t.Errorf("%+v, not %+v", got, want)
	}
}

// Without sock_diag it is told who listens, and that nobody knows for whom.
func TestOnlyListening(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a socket")
	p := mustStart(t, "listen", "unix", path)
	p.Line(t)
	l := NewSockets()
	if err := l.Add(t.Context(), handle(t, p.PID())); err != nil {
		t.Fatal(err)
	}
	l.onlyListening(errors.New("forbidden"))
	want := []Server{{PID: p.PID(), Socket: "unix:" + path, Clients: []Client{{From: "it cannot be told who is connected: forbidden"}}}}
	if got := l.servers(); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, not %+v (%v)", got, want, l.notes)
	}
}
